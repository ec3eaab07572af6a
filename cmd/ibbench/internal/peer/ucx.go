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

// ucxTest is the test of UCX that measures what a point does, with the layout that is fastest:
// short and bcopy copy, zcopy sends from registered memory. put_lat and am_lat report half of a
// round trip.
func (c *Comparison) ucxTest(pt plan.Point) (t test, ok bool) {
	shm := c.Plan.Fabric == "shm"
	layout := func(large string) []string {
		switch {
		case pt.Size <= 8:
			return []string{"-D", "short"}
		case shm: // which has no zero-copy of its own
			large = "bcopy"
		}
		return []string{"-D", large}
	}
	outstanding := []string{"-O", strconv.Itoa(pt.Depth)}
	t = test{tool: "ucx_perftest", times: 1}
	stream := pt.Kind != plan.Lat
	switch {
	case pt.Ack || pt.Op == plan.CAS:
		return t, false
	case pt.Op == plan.Put && stream:
		t.args = append(append([]string{"-t", "put_bw"}, layout("zcopy")...), outstanding...)
	case pt.Op == plan.Put:
		t.args = append([]string{"-t", "put_lat"}, layout("zcopy")...)
	case pt.Op == plan.Get && (pt.Size <= 8 || shm):
		t.args = append([]string{"-t", "get", "-D", "bcopy"}, outstanding...)
	case pt.Op == plan.Get:
		t.args = append([]string{"-t", "get", "-D", "zcopy"}, outstanding...)
	case pt.Op == plan.AMO:
		t.args = append([]string{"-t", "fadd"}, outstanding...)
	case stream:
		t.args = append(append([]string{"-t", "am_bw"}, layout("bcopy")...), outstanding...)
	default:
		t.args, t.times = append([]string{"-t", "am_lat"}, layout("bcopy")...), 2
	}
	// Reliable connections, as ours; or memory that processes share.
	where := []string{"-x", "rc_verbs", "-d", fmt.Sprintf("%s:%d", c.Plan.Device, c.Port)}
	t.env = append(os.Environ(), fmt.Sprintf("UCX_IB_GID_INDEX=%d", c.GID))
	if shm {
		where, t.env = []string{"-x", "posix", "-d", "memory"}, nil
	}
	t.args = append(append(t.args, where...), "-s", strconv.FormatInt(bytesOf(pt), 10), "-n", strconv.FormatInt(pt.Iters, 10),
		"-w", strconv.FormatInt(max(pt.Iters/10, 1), 10))
	return t, true
}

// parseUCX reads the line of the whole run: iterations, then microseconds: median, the average of
// the last second, and that of all; MB a second and messages a second, both of the last second and
// of all.
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
		if pt.Kind != plan.Lat {
			if len(fields) < 9 {
				return nil, fmt.Errorf("no rate in %q", strings.TrimSpace(line))
			}
			perSecond, err := number(fields[8], "rate")
			if err != nil {
				return nil, err
			}
			return measured(&Output{Iters: pt.Iters, Figures: report.Figures{Mean: perSecond * float64(bytesOf(pt))}})
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
