package conduit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/flow/pressure"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// ErrNoBudget is wrapped by the errors of what needs a budget of memory in a job that has none, or
// none of its segment set apart.
var ErrNoBudget = errors.New("the job has no budget for that")

// The errors of package flow, which fetch sets return too.
var (
	ErrSetTooLarge  = flow.ErrSetTooLarge
	ErrHoldAndWait  = flow.ErrHoldAndWait
	ErrBudgetClosed = flow.ErrBudgetClosed
)

// Budget is the budget of a rank's transient memory, see [flow.Budget]. Sets of its own are for
// fetches that the program implements itself; [NewFetchSet] has the job's.
type Budget struct {
	*flow.Budget
	t *transient
}

// Acquire is [flow.Budget.Acquire]. Memory that is free and not given back yet makes place.
func (b *Budget) Acquire(ctx context.Context, n int64) error {
	if err := b.Budget.Acquire(ctx, n); err != nil {
		return err
	}
	b.t.pages.Fit(b.t.most())
	return nil
}

// Budget is the budget of the job's transient memory at this rank; nil without Config.Memory.
func (j *Job) Budget() *Budget { return j.memory.budget }

// MemoryLayout is what a job has for transient memory.
type MemoryLayout struct {
	Largest int64  // what one set or payload may have in bytes; 0: there is no budget
	Receive uint64 // MemoryConfig.ReceiveSize, in each segment
	Pinned  bool   // a device has it pinned: it takes memory all the time
}

// MemoryStats are where transient memory is. It is Buffers and Idle, what Acquire holds, and what
// came unasked: at most the budget's limit.
type MemoryStats struct {
	flow.BudgetStats
	Buffers    int64  // bytes of fetched data and payloads that have memory
	Idle       int64  // bytes that are free, and not given back to the system yet
	MemoryPeak int64  // the most that both were together
	Given      int64  // bytes given back to the system in all
	Stalls     uint64 // that the watchdog has logged, with the holders of memory
}

// MemoryStats are the figures of the budget, and of its memory.
func (b *Budget) MemoryStats() MemoryStats {
	p := b.t.pages.Stats()
	return MemoryStats{BudgetStats: b.Stats(), Buffers: int64(p.Used), Idle: int64(p.Warm), MemoryPeak: int64(p.Peak), Given: int64(p.Given), Stalls: b.t.stalls.Load()}
}

// transient is the transient memory of a job at this rank: its part of the library. The zero value
// is that of a job without a budget.
type transient struct {
	cfg      MemoryConfig
	job      *Job
	budget   *Budget // nil: none
	probes   *pressure.Reader
	pages    *pagepool.Pool
	region   *region       // where other ranks write; nil: none
	reserved *region       // for what the budget's reserve serves; nil: there is none
	stalls   atomic.Uint64 // that the watchdog has found

	fetchProtocol
	payloadProtocol

	mu      lockrank.Mutex // of what the protocols keep
	over    chan struct{}
	running sync.WaitGroup
	stopped func() // ends the reports of deaths
}

const regionName = "conduit.receive"

// region is memory that other ranks write, a part of the segment from begin on.
type region struct {
	*pagepool.Region
	begin uint64
}

// memoryNeeds are those of transient memory.
func memoryNeeds(c *Config) needs {
	if !c.Memory.on() {
		return needs{}
	}
	t := &transient{cfg: c.Memory, probes: pressure.New(), pages: pagepool.New(), over: make(chan struct{})}
	t.mu.Init(lockrank.Pool, 1)
	n := needs{memory: t}
	// The number of ranks is known when the segment is laid out: a rank whose budget is refused tells
	// the others, as one does whose segment cannot be mapped.
	n.sized = append(n.sized, func(ranks int) (env.Spec, error) {
		b, err := t.cfg.newBudget(ranks, t.probes.Read())
		if err != nil {
			return env.Spec{}, err
		}
		t.budget = &Budget{b, t}
		if n, of := t.reserve(), t.cfg.ReceiveSize; of > 0 && pagepool.Round(uint64(of)) < n+pagepool.Size {
			return env.Spec{}, &ConfigError{Field: "Memory.ReceiveSize", Value: fmt.Sprint(of),
				Want: fmt.Sprintf("more than %d bytes, which are for what Budget.Reserve serves", n)}
		}
		return env.Spec{Name: regionName, Size: pagepool.Round(uint64(t.cfg.ReceiveSize)), Align: pagepool.Size}, nil
	})
	if t.cfg.ReceiveSize > 0 {
		n.handlers = func(table *am.Table) {
			t.registerFetches(table)
			t.registerPayloads(table)
		}
	}
	return n
}

