package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// Peers that points are compared with.
const (
	Perftest = "perftest"
	UCX      = "ucx"
	OSU      = "mpi"
	OpenMPI  = "coll" // collective operations
)

// ErrNoOSU is wrapped when the OSU micro-benchmarks are not installed.
var ErrNoOSU = errors.New("the OSU micro-benchmarks are not in PATH: no Debian package has them; build them with Open MPI's mpicc (https://mvapich.cse.ohio-state.edu/benchmarks/) and add the directories c/mpi/pt2pt and c/mpi/one-sided to PATH")

// program is a peer.
type program struct {
	name    string
	missing error      // wrapped when a tool is not there
	judge   plan.Point // what tells whether the machine is quiet, if there is one
	test    func(c *Comparison, pt plan.Point) (test, bool)
	parse   func(text string, pt plan.Point) (*Output, error)
	version func(ctx context.Context, path string) string
}

// test is what measures the same as a point of ours.
type test struct {
	tool  string
	args  []string
	env   []string // empty: ours
	times float64  // what its figures are multiplied by, to be of our definition
}

// peers by what --peer calls them. A tool runs as a server and a client, but with mpi, where mpirun
// starts both ranks.
var peers = map[string]program{
	Perftest: {"perftest", ErrMissing, plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8}, (*Comparison).perftest, parsePerftest, Version},
	UCX:      {"UCX", ErrNoUCX, plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8}, (*Comparison).ucxTest, parseUCX, ucxVersion},
	OSU:      {"the OSU micro-benchmarks", ErrNoOSU, plan.Point{Kind: plan.Lat, Op: plan.AM}, (*Comparison).osu, parseOSU, mpiVersion},
	OpenMPI:  {"Open MPI", ErrNoMPI, plan.Point{}, (*Comparison).collTest, nil, mpiVersion},
}

// shortBytes are sent beside a Short, whose one argument has as many.
const shortBytes = 8

// bytesOf is the size that a peer is asked for.
func bytesOf(pt plan.Point) int64 { return cmp.Or(pt.Size, shortBytes) }

// DefaultDepth is how many operations in flight perftest's tools have.
const DefaultDepth = 128

// perftest's tools. ib_send_lat reports half of a round trip, as all its kin do, and ours is a
// whole one.
func (c *Comparison) perftest(pt plan.Point) (t test, ok bool) {
	kind, name := pt.Kind, map[string]string{plan.Put: "write", plan.Get: "read", plan.AMO: "atomic", plan.AM: "send"}[pt.Op]
	if kind == plan.Rate {
		kind = plan.BW
	}
	if pt.Ack || name == "" {
		return t, false
	}
	t = test{tool: "ib_" + name + "_" + kind, times: 1}
	if pt.Kind == plan.Lat && pt.Op == plan.AM {
		t.times = 2
	}
	// No warning about the processor's clock, our device, port and GID, our size and count. All else
	// is the tool's default.
	t.args = []string{"-F", "-d", c.Plan.Device, "-i", strconv.Itoa(c.Port), "-x", strconv.Itoa(c.GID), "-n", strconv.FormatInt(pt.Iters, 10)}
	if pt.Kind != plan.Lat && pt.Depth != DefaultDepth {
		t.args = append(t.args, "-t", strconv.Itoa(pt.Depth))
	}
	if pt.Atomic() {
		t.args = append(t.args, "-A", "FETCH_AND_ADD")
	} else {
		t.args = append(t.args, "-s", strconv.FormatInt(bytesOf(pt), 10))
	}
	t.args = append(t.args, c.Extra...)
	return t, true
}

func parsePerftest(text string, _ plan.Point) (*Output, error) { return Parse(text) }

// osu are the OSU micro-benchmarks over Open MPI. osu_latency reports half of a round trip; the
// one-sided ones flush after each operation, as a blocking put does.
func (c *Comparison) osu(pt plan.Point) (t test, ok bool) {
	name := map[[2]string]string{
		{plan.Lat, plan.AM}: "osu_latency", {plan.Lat, plan.Put}: "osu_put_latency", {plan.Lat, plan.Get}: "osu_get_latency", {plan.Lat, plan.AMO}: "osu_fop_latency",
		{plan.BW, plan.AM}: "osu_bw", {plan.BW, plan.Put}: "osu_put_bw", {plan.BW, plan.Get}: "osu_get_bw",
		{plan.Rate, plan.AM}: "osu_mbw_mr", {plan.Rate, plan.Put}: "osu_put_bw", {plan.Rate, plan.Get}: "osu_get_bw",
	}[[2]string{pt.Kind, pt.Op}]
	if name == "" || pt.PingPong() {
		return t, false
	}
	t = test{tool: name, times: 1}
	iters := pt.Iters
	if pt.Kind != plan.Lat { // it counts windows
		iters = max(iters/int64(pt.Depth), 1)
		t.args = append(t.args, "-W", strconv.Itoa(pt.Depth))
	}
	t.args = append(t.args, "-i", strconv.FormatInt(iters, 10), "-x", strconv.FormatInt(max(iters/10, 1), 10))
	switch {
	case pt.Op == plan.AM:
		if pt.Kind == plan.Lat {
			t.times = 2
		}
	default:
		t.args = append(t.args, "-w", "allocate", "-s", "flush")
	}
	if !pt.Atomic() {
		t.args = append(t.args, "-m", fmt.Sprintf("%d:%d", bytesOf(pt), bytesOf(pt)))
	}
	return t, true
}

// parseOSU reads the row of a table whose last line of comment names its columns.
func parseOSU(text string, pt plan.Point) (*Output, error) {
	o := &Output{Settings: make(map[string]string), Iters: pt.Iters}
	columns := ""
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			if columns = rest; strings.Contains(rest, "OSU MPI") {
				o.Settings["Benchmark"] = strings.TrimSpace(rest)
			}
			continue
		}
		if len(fields) < 2 || fields[0] != strconv.FormatInt(bytesOf(pt), 10) {
			continue
		}
		at, scale := 1, 1e3 // us
		switch {
		case strings.Contains(columns, "Messages/s") && len(fields) > 2:
			at, scale = 2, float64(bytesOf(pt))
		case strings.Contains(columns, "MB/s"):
			scale = 1e6 // osu_bw.c: MB is 10^6 bytes
		case !strings.Contains(columns, "(us)"):
			return nil, fmt.Errorf("no unit that is known in %q", strings.TrimSpace(columns))
		}
		v, err := strconv.ParseFloat(fields[at], 64)
		if err != nil || !(v > 0) || v > 1e12 {
			return nil, fmt.Errorf("%q is not a figure, in %q", fields[at], strings.TrimSpace(line))
		}
		o.Size, o.Figures = bytesOf(pt), report.Figures{Mean: v * scale}
		return o, nil
	}
	return nil, fmt.Errorf("no row of %d bytes in %q", bytesOf(pt), tail(text))
}
