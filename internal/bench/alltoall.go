package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/errtext"
)

// The ways of an all-to-all. All but the first are those that MPICH has for blocks of different
// lengths: they know nothing of memory.
const (
	// Paced is coll.AllToAll in a job with a budget.
	Paced = "paced"
	// Bruck passes blocks on in log2(n) rounds: coll.AllToAll with Config.Short above all lengths.
	Bruck = "bruck"
	// PostAll puts all blocks at once, for which each rank has memory for a block of every other.
	PostAll = "post-all"
	// Pairwise puts a block to one rank after the other, with memory for one.
	Pairwise = "pairwise"
)

// AllToAllSide is a way, and the budget of Paced.
type AllToAllSide struct {
	Name   string
	Way    string
	Budget int64 // bytes; 0: none
	// Held has the rank hold all of the budget meanwhile.
	Held bool
}

// AllToAllSides are what is compared, for blocks of so many bytes at most: Paced with memory for
// all blocks in both copies, for two messages of a window, and for nothing; and the other ways.
func AllToAllSides(ranks int, largest int64) []AllToAllSide {
	const message = 32 << 10 // a place of coll's window
	return []AllToAllSide{
		{Name: "ample", Way: Paced, Budget: max(2*int64(ranks)*largest, 64*message)},
		{Name: "middling", Way: Paced, Budget: 2 * message},
		{Name: "tight", Way: Paced, Budget: message, Held: true},
		{Name: Bruck, Way: Bruck}, {Name: PostAll, Way: PostAll}, {Name: Pairwise, Way: Pairwise},
	}
}

// Configure sets what a job of so many ranks needs for a side.
func (s AllToAllSide) Configure(c *conduit.Config, ranks int, largest int64) {
	all := int64(ranks) * largest
	c.Workers, c.SegmentSize = 1, 4<<10
	switch s.Way {
	case Paced:
		c.Memory.Budget = flow.BudgetConfig{Limit: s.Budget, Small: -1, Unscheduled: -1}
	case Bruck:
		c.Collectives.Short, c.Collectives.WindowBytes = int(all), int(max(all, 256<<10))
	case PostAll:
		c.SegmentSize = max(2*all, 4<<10)
	case Pairwise:
		c.SegmentSize = max(2*largest, 4<<10)
	}
}

// AllToAll is a side that runs.
type AllToAll struct {
	AllToAllSide
	w   *conduit.Worker
	far int // of the two halves of memory, of PostAll and Pairwise
}

// exchange has each rank get a block of n bytes of every other's src.
func (a *AllToAll) exchange(ctx context.Context, dst, src []byte, n int) error {
	switch a.Way {
	case PostAll:
		return a.postAll(ctx, dst, src, n)
	case Pairwise:
		return a.pairwise(ctx, dst, src, n)
	}
	return coll.AllToAll(ctx, a.w.Job().Team().Through(a.w), dst, src)
}

// postAll uses the two halves of memory by turns: who is in the next operation writes to what
// nobody reads, and who is in the one behind that has waited for all.
func (a *AllToAll) postAll(ctx context.Context, dst, src []byte, n int) error {
	j := a.w.Job()
	me, ranks := j.Rank(), j.Size()
	half := a.half(ranks * n)
	copy(dst[me*n:][:n], src[me*n:][:n])
	for k := 1; k < ranks; k++ {
		to := (me + k) % ranks
		if err := conduit.PutSliceNBI(a.w, conduit.At[byte](to, uint64(half+me*n)), src[to*n:][:n]); err != nil {
			return err
		}
	}
	if err := a.w.Barrier(ctx); err != nil {
		return err
	}
	mem := j.Segment()[half:][:ranks*n]
	copy(dst[:me*n], mem)
	copy(dst[(me+1)*n:], mem[(me+1)*n:])
	return nil
}

func (a *AllToAll) pairwise(ctx context.Context, dst, src []byte, n int) error {
	j := a.w.Job()
	me, ranks := j.Rank(), j.Size()
	copy(dst[me*n:][:n], src[me*n:][:n])
	for k := 1; k < ranks; k++ {
		to, from := (me+k)%ranks, (me+ranks-k)%ranks
		half := a.half(n)
		if err := conduit.PutSlice(a.w, conduit.At[byte](to, uint64(half)), src[to*n:][:n]); err != nil {
			return err
		}
		if err := a.w.Barrier(ctx); err != nil {
			return err
		}
		copy(dst[from*n:][:n], j.Segment()[half:])
	}
	return nil
}

