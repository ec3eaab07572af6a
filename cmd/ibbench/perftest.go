package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/peer"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
)

// perftestCmd is ibbench perftest.
type perftestCmd struct {
	place
	output
	Kind   string        `arg:"" optional:"" default:"lat" enum:"lat,bw,rate" help:"lat: put, get, fetch-and-add and active messages; bw: put, get and active messages; rate: small ones a second, of the operations of lat."`
	Ops    string        `placeholder:"LIST" help:"Some of put, get, amo, am. Default: all."`
	Sizes  string        `aliases:"size" placeholder:"LIST" help:"Sizes in bytes. Default: 8,4K for lat, 64K for bw; of am short,4K and 4K."`
	Iters  *int64        `placeholder:"N" help:"Iterations of each measurement. Default: 20000 for lat, so that the first second of a process does not count for much; 500 for bw."`
	Rounds int           `default:"5" placeholder:"N" help:"Rounds that must count. Default: 5."`
	Budget time.Duration `placeholder:"D" help:"Instead of --rounds: measure until the 95 % interval of each median ratio is within --within of it, or no further round fits into this time, as 90s. The first round may take twice as long."`
	Within float64       `default:"5" placeholder:"P" help:"Percent, for --budget. Default: 5."`
	UCX    bool          `name:"ucx" help:"lat: measure with UCX (ucx_perftest, rc_verbs) in each round too."`
	Goals  string        `placeholder:"LIST" help:"Ratios to perftest that are wanted of the best rounds, as put:8=1.35,am:short=1.8; the table says which are reached. Does not change the exit code."`
	Args   string        `name:"perftest-args" placeholder:"ARGS" help:"Further arguments of the tools, as '-I 64'."`
	Assert []string      `sep:"none" placeholder:"A" help:"Fail with exit code 1 unless this ratio holds everywhere: 'p50<1.15x', 'p99<2x', or 'bw>0.9x'. Repeatable."`
	Seed   uint64        `default:"1" placeholder:"N" help:"Seed of the payloads. Default: 1."`
}

func (c *perftestCmd) run(ctx context.Context, io streams) error {
	p, as, err := c.plan()
	if err != nil {
		return usageError{err}
	}
	goals, err := report.ParseGoals(c.Goals)
	if err != nil {
		return usageError{fmt.Errorf("--goals: %w", err)}
	}
	x := &peer.Comparison{
		Plan: p, Peer: peer.Perftest, Rounds: c.Rounds, Timeout: peer.Timeout, Extra: strings.Fields(c.Args),
		UCX: c.UCX, Until: peer.Until{Budget: c.Budget, Within: c.Within / 100},
	}
	return c.versus(ctx, io, c.Quiet, x, as, goals.Judge, func(t *terminal) (err error) {
		var why string
		if x.Port, x.GID, why, err = c.where(p); err != nil {
			return err
		}
		many := errtext.Count(c.Rounds, "round")
		if c.Budget > 0 {
			many = fmt.Sprintf("rounds for up to %v", c.Budget)
		}
		t.line("%s; %s of all sides, interleaved", why, many)
		return nil
	})
}

// versus measures ours beside a peer's, and reports. settle says where, when nothing is wrong with
// the flags.
func (o output) versus(ctx context.Context, io streams, quiet bool, x *peer.Comparison, as []plan.Assertion,
	each func(*report.Series), settle func(*terminal) error) error {
	if err := io.alone(ctx, x.Peer+" starts its processes on this machine"); err != nil {
		return err
	}
	out, pct, err := o.writers(io)
	if err != nil {
		return err
	}
	x.Plan.Pct = percentiles(append(pct, 50, 99), nil)
	r := &results{out: out, as: as, each: each, t: newTerminal(io.err, quiet)}
	round := ""
	live := func(text string) { r.t.live(round + ": " + text) }
	x.Say = func(text string) {
		round = text
		r.t.live(text)
	}
	x.Ours = func(ctx context.Context, p *plan.Plan) (all []*report.Series, err error) {
		err = startRanks(ctx, p, measure.Events{Progress: live, Line: live, Series: func(s *report.Series) error {
			all = append(all, s)
			return nil
		}})
		return all, err
	}
	var all []*report.Series
	if err = settle(r.t); err == nil {
		all, err = x.Run(ctx)
	}
	for _, s := range all {
		err = errors.Join(err, r.add(s))
	}
	return r.end(err)
}