// open begins with the networks connected, and before messages arrive.
func (t *transient) open(j *Job) error {
	t.job = j
	if t.budget == nil {
		return nil
	}
	if mem, off := j.seg.Region(regionName); mem != nil {
		t.region, mem = t.newRegion(mem[:uint64(len(mem))-t.reserve()], off), mem[uint64(len(mem))-t.reserve():]
		if len(mem) > 0 {
			t.reserved = t.newRegion(mem, off+t.region.Bytes())
		}
	}
	t.openFetches()
	t.openPayloads()
	t.stopped = j.members.informs(t.down)
	t.running.Go(t.watch)
	if log := j.cfg.Logger; t.budget.Interval() > 0 {
		log.Info("budget of transient memory", "limit", t.budget.Stats().Limit, "largest", t.budget.Largest(), "bounds", readingBounds(t.probes.Read()))
	} else {
		log.Info("budget of transient memory", "limit", t.budget.Stats().Limit, "largest", t.budget.Largest())
	}
	return nil
}

// reserve is how many bytes of what other ranks write are for what the budget's reserve serves:
// whoever has of the rest may wait for that. It is as much as that serves, or no less than the
// rest.
func (t *transient) reserve() uint64 {
	n := t.cfg.Budget.Reserve
	if n < 0 {
		n = min(t.budget.Largest(), int64(pagepool.Round(uint64(t.cfg.ReceiveSize))/2))
	}
	return pagepool.Round(uint64(n))
}

func (t *transient) newRegion(mem []byte, begin uint64) *region {
	return &region{t.pages.NewRegion(mem, t.pinned(), t.most), begin}
}

// pinned reports whether a device reaches the segment, or its pages are not to be had one by one:
// memory of it is not given back then, as the device would go on to write to what it was.
func (t *transient) pinned() bool {
	for _, n := range t.job.networks.all {
		if n.Name() != FabricSHM {
			return true
		}
	}
	return uint64(t.job.seg.PageSize()) != pagepool.Size
}

func (t *transient) layout() (l MemoryLayout) {
	if t.budget != nil {
		l.Largest = t.budget.Largest()
	}
	if t.region != nil {
		l.Receive, l.Pinned = t.region.Bytes()+t.reserve(), t.pinned()
	}
	return l
}

// env is the budget for parts.
func (t *transient) env() env.Budget {
	if t.budget == nil {
		return nil
	}
	return t.budget
}

// most is how many bytes of the pool of pages may have memory.
func (t *transient) most() uint64 { return uint64(t.budget.BufferLimit()) }

// idleAfter is for how long memory stays with the job that is free.
const idleAfter = 200 * time.Millisecond

// watch follows the machine's memory, gives back what is idle, and reports stalls.
func (t *transient) watch() {
	step, interval := idleAfter, t.budget.Interval()
	if interval > 0 {
		step = min(step, max(interval, time.Millisecond))
	}
	tick := time.NewTicker(step)
	defer tick.Stop()
	var observed, swept, warned time.Time
	for {
		select {
		case <-t.over:
			return
		case <-tick.C:
		}
		now := time.Now()
		if interval > 0 && now.Sub(observed) >= interval-step/2 { // ticks are not exact
			observed = now
			r, p := t.probes.Read(), t.pages.Stats()
			r.Made = int64(p.Used+p.Warm) + t.budget.Stats().Acquired
			if d, changed := t.budget.Observe(r); changed {
				t.job.cfg.Logger.Info("budget of transient memory", "decision", d.String())
			}
		}
		t.pages.Fit(t.most())
		if now.Sub(swept) >= idleAfter {
			t.pages.Tick()
			swept = now
		}
		if err := t.budget.Watch(); err != nil && now.Sub(warned) >= stallEvery {
			t.stalls.Add(1)
			t.job.cfg.Logger.Warn("transient memory", "stall", err)
			warned = now
		}
	}
}

// stallEvery is how often a stall is logged that goes on.
const stallEvery = 10 * time.Second

// down ends what waits for a rank that is dead.
func (t *transient) down(rank int, cause error) {
	err := &PeerDownError{Rank: rank, Op: "fetch", Cause: cause}
	t.budget.Down(rank, err)
	t.fetchesDown(rank, err)
	t.payloadsDown(rank)
}

// end ends what waits for memory, when the job closes. It may be called again.
func (t *transient) end() {
	if t.budget != nil {
		t.budget.Close()
	}
}

// close gives all memory back, when nothing writes to it any more. It may be called again.
func (t *transient) close() error {
	if t.budget == nil || t.pages == nil {
		return nil
	}
	select {
	case <-t.over:
		return nil
	default:
		close(t.over)
	}
	t.running.Wait()
	if t.stopped != nil {
		t.stopped()
	}
	return t.pages.Close()
}

// via is what the messages of transient memory go through.
func (t *transient) via() am.Via { return t.job.services() }

func errNoBudget(op, remedy string) error {
	return fmt.Errorf("conduit: %s: %w: %s", op, ErrNoBudget, remedy)
}

const (
	remedyBudget  = "set Config.Memory.Budget (IBCONDUIT_BUDGET)"
	remedyReceive = "set Config.Memory.ReceiveSize, Fetches or Payloads (IBCONDUIT_RECEIVE_SIZE)"
)
