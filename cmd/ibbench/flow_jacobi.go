package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/memgroup"
)

// flowJacobi is ibbench flow jacobi.
type flowJacobi struct {
	flowRanks
	flowOutput
	Stencil    int           `default:"7" enum:"7,13" help:"Points of the stencil, 7 or 13: ghost faces of 1 or 2 cells. Default: 7."`
	Edge       int           `default:"64" placeholder:"N" help:"Cells along the edge of a cube (virtual processor). Default: 64."`
	Arms       string        `default:"normal,fetch,tokens" placeholder:"LIST" help:"Some of normal (sends), fetch (without tokens), tokens, adaptive. Default: normal,fetch,tokens."`
	Tokens     int           `default:"6" placeholder:"N" help:"Faces that have memory at once, of tokens. Default: 6."`
	Sizes      string        `placeholder:"LIST" help:"Cubes along x, as 20,24. A rank has twice as many. Default: around the sizes at which the model expects faults, in steps of 2% of the limit at most."`
	Iterations int           `default:"20" placeholder:"N" help:"Iterations of a run. Default: 20."`
	Sweep      string        `placeholder:"LIST" help:"Also the time of an iteration against tokens, as 1,6,64, at the first size. Default: none."`
	Hog        string        `placeholder:"BYTES" help:"Instead: a hog takes so much of each group in the middle of runs of --phase twice, with fixed tokens and with a budget that adapts. auto: so much that half of the ghost faces do not fit."`
	Phase      time.Duration `default:"15s" placeholder:"D" help:"Of --hog. Default: 15s."`
	Latency    time.Duration `placeholder:"D" help:"By how much later faces come that are fetched, as over a far network. Default: 0."`
	Wave       bool          `help:"Also the memory of the groups over time, at the first size."`
	Duration   time.Duration `default:"14m" placeholder:"D" help:"Begin no run after this time; what is missing is left out. Default: 14m."`

	arms     []string
	sizes    []int
	sweep    []int
	limit    int64
	hogBytes int64 // where Hog says how many
}

// exploded is how many major faults of all ranks mean that a run does not fit its memory.
const exploded = 1000

// worn is how many sizes in a row an arm is measured at that do not fit.
const worn = 3

// jacobiReport is what ibbench flow jacobi prints.
type jacobiReport struct {
	flowKind
	Limit      int64            `json:"limit"` // of each rank's group, in bytes
	Edge       int              `json:"edge"`
	Points     int              `json:"points"` // of the stencil
	Iterations int              `json:"iterations"`
	Touched    int64            `json:"touched,omitempty"` // of Limit what a rank can have before touching it takes pages from a disk; 0: not known
	Fixed      map[string]int64 `json:"fixed,omitempty"`   // what a rank has besides arrays and faces, in bytes, by arm
	Runs       []flowRun        `json:"runs,omitempty"`
	Sweep      []flowRun        `json:"sweep,omitempty"`
	Knees      []jacobiKnee     `json:"knees,omitempty"`
	Hog        *jacobiHog       `json:"hog,omitempty"`
	Wave       []jacobiWave     `json:"wave,omitempty"`
	Left       int              `json:"left_out,omitempty"` // runs that --duration left no time for
}

// jacobiKnee is the largest size of an arm that fits its memory.
type jacobiKnee struct {
	Arm       string  `json:"arm"`
	Tau       float64 `json:"tau"`       // memory in flight / arrays
	Predicted float64 `json:"predicted"` // cubes along x
	Measured  int     `json:"measured"`  // cubes along x; 0: no size fits; the last one: all
	Own       int64   `json:"own"`       // M_A there: peak of the group less faces, in bytes
	Ratio     float64 `json:"ratio"`     // measured, to that of normal; 0: not known
	Model     float64 `json:"model"`     // of Ratio
	Step      float64 `json:"step"`      // of Ratio: what one cube more is
}