// plan is what our ranks measure in each round.
func (c *perftestCmd) plan() (*plan.Plan, []plan.Assertion, error) {
	if c.Rounds < 1 || c.Rounds > 1000 {
		return nil, nil, fmt.Errorf("--rounds %d: want 1 to 1000", c.Rounds)
	}
	switch {
	case c.Budget < 0:
		return nil, nil, fmt.Errorf("--budget %v: want a time above 0", c.Budget)
	case !(c.Within > 0) || c.Within > 100:
		return nil, nil, fmt.Errorf("--within %g: want percent, above 0 to 100", c.Within)
	case c.UCX && c.Kind != plan.Lat:
		return nil, nil, errors.New("--ucx is for lat")
	}
	ops, err := c.ops()
	if err != nil {
		return nil, nil, err
	}
	var points []plan.Point
	for _, op := range ops {
		some, err := c.points(op)
		if err != nil {
			return nil, nil, err
		}
		points = append(points, some...)
	}
	p, err := network{place: c.place, Fabric: "ibv", Ranks: 2, Seed: c.Seed}.plan(points)
	if err != nil {
		return nil, nil, err
	}
	as, err := assertions(c.Assert, plan.PeerKind(c.Kind))
	return p, as, err
}

// ops are the ones of --ops, in the order in which they are measured.
func (c *perftestCmd) ops() (ops []string, err error) {
	all := []string{plan.Put, plan.Get, plan.AMO, plan.AM}
	if c.Kind == plan.BW {
		all = []string{plan.Put, plan.Get, plan.AM}
	}
	if c.Ops == "" {
		return all, nil
	}
	asked := strings.Split(c.Ops, ",")
	for _, op := range asked {
		if !slices.Contains(all, op) {
			return nil, fmt.Errorf("--ops %q: perftest %s compares %s", op, c.Kind, strings.Join(all, ", "))
		}
	}
	return slices.DeleteFunc(all, func(op string) bool { return !slices.Contains(asked, op) }), nil
}

// points of one operation, in each size.
func (c *perftestCmd) points(op string) ([]plan.Point, error) {
	proto := plan.Point{Kind: c.Kind, Op: op, Depth: 1, Lanes: 1, Intervals: 1, Iters: 20000, Batch: 1}
	sizes := "8,4K"
	if c.Kind != plan.Lat {
		proto.Depth, proto.Batch = peer.DefaultDepth, 0
		proto.Place = true // perftest moves on within a page only, which larger messages do not
		sizes = "8"
	}
	if c.Kind == plan.BW {
		proto.Iters = 500
		sizes = "64K"
	}
	if c.Iters != nil {
		proto.Iters = *c.Iters
	}
	if proto.Iters < 5 {
		return nil, fmt.Errorf("--iters %d: perftest wants at least 5", proto.Iters)
	}
	sizes = cmp.Or(c.Sizes, sizes)
	switch op {
	case plan.AMO:
		sizes = "8"
	case plan.AM:
		sizes = cmp.Or(c.Sizes, map[string]string{plan.Lat: "short,4K", plan.BW: "4K", plan.Rate: "short"}[c.Kind])
		if c.Kind != plan.Lat {
			proto.Place, proto.Goroutines = false, 1
		}
	}
	list, err := sizesOf(op, sizes, "")
	return sized(proto, list), err
}

// where both sides measure.
func (c *perftestCmd) where(p *plan.Plan) (port, gid int, why string, err error) {
	d, why, err := machine.FindDevice(p.Device, c.GID)
	if err != nil {
		return 0, 0, "", fmt.Errorf("perftest needs an RDMA device: %w; ibbench doctor says what to do", err)
	}
	p.Fabric, p.Device = "ibv", d.Name
	return d.Port, d.GIDIndex, fmt.Sprintf("device %s port %d, GID %d (%s)", d.Name, d.Port, d.GIDIndex, why), nil
}