// half is where the other half of memory begins, of so many bytes.
func (a *AllToAll) half(bytes int) int {
	a.far = 1 - a.far
	return a.far * bytes
}

// AllToAllPoint is a size, and how long an operation takes on each side, in microseconds, by name.
type AllToAllPoint struct {
	Size   int64              // of a block, in bytes
	Loop   int                // operations of a round
	Micros map[string]float64 // the least of the rounds
	Median map[string]float64
	Rounds map[string][]float64 `json:",omitempty"`
}

// Best is the fastest of the ways that know nothing of memory.
func (p AllToAllPoint) Best() (name string, micros float64) {
	for _, s := range []string{Bruck, PostAll, Pairwise} {
		if m, ok := p.Micros[s]; ok && (name == "" || m < micros) {
			name, micros = s, m
		}
	}
	return name, micros
}

// MeasureAllToAll runs all sides in turns, in so many rounds of so many operations each, 0 for as
// many as take about a millisecond, or in fewer if these take longer than most, and checks what has
// arrived. Each side has a worker of a job of its own, which Configure has configured.
func MeasureAllToAll(ctx context.Context, sides []AllToAllSide, workers []*conduit.Worker, size int64, rounds, loop int, most time.Duration) (AllToAllPoint, error) {
	ranks, me := workers[0].Job().Size(), workers[0].Job().Rank()
	n := int(size)
	src, dst := make([]byte, ranks*n), make([]byte, ranks*n)
	for i := range src {
		src[i] = blockByte(me, i/n, i%n)
	}
	p := AllToAllPoint{Size: size, Loop: loop, Micros: map[string]float64{}, Median: map[string]float64{}, Rounds: map[string][]float64{}}
	if loop == 0 {
		p.Loop = max(4, min(500, (4<<20)/(ranks*n)))
	}
	all := make([]AllToAll, len(sides))
	for i := range all {
		all[i] = AllToAll{AllToAllSide: sides[i], w: workers[i]}
	}
	begin := time.Now()
	for round := range rounds + 1 { // the first one warms up
		if more, err := conduit.BroadcastValue(ctx, workers[0].Job(), 0, round < 2 || time.Since(begin) < most); err != nil || !more {
			return p.least(), err
		}
		for i := range all {
			a := &all[(i+round)%len(all)]
			t, err := a.round(ctx, dst, src, n, p.Loop)
			if err != nil {
				return p, fmt.Errorf("bench: all-to-all, %s, %s: %w", a.Name, errtext.Count(n, "byte"), err)
			}
			if round > 0 {
				p.Rounds[a.Name] = append(p.Rounds[a.Name], t)
			}
		}
	}
	return p.least(), nil
}

// least fills in what follows from the rounds.
func (p AllToAllPoint) least() AllToAllPoint {
	for name, times := range p.Rounds {
		s := slices.Sorted(slices.Values(times))
		p.Micros[name], p.Median[name] = s[0], s[len(s)/2]
	}
	return p
}

// round returns the microseconds of an operation.
func (a *AllToAll) round(ctx context.Context, dst, src []byte, n, loop int) (micros float64, err error) {
	j := a.w.Job()
	if a.Held {
		if err := j.Budget().Acquire(ctx, a.Budget); err != nil {
			return 0, err
		}
		defer j.Budget().Release(a.Budget)
	}
	clear(dst)
	for range 2 { // ranks leave the second one together
		if err := a.w.Barrier(ctx); err != nil {
			return 0, err
		}
	}
	begin := time.Now()
	for range loop {
		if err := a.exchange(ctx, dst, src, n); err != nil {
			return 0, err
		}
	}
	micros = float64(time.Since(begin).Nanoseconds()) / 1e3 / float64(loop)
	for i, v := range dst {
		if v != blockByte(i/n, j.Rank(), i%n) {
			return 0, &WrongError{Kernel: "all-to-all", Rank: j.Rank(), Cause: fmt.Errorf("byte %d of the block of rank %d is %d", i%n, i/n, v)}
		}
	}
	return micros, nil
}

// blockByte is a byte of a block, which is never 0.
func blockByte(from, to, i int) byte { return byte(1 + (from*31+to*17+i*7)%251) }
