// Package transient is the memory that communication takes for a time at one rank of a job: data of
// fetch sets, and payloads of other ranks. A budget of package flow bounds it.
//
// A get of a set has pages of its own from the grant of its set until its release. Messages of
// other ranks, which bring the data of a function there or a payload, write a region of the
// segment, in runs that are granted to them. Free pages stay with the rank for a short time.
//
// A part of a job (package env) in this order: [New], [Memory.Spec] and [Memory.Declare] before the
// segment is laid out, [Memory.Open] before messages arrive, [Memory.End], [Memory.Close].
package transient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/guard"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/pagepool"
	"github.com/ibconduit/conduit/internal/pressure"
)

// ErrNoBudget is wrapped by the errors of what needs a budget of memory in a job that has none, or
// none of its segment set apart.
var ErrNoBudget = errors.New("the job has no budget for that")

// Config is one rank's.
type Config struct {
	Budget      flow.BudgetConfig
	ReceiveSize int64 // bytes of the segment that other ranks write; 0: none
	Fetches     map[string]func(*FetchRequest)
	Payloads    map[string]func(*Payload)
}

// Budget is the budget of a rank's transient memory.
type Budget struct {
	*flow.Budget
	m *Memory
}

// Acquire is [flow.Budget.Acquire]. Memory that is free and not given back yet makes place.
func (b *Budget) Acquire(ctx context.Context, n int64) error {
	if err := b.Budget.Acquire(ctx, n); err != nil {
		return err
	}
	b.m.pages.Fit(b.m.most())
	return nil
}

// Layout is what a job has for transient memory.
type Layout struct {
	Largest int64  // what one set or payload may have in bytes; 0: there is no budget
	Receive uint64 `metric:"memory_receive_bytes What each segment has for what other ranks write."`
	Pinned  bool   // a device has it pinned: it takes memory all the time
}

// Stats are where transient memory is. It is Buffers and Idle, what Acquire holds, and what came
// unasked: at most the budget's limit.
type Stats struct {
	flow.BudgetStats
	Buffers    int64  `metric:"memory_buffers_bytes Memory of fetched data and payloads."`
	Idle       int64  `metric:"memory_idle_bytes Memory that is free, and not given back to the system yet."`
	MemoryPeak int64  // the most that both were together, in bytes
	Given      int64  `metric:"memory_given_back_bytes_total Idle memory that was given back to the system."`
	Stalls     uint64 `metric:"memory_stalls_total Stalls of the first claim found by the watchdog: see the log."`
}

// MemoryStats are the figures of the budget, and of its memory.
func (b *Budget) MemoryStats() Stats {
	p := b.m.pages.Stats()
	return Stats{BudgetStats: b.Stats(), Buffers: int64(p.Used), Idle: int64(p.Warm), MemoryPeak: int64(p.Peak),
		Given: int64(p.Given), Stalls: b.m.stalls.Load()}
}