// jacobiWave is the memory of the first rank's group over time.
type jacobiWave struct {
	Arm     string    `json:"arm"`
	Seconds []float64 `json:"seconds"`
	Bytes   []int64   `json:"bytes"`
}

func (c *flowJacobi) run(ctx context.Context, io streams) (err error) {
	if err := c.open(ctx, io, true); err != nil {
		return err
	}
	if err := c.complete(); err != nil {
		return usageError{err}
	}
	out := &jacobiReport{flowKind: flowKind{"flow-jacobi", c.Ranks, c.Fabric}, Limit: c.limit, Edge: c.Edge, Points: c.Stencil, Iterations: c.Iterations, Fixed: map[string]int64{}}
	if c.limit > 0 {
		swap, err := c.swap(2 * int64(c.Ranks) * c.limit)
		if err != nil {
			return err
		}
		if swap != nil {
			defer func() { err = errors.Join(err, swap.Remove()) }()
		}
	}
	m := &jacobiMeasurement{flowJacobi: c, io: io, t: newTerminal(io.err, c.Quiet), out: out, end: time.Now().Add(c.Duration)}
	if c.Hog != "" {
		err = m.hog(ctx)
	} else {
		err = m.tables(ctx)
	}
	m.t.clear()
	return errors.Join(err, c.write(out)) // also what was measured before a failure
}

// complete checks the flags.
func (c *flowJacobi) complete() (err error) {
	byDefault := "128M"
	if c.Quick {
		byDefault, c.Edge, c.Iterations, c.Phase = "24M", min(c.Edge, 32), min(c.Iterations, 4), min(c.Phase, 3*time.Second)
	}
	if c.limit, err = bytesFlag("--limit", c.Limit, byDefault); err != nil {
		return err
	}
	if min(c.Edge, c.Tokens, c.Iterations) < 1 {
		return errors.New("--edge, --iterations and --tokens: want 1 or more")
	}
	c.arms = strings.Split(c.Arms, ",")
	for _, a := range c.arms {
		if _, err := bench.NewJacobi(c.params(a, c.Tokens, 1), max(c.Ranks, 1)); err != nil {
			return err
		}
	}
	if c.Sizes != "" {
		if c.sizes, err = numbersOf("--sizes", c.Sizes); err != nil {
			return err
		}
	}
	if c.Sweep != "" {
		if c.sweep, err = numbersOf("--sweep", c.Sweep); err != nil {
			return err
		}
	}
	if c.Hog != "" && c.Hog != "auto" {
		if c.hogBytes, err = bytesFlag("--hog", c.Hog, ""); err != nil {
			return err
		}
	}
	one, err := c.params(c.arms[0], c.Tokens, 1).Sizes()
	switch {
	case err != nil:
		return err
	case c.Ranks < 1 || c.Ranks > 64:
		return fmt.Errorf("--ranks %d: want 1 to 64", c.Ranks)
	case c.Timeout < 0 || c.Duration <= 0 || c.Phase <= 0:
		return errors.New("--timeout, --duration and --phase: want times above 0")
	case c.Hog != "" && c.limit == 0:
		return errors.New("--hog takes memory from ranks in a group: it needs a --limit")
	case c.limit > 0 && c.limit < 16<<20+4*one.Persistent:
		return fmt.Errorf("--limit %d MiB: a rank has about 16 MiB without a grid, and a grid of 4 cubes along x takes %d MiB", c.limit>>20, 4*one.Persistent>>20)
	}
	return nil
}

func (c *flowJacobi) params(arm string, tokens, cubes int) bench.JacobiParams {
	return bench.JacobiParams{Arm: arm, Tokens: tokens, Cubes: cubes, Edge: c.Edge, Width: c.Stencil / 6, Iterations: c.Iterations, Latency: c.Latency}
}

// jacobiMeasurement measures what the flags ask for.
type jacobiMeasurement struct {
	*flowJacobi
	io  streams
	t   *terminal
	out *jacobiReport
	end time.Time
}

