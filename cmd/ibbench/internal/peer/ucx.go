package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// ErrNoUCX is wrapped when UCX's tools are not installed.
var ErrNoUCX = errors.New("UCX's tools are not installed: apt-get install ucx-utils, or make setup")

// ucxTest is the test of UCX that measures the same latency as a point, with the layout that is
// fastest: short and bcopy copy, zcopy sends from registered memory. put_lat and am_lat report half
// of a round trip.
func (c *Comparison) ucxTest(pt plan.Point) (t test, ok bool) {
	layout := func(large string) string {
		if pt.Size <= 8 {
			return "short"
		}
		return large
	}
	t = test{tool: "ucx_perftest", times: 1}
	switch {
	case pt.Op == plan.Put:
		t.args = []string{"-t", "put_lat", "-D", layout("zcopy")}
	case pt.Op == plan.Get && pt.Size <= 8:
		t.args = []string{"-t", "get", "-D", "bcopy", "-O", "1"}
	case pt.Op == plan.Get:
		t.args = []string{"-t", "get", "-D", "zcopy", "-O", "1"}
	case pt.Op == plan.AMO:
		t.args = []string{"-t", "fadd", "-O", "1"}
	default:
		t.args, t.times = []string{"-t", "am_lat", "-D", layout("bcopy")}, 2
	}
	// Reliable connections, as ours.
	t.env = append(os.Environ(), fmt.Sprintf("UCX_IB_GID_INDEX=%d", c.GID))
	t.args = append(t.args, "-x", "rc_verbs", "-d", fmt.Sprintf("%s:%d", c.Plan.Device, c.Port), "-s",
		strconv.FormatInt(bytesOf(pt), 10),
		"-n", strconv.FormatInt(pt.Iters, 10), "-w", strconv.FormatInt(max(pt.Iters/10, 1), 10))
	return t, true
}

// parseUCX reads the line of the whole run: iterations, then microseconds: median, the average of
// the last second, and of all.
func parseUCX(text string, pt plan.Point) (*Output, error) {
	number := func(field, what string) (float64, error) {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil || !(v >= 0) || v > 1e12 {
			return 0, fmt.Errorf("%q is no %s", field, what)
		}
		return v, nil
	}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[0] != "Final:" {
			continue
		}
		p50, err1 := number(fields[2], "time in us")
		mean, err2 := number(fields[4], "time in us")
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%w, in %q", err, strings.TrimSpace(line))
		}
		return measured(&Output{Iters: pt.Iters, Figures: report.Figures{P50: p50 * 1e3, Mean: mean * 1e3}})
	}
	return nil, fmt.Errorf("no line of the whole run in %q", tail(text))
}

// ucxVersion is what UCX says of itself.
func ucxVersion(ctx context.Context, _ string) string {
	out, err := exec.CommandContext(ctx, "ucx_info", "-v").Output()
	line, _, _ := strings.Cut(string(out), "\n") // "# Version 1.13.1", or "# Library version: 1.15.0"
	if f := strings.Fields(line); err == nil && len(f) > 0 {
		return f[len(f)-1]
	}
	return "(version unknown)"
}
