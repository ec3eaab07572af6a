package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// ErrNoUCX is wrapped when UCX's tools are not installed.
var ErrNoUCX = errors.New("UCX's tools are not installed: apt-get install ucx-utils, or make setup")

// transport of UCX that is compared: reliable connections, as ours.
const transport = "rc_verbs"

// ucxTests are the tests that measure what we do, with the layout that is fastest: short and bcopy
// copy, zcopy sends from registered memory. put_lat and am_lat report half of a round trip.
func ucxTest(pt plan.Point) []string {
	small := pt.Size <= 8
	switch {
	case pt.Kind != plan.Lat:
		return nil
	case pt.Op == plan.Put && small:
		return []string{"-t", "put_lat", "-D", "short"}
	case pt.Op == plan.Put:
		return []string{"-t", "put_lat", "-D", "zcopy"}
	case pt.Op == plan.Get && small:
		return []string{"-t", "get", "-D", "bcopy", "-O", "1"}
	case pt.Op == plan.Get:
		return []string{"-t", "get", "-D", "zcopy", "-O", "1"}
	case pt.Op == plan.AMO:
		return []string{"-t", "fadd", "-O", "1"}
	case pt.Op == plan.AM && small:
		return []string{"-t", "am_lat", "-D", "short"}
	case pt.Op == plan.AM:
		return []string{"-t", "am_lat", "-D", "bcopy"}
	}
	return nil
}

// ucx is what UCX measures beside a contest.
type ucx struct {
	pair   Pair
	rounds []report.Figures
	times  float64
}

// newUCX prepares UCX's side of a point; nil where it has none.
func (c *Comparison) newUCX(pt plan.Point, times float64) (*ucx, error) {
	test := ucxTest(pt)
	if test == nil {
		return nil, nil
	}
	path, err := exec.LookPath("ucx_perftest")
	if err != nil {
		return nil, fmt.Errorf("ucx_perftest: %w", ErrNoUCX)
	}
	args := append(test, "-x", transport, "-d", fmt.Sprintf("%s:%d", c.Plan.Device, c.Port), "-s", strconv.FormatInt(cmp.Or(pt.Size, sendSize), 10),
		"-n", strconv.FormatInt(pt.Iters, 10), "-w", strconv.FormatInt(max(pt.Iters/10, 1), 10))
	env := append(os.Environ(), fmt.Sprintf("UCX_IB_GID_INDEX=%d", c.GID))
	return &ucx{pair: Pair{Path: path, Args: args, Env: env, Timeout: c.Timeout}, times: times}, nil
}

// run measures once.
func (u *ucx) run(ctx context.Context) (report.Figures, error) {
	text, err := u.pair.Text(ctx)
	if err != nil {
		return report.Figures{}, err
	}
	f, err := parseUCX(text)
	return times(f, u.times), err
}

// parseUCX reads the line of the whole run: iterations, then microseconds: median, the average of
// the last second, and that of all.
func parseUCX(text string) (f report.Figures, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[0] != "Final:" {
			continue
		}
		var us [2]float64
		for i, at := range []int{2, 4} {
			v, err := strconv.ParseFloat(fields[at], 64)
			if err != nil || !(v >= 0) || v > 1e12 {
				return f, fmt.Errorf("%q is no time in us, in %q", fields[at], strings.TrimSpace(line))
			}
			us[i] = v
		}
		return report.Figures{P50: us[0] * 1e3, Mean: us[1] * 1e3}, nil
	}
	return f, fmt.Errorf("no line of the whole run in %q", tail(text))
}

// ucxVersion is what UCX says of itself.
func ucxVersion(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "ucx_info", "-v").Output()
	line, _, _ := strings.Cut(string(out), "\n") // "# Version 1.13.1", or "# Library version: 1.15.0"
	if f := strings.Fields(line); err == nil && len(f) > 0 {
		return f[len(f)-1]
	}
	return "(version unknown)"
}

// report sums up the rounds that count; ours are the contest's, of the same rounds.
func (u *ucx) report(ours []report.Round, kept []bool, version string) *report.UCX {
	var rounds []report.Round
	var mean []float64
	for i, f := range u.rounds {
		rounds = append(rounds, report.Round{Ours: ours[i].Ours, Theirs: f, Discarded: !kept[i]})
		if kept[i] {
			mean = append(mean, f.Mean)
		}
	}
	out := &report.UCX{Version: version, Args: u.pair.Args, Rounds: rounds, Times: u.times}
	if u.times == 1 {
		out.Times = 0
	}
	out.Result = medians(rounds, func(r report.Round) report.Figures { return r.Theirs }, "ns")
	delete(out.Result.P, "99") // which it does not report
	out.Result.Mean = report.Round3(stats.Median(mean))
	out.Ratio = ratios(rounds, func(f report.Figures) float64 { return f.P50 })
	return out
}