// tables measures all sizes, each with all arms.
func (m *jacobiMeasurement) tables(ctx context.Context) error {
	sizes := m.sizes
	if m.limit > 0 {
		if err := m.calibrate(ctx); err != nil {
			return err
		}
		if err := m.touch(ctx); err != nil {
			return err
		}
	}
	if sizes == nil {
		sizes = m.around()
	}
	over := map[string]int{}
	for _, cubes := range sizes {
		for _, arm := range m.arms {
			if over[arm] >= worn {
				continue
			}
			r, ok, err := m.once(ctx, m.params(arm, m.Tokens, cubes))
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			m.out.Runs = append(m.out.Runs, r)
			if over[arm]++; fits(&r) {
				over[arm] = 0
			}
		}
	}
	m.knees(sizes)
	for _, tokens := range m.sweep {
		r, ok, err := m.once(ctx, m.params(bench.ArmTokens, tokens, sizes[0]))
		if err != nil {
			return err
		}
		if ok {
			m.out.Sweep = append(m.out.Sweep, r)
		}
	}
	for _, r := range m.out.Runs {
		if m.Wave && r.Cubes == sizes[0] && len(r.wave.Bytes) > 0 {
			m.out.Wave = append(m.out.Wave, r.wave)
		}
	}
	return nil
}

// calibrate finds what a rank has besides its arrays and faces: M_A without the arrays. It is the
// peak of its group over a small run, less both.
func (m *jacobiMeasurement) calibrate(ctx context.Context) error {
	for _, arm := range m.arms {
		p := m.params(arm, m.Tokens, 1)
		one, err := p.Sizes()
		if err != nil {
			return err
		}
		p.Cubes = int(max(min(m.limit/4/one.Persistent, 16), 1))
		p.Iterations = 2
		r, ok, err := m.once(ctx, p)
		if err != nil {
			return err
		}
		if !ok || r.Failed != "" {
			return fmt.Errorf("%s with %s along x, in a quarter of the limit: %s", arm, errtext.Count(p.Cubes, "cube"), r.Failed)
		}
		m.out.Fixed[arm] = max(r.Group-r.Sizes.Persistent-r.Peak, 0)
	}
	return nil
}

// touch finds M as the paper does, beside the limit of the group. Where the kernel ends who touches
// too much, it is not known.
func (m *jacobiMeasurement) touch(ctx context.Context) error {
	run := transient.Run{Kernel: transient.Touch, Params: 2 * m.limit, Ranks: 1, Fabric: m.Fabric, Device: m.Device, Limit: m.limit, Timeout: time.Minute, Stderr: m.io.err}
	results, err := transient.Start[int64](ctx, &run)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		m.out.Touched = results[0]
	}
	return nil
}

// predicted is the number of cubes along x at which an arm has all of its memory: M = M_A + M_C.
func (m *jacobiMeasurement) predicted(arm string) (cubes, tau float64) {
	p := m.params(arm, m.Tokens, 1)
	one, err := p.Sizes()
	if err != nil || m.limit == 0 {
		return 0, 0
	}
	left := float64(m.limit - m.out.Fixed[arm])
	switch arm {
	case bench.ArmNormal, bench.ArmFetch:
		tau = one.Tau
		if arm == bench.ArmFetch {
			tau /= 2
		}
		return left / (1 + tau) / float64(one.Persistent), tau
	}
	p.Cubes = 1 << 10 // more faces than tokens
	many, _ := p.Sizes()
	cubes = (left - float64(many.InFlight)) / float64(one.Persistent)
	return cubes, float64(many.InFlight) / (cubes * float64(one.Persistent))
}

