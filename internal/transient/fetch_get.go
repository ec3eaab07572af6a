package transient

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// Fetcher is what a worker has for fetch sets: they wait with it (flow.Parker), and it keeps their
// gets until these have ended.
type Fetcher struct {
	m     *Memory
	w     env.Worker
	owner *flow.Owner // nil before the first set, as the rest
	park  am.Parker   // makes progress of the library's messages, if there are any
	stop  func() bool
	gets  []*getFetch // in flight, in the order of posting
	lost  []*getFetch // that failed when they were posted, perhaps in part: Flushed ends them
	err   error       // of the last of these, for the set that waits
}

// NewFetcher is a worker's.
func (m *Memory) NewFetcher(w env.Worker) *Fetcher { return &Fetcher{m: m, w: w} }

// Owner is the worker as an owner of fetch sets, in a job with a budget.
func (f *Fetcher) Owner() *flow.Owner {
	if f.owner == nil {
		e := f.m.env
		if all := e.Endpoints(); len(all) > 0 {
			f.park = am.ParkerAt(all[len(all)-1]) // of the slowest network
		} else {
			f.park = e.Host().NewParker()
		}
		f.stop = context.AfterFunc(e.Context(), f.Unpark)
		f.owner = f.m.budget.NewOwner(fmt.Sprintf("a worker of rank %d", e.Rank()), f)
	}
	return f.owner
}

// Park implements flow.Parker. While gets are in flight nothing else can be missing for long: it
// waits for the first of them.
func (f *Fetcher) Park(ctx context.Context) error {
	if f.err != nil {
		return f.failure()
	}
	if len(f.gets) > 0 {
		return f.wait(ctx)
	}
	job := f.m.env.Context()
	if job.Err() == nil {
		if err := f.park.Park(ctx); job.Err() == nil {
			return err
		}
	}
	return context.Cause(job)
}

// failure takes the error of a get that was lost: its set ends. Memory that the network may still
// write to keeps its bytes until the worker's next Flush or Close.
func (f *Fetcher) failure() (err error) {
	err, f.err = f.err, nil
	return err
}

// Unpark implements flow.Parker.
func (f *Fetcher) Unpark() { f.park.Unpark() }

// errNoGet says that no get is in flight.
var errNoGet = errors.New("conduit: no get is in flight")

// wait is next in a call of the worker.
func (f *Fetcher) wait(ctx context.Context) error {
	if len(f.gets) == 0 {
		return errNoGet
	}
	if err := f.w.Enter("wait"); err != nil {
		return err
	}
	defer f.w.Exit()
	return f.next(ctx)
}

// next waits for the get that was posted first. Its outcome is its set's affair. An error is that
// there is none, or that it goes on: ctx has ended.
func (f *Fetcher) next(ctx context.Context) error {
	if len(f.gets) == 0 {
		return errNoGet
	}
	g := f.gets[0]
	done, err := g.op.Wait(ctx)
	if !done {
		return err
	}
	f.gets = slices.Delete(f.gets, 0, 1)
	g.ended(err)
	return nil
}

// reap ends the gets that are complete.
func (f *Fetcher) reap() {
	if len(f.gets) == 0 || f.w.Enter("test") != nil {
		return
	}
	defer f.w.Exit()
	f.gets = slices.DeleteFunc(f.gets, func(g *getFetch) bool {
		done, err := g.op.Test()
		if done {
			g.ended(err)
		}
		return done
	})
}

// Flushed ends all gets, when the worker's lanes have nothing in flight, inside a call of the
// worker; f may be nil.
func (f *Fetcher) Flushed(ctx context.Context) {
	if f == nil || ctx.Err() != nil {
		return
	}
	for f.next(ctx) == nil {
	}
	for _, g := range f.lost {
		g.ended(g.err)
	}
	f.lost = nil
}

// Close ends the worker's state for sets, when it closes; f may be nil.
func (f *Fetcher) Close() {
	if f != nil && f.stop != nil {
		f.stop()
	}
}

// getFetch is a get of a fetch set: flow.Fetch.
type getFetch struct {
	f     *Fetcher
	rank  int
	off   uint64
	n     int
	out   *Fetched
	mem   []byte // whole pages
	op    env.Get
	err   error
	ended func(error)
}

// Rank implements flow.Fetch.
func (g *getFetch) Rank() int { return g.rank }

// Bytes implements flow.Fetch.
func (g *getFetch) Bytes() int64 { return int64(pagepool.Round(uint64(g.n))) }

// Start posts the get.
func (g *getFetch) Start(ended func(error)) {
	f := g.f
	g.ended = ended
	if g.mem, g.err = f.m.pages.Take(uint64(g.n), f.m.most()); g.err != nil {
		ended(fmt.Errorf("conduit: fetch: %w", g.err))
		return
	}
	g.op, g.err = f.w.Get(g.rank, g.off, g.mem[:g.n:g.n])
	switch {
	case g.op == nil:
		ended(g.err)
	case g.err == nil:
		f.gets = append(f.gets, g)
	default:
		f.err = g.err
		f.lost = append(f.lost, g)
	}
}

// Cancel implements flow.Fetch. A get that is in flight cannot be called back; it ends by itself.
func (g *getFetch) Cancel() {}

// Free implements flow.Fetch.
func (g *getFetch) Free() {
	if g.mem != nil {
		g.f.m.pages.Give(g.mem)
		g.mem = nil
	}
}