// Memory is the transient memory of a job at this rank. The zero value is for a job without a
// budget.
type Memory struct {
	cfg      Config
	env      env.Env
	pinned   bool
	budget   *Budget // nil: none
	probes   *pressure.Reader
	pages    *pagepool.Pool
	region   *region       // where other ranks write; nil: none
	reserved *region       // for claims that the budget's reserve serves; nil: there is none
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

// New is the memory of a rank in a job with a budget.
func New(cfg Config) *Memory {
	m := &Memory{cfg: cfg, probes: pressure.New(), pages: pagepool.New(), over: make(chan struct{})}
	m.mu.Init(lockrank.Pool, 1)
	return m
}

// Spec makes the budget of a rank of so many, and requests the region that other ranks write. An
// error has the figures.
func (m *Memory) Spec(ranks int) (env.Spec, error) {
	s := flow.Surroundings{Memory: m.probes.Read()}
	if len(m.cfg.Payloads) > 0 {
		s.Peers = ranks - 1
	}
	b, err := flow.NewBudget(m.cfg.Budget, s)
	if err != nil {
		return env.Spec{}, err
	}
	m.budget = &Budget{b, m}
	return env.Spec{Name: regionName, Size: pagepool.Round(uint64(m.cfg.ReceiveSize)), Align: pagepool.Size}, nil
}

// Declare registers the handlers, in a job with a region that other ranks write.
func (m *Memory) Declare(table *am.Table) {
	m.registerFetches(table)
	m.registerPayloads(table)
}

// Open begins with the networks connected, and before messages arrive. pinned: a device reaches the
// segment, or its pages are not to be had one by one. Memory of it is not given back then, as the
// device would go on to write to the old pages.
func (m *Memory) Open(e env.Env, pinned bool) {
	m.env, m.pinned = e, pinned
	if m.budget == nil {
		return
	}
	if m.cfg.ReceiveSize > 0 {
		r := e.Region(regionName)
		rest := uint64(len(r.Bytes)) - m.Reserve()
		m.region = m.newRegion(r.Bytes[:rest], r.Off)
		if m.Reserve() > 0 {
			m.reserved = m.newRegion(r.Bytes[rest:], r.Off+m.region.Bytes())
		}
	}
	m.openFetches()
	m.openPayloads()
	m.stopped = e.OnDown(m.down)
	m.running.Go(m.watch)
	figures := []any{"limit", m.budget.Stats().Limit, "largest", m.budget.Largest()}
	if m.budget.Interval() > 0 {
		figures = append(figures, "bounds", readingBounds(m.probes.Read()))
	}
	e.Logger().Info("budget of transient memory", figures...)
}

// readingBounds are the bounds of a reading for a log, the tightest first.
func readingBounds(r flow.Reading) []string {
	bounds := slices.Clone(r.Bounds)
	slices.SortFunc(bounds, func(x, y flow.MemoryBound) int { return cmp.Compare(x.Limit-x.Used, y.Limit-y.Used) })
	var text []string
	for _, b := range bounds {
		text = append(text, fmt.Sprintf("%s: %d of %d MiB used", b.Source, b.Used>>20, b.Limit>>20))
	}
	return text[:min(len(text), math.MaxInt8)]
}

// Reserve is how many bytes that other ranks write are for claims on the budget's reserve:
// an owner of some of the rest may wait for that. It is as much as that serves, or no less than the
// rest.
func (m *Memory) Reserve() uint64 {
	n := m.cfg.Budget.Reserve
	if n < 0 {
		n = min(m.budget.Largest(), int64(pagepool.Round(uint64(m.cfg.ReceiveSize))/2))
	}
	return pagepool.Round(uint64(n))
}

func (m *Memory) newRegion(mem []byte, begin uint64) *region {
	return &region{m.pages.NewRegion(mem, m.pinned, m.most), begin}
}

// Layout is what there is.
func (m *Memory) Layout() (l Layout) {
	if m.budget != nil {
		l.Largest = m.budget.Largest()
	}
	if m.region != nil {
		l.Receive, l.Pinned = m.region.Bytes()+m.Reserve(), m.pinned
	}
	return l
}

// Budget is the rank's, from Spec on; nil in a job without one.
func (m *Memory) Budget() *Budget { return m.budget }

// most is how many bytes of the pool of pages may have memory.
func (m *Memory) most() uint64 { return uint64(m.budget.BufferLimit()) }

// idleAfter is for how long free memory stays with the job: a page fault and its clearing cost as
// much as the copy into the page. Kept memory makes way for claims.
const idleAfter = 200 * time.Millisecond

// watch follows the machine's memory, gives back idle memory, and reports stalls.
func (m *Memory) watch() {
	step, interval := idleAfter, m.budget.Interval()
	if interval > 0 {
		step = min(step, max(interval, time.Millisecond))
	}
	tick := time.NewTicker(step)
	defer tick.Stop()
	var observed, swept, warned time.Time
	for {
		select {
		case <-m.over:
			return
		case <-tick.C:
		}
		now := time.Now()
		if interval > 0 && now.Sub(observed) >= interval-step/2 { // ticks are not exact
			observed = now
			r, p := m.probes.Read(), m.pages.Stats()
			r.Made = int64(p.Used+p.Warm) + m.budget.Stats().Acquired
			if d, changed := m.budget.Observe(r); changed {
				m.env.Logger().Info("budget of transient memory", "decision", d.String())
			}
		}
		m.pages.Fit(m.most())
		if now.Sub(swept) >= idleAfter {
			m.pages.Tick()
			swept = now
		}
		if err := m.budget.Watch(); err != nil && now.Sub(warned) >= stallEvery {
			m.stalls.Add(1)
			m.env.Logger().Warn("transient memory", "stall", err)
			warned = now
		}
	}
}

// stallEvery is how often a stall is logged that goes on.
const stallEvery = 10 * time.Second

// down ends what waits for a rank that is dead.
func (m *Memory) down(rank int, cause error) {
	err := &fabric.PeerDownError{Rank: rank, Op: "fetch", Cause: cause}
	m.budget.Down(rank, err)
	m.fetchesDown(rank, err)
	m.payloadsDown(rank)
}

// End ends what waits for memory, when the job closes. It may be called again.
func (m *Memory) End() {
	if m.budget != nil {
		m.budget.Close()
	}
}

// Close gives all memory back, when nothing writes to it any more. It may be called again.
func (m *Memory) Close() error {
	if m.budget == nil || m.pages == nil {
		return nil
	}
	select {
	case <-m.over:
		return nil
	default:
		close(m.over)
	}
	m.running.Wait()
	if m.stopped != nil {
		m.stopped()
	}
	return m.pages.Close()
}

// Verify is nil where the accounts of the budget and of the pages are right.
func (m *Memory) Verify() error { return errors.Join(m.budget.Check(), m.pages.Verify()) }

// via carries the messages of transient memory.
func (m *Memory) via() am.Via { return m.env.Messages() }

func errNoBudget(op, remedy string) error {
	return fmt.Errorf("conduit: %s: %w: %s", op, ErrNoBudget, remedy)
}

const (
	remedyBudget  = "set Config.Memory.Budget (IBCONDUIT_BUDGET)"
	remedyReceive = "set Config.Memory.ReceiveSize, Fetches or Payloads (IBCONDUIT_RECEIVE_SIZE)"
)

// Hash is what messages call a function by.
func Hash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum64()
}

// named is a function of the program.
type named[F any] struct {
	name string
	call func(F)
}

// byHash has the functions of a map by what messages call them. A nil one is as if it were not
// there.
func byHash[F any](m map[string]func(F)) map[uint64]named[F] {
	out := make(map[uint64]named[F], len(m))
	for name, f := range m {
		if f != nil {
			out[Hash(name)] = named[F]{name, f}
		}
	}
	return out
}

// called calls a function of the program's, on a goroutine that is only for that.
func (m *Memory) called(f func(), failed func(failure any)) {
	m.env.Learned()
	guard.Call(f, func(failure any) {
		if failure != nil {
			failed(failure)
		}
		m.env.Learned()
	})
}