// around are sizes around the knees that the model expects, which does not know what grows with
// the grid besides arrays and faces: from 7 % below the least to two steps above the largest.
func (m *jacobiMeasurement) around() (sizes []int) {
	if m.limit == 0 {
		return []int{4}
	}
	one, _ := m.params(m.arms[0], m.Tokens, 1).Sizes()
	step := int(max(m.limit/50/one.Persistent, 1)) // 2 % of the limit
	low, high := 0.0, 0.0
	for i, arm := range m.arms {
		k, _ := m.predicted(arm)
		if low = min(low, k); i == 0 {
			low = k
		}
		high = max(high, k)
	}
	for n := max(int(0.93*low), 1); n <= int(high)+2*step; n += step {
		sizes = append(sizes, n)
	}
	return sizes
}

// knees compares the sizes from which on runs do not fit with the model's.
func (m *jacobiMeasurement) knees(sizes []int) {
	if m.limit == 0 {
		return
	}
	after := func(size int) int { // the step beyond a size
		if i := slices.Index(sizes, size); i >= 0 && i+1 < len(sizes) {
			return sizes[i+1] - size
		}
		return 0
	}
	var normal jacobiKnee
	for _, arm := range m.arms {
		k := jacobiKnee{Arm: arm}
		k.Predicted, k.Tau = m.predicted(arm)
		for _, r := range m.out.Runs {
			if r.Arm != arm {
				continue
			}
			if !fits(&r) {
				break
			}
			k.Measured, k.Own = r.Cubes, r.Group-r.Peak
		}
		if arm == bench.ArmNormal {
			normal = k
		}
		if normal.Measured > 0 && k.Measured > 0 {
			k.Ratio, k.Model = float64(k.Measured)/float64(normal.Measured), k.Predicted/normal.Predicted
			k.Step = float64(max(after(k.Measured), after(normal.Measured))) / float64(normal.Measured)
		}
		m.out.Knees = append(m.out.Knees, k)
	}
}

// fits reports whether a run had the memory that it needs.
func fits(r *flowRun) bool { return r.Failed == "" && r.Faults <= exploded }

// once is one run. ok is false where --duration has ended; one that fails, or takes too long, is a
// result.
func (m *jacobiMeasurement) once(ctx context.Context, p bench.JacobiParams) (r flowRun, ok bool, err error) {
	if time.Now().After(m.end) {
		m.out.Left++
		return r, false, nil
	}
	m.t.live(fmt.Sprintf("%s, %s along x", p.Arm, errtext.Count(p.Cubes, "cube")))
	return m.start(ctx, p, nil)
}

// start runs with began beside it, which may be nil.
func (m *jacobiMeasurement) start(ctx context.Context, p bench.JacobiParams, began func(ctx context.Context, groups []*memgroup.Group, iterating <-chan struct{})) (r flowRun, ok bool, err error) {
	r = flowRun{flowArm: flowArm{Arm: p.Arm}, Cubes: p.Cubes, Limit: m.limit}
	if r.Sizes, err = p.Sizes(); err != nil {
		return r, false, err
	}
	if p.Arm == bench.ArmTokens {
		r.Tokens = p.Tokens
	}
	wave, most := jacobiWave{Arm: p.Arm}, int64(0)
	iterating := make(chan struct{})
	r, err = m.flowRanks.once(ctx, r, transient.Run{
		Kernel: transient.Jacobi, Params: p, Timeout: time.Minute + 2*p.For, Stderr: m.io.err,
		Said: func(rank int, _ json.RawMessage) {
			if rank == 0 {
				close(iterating)
			}
		},
		Began: func(ctx context.Context, groups []*memgroup.Group) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				if began != nil {
					began(ctx, groups, iterating)
				}
			}()
			transient.Watch(ctx, groups, 20*time.Millisecond, func(at time.Duration, used []int64) {
				if len(used) > 0 {
					most = max(most, slices.Max(used))
					wave.Seconds, wave.Bytes = append(wave.Seconds, at.Seconds()), append(wave.Bytes, used[0])
				}
			})
			<-done
		},
	}, 1)
	if r.Failed == "" {
		r.wave, r.Group = wave, most
	}
	return r, err == nil, err
}
