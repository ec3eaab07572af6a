package conduit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// fetcher is what a worker has for fetch sets: it is what they wait with (flow.Parker), and keeps
// their gets until these have ended.
type fetcher struct {
	w     *Worker
	owner *flow.Owner
	park  am.Parker // makes progress of the library's messages, if there are any
	stop  func() bool
	gets  []*getFetch // in flight, in the order of posting
	lost  []*getFetch // that failed when they were posted, perhaps in part: flushed ends them
	err   error       // of the last of these, for the set that waits
}

// fetcherOf is the worker's, which is made with its first set.
func fetcherOf(w *Worker) *fetcher {
	if w.fetches == nil {
		f := &fetcher{w: w, park: am.Goroutines{}.NewParker()}
		if all := w.job.library.all; len(all) > 0 {
			f.park = am.ParkerAt(all[len(all)-1]) // of the slowest network
		}
		f.stop = context.AfterFunc(w.job.members.over, f.Unpark)
		f.owner = w.job.memory.budget.NewOwner(fmt.Sprintf("a worker of rank %d", w.job.rank), f)
		w.fetches = f
	}
	return w.fetches
}

// Park implements flow.Parker. While gets are in flight nothing else can be missing for long: it
// waits for the first of them.
func (f *fetcher) Park(ctx context.Context) error {
	if f.err != nil {
		return f.failure()
	}
	if len(f.gets) > 0 {
		return f.next(ctx, (*Pending).Wait)
	}
	if over := f.w.job.members.over; over.Err() == nil {
		if err := f.park.Park(ctx); over.Err() == nil {
			return err
		}
	}
	return f.w.job.checkOpen()
}

// failure takes the error of a get that was lost: its set ends. What the network may still write to
// keeps its bytes until the worker's next Flush or Close.
func (f *fetcher) failure() (err error) {
	err, f.err = f.err, nil
	return err
}

// Unpark implements flow.Parker.
func (f *fetcher) Unpark() { f.park.Unpark() }

// errNoGet says that no get is in flight.
var errNoGet = errors.New("conduit: no get is in flight")

// next waits for the get that was posted first. Its outcome is its set's affair.
func (f *fetcher) next(ctx context.Context, wait func(*Pending, context.Context) error) error {
	if len(f.gets) == 0 {
		return errNoGet
	}
	g := f.gets[0]
	err := wait(&g.op, ctx)
	if g.op.h != fabric.Done {
		return err // it goes on: ctx has ended, or another goroutine uses the worker
	}
	f.gets = slices.Delete(f.gets, 0, 1)
	g.over(err)
	return nil
}

// reap ends the gets that are complete.
func (f *fetcher) reap() {
	f.gets = slices.DeleteFunc(f.gets, func(g *getFetch) bool {
		done, err := g.op.Test()
		if done {
			g.over(err)
		}
		return done
	})
}

// flushed ends all gets, when the worker's lanes have nothing in flight, inside a call of the
// worker; f may be nil.
func (f *fetcher) flushed(ctx context.Context) {
	if f == nil || ctx.Err() != nil {
		return
	}
	for f.next(ctx, (*Pending).wait) == nil {
	}
	for _, g := range f.lost {
		g.over(g.err)
	}
	f.lost = nil
}

// getFetch is a get of a fetch set: flow.Fetch.
type getFetch struct {
	w     *Worker
	from  Ptr[byte]
	n     int
	out   *fetched
	mem   []byte // whole pages
	op    Pending
	err   error
	ended func(error)
}

// Rank implements flow.Fetch.
func (g *getFetch) Rank() int { return g.from.Rank() }

// Bytes implements flow.Fetch.
func (g *getFetch) Bytes() int64 { return int64(pagepool.Round(uint64(g.n))) }

// Start posts the get.
func (g *getFetch) Start(ended func(error)) {
	t := g.w.job.memory
	g.ended = ended
	if g.mem, g.err = t.pages.Take(uint64(g.n), t.most()); g.err != nil {
		g.over(fmt.Errorf("conduit: fetch: %w", g.err))
		return
	}
	g.op = getSlice(g.w, g.mem[:g.n:g.n], g.from, 0)
	f := fetcherOf(g.w)
	switch {
	case g.op.err == nil && g.op.h == fabric.Done:
		g.over(nil)
	case g.op.err == nil:
		f.gets = append(f.gets, g)
	case g.op.lane == nil || errors.Is(g.op.err, ErrPeerDown):
		g.over(g.op.err)
	default: // parts of it may be in flight
		g.err, f.err = g.op.err, g.op.err
		f.lost = append(f.lost, g)
	}
}

func (g *getFetch) over(err error) { g.ended(err) }

// Cancel implements flow.Fetch. A get that is in flight cannot be called back; it ends by itself.
func (g *getFetch) Cancel() {}

// Free implements flow.Fetch.
func (g *getFetch) Free() {
	if g.mem != nil {
		g.w.job.memory.pages.Give(g.mem)
		g.mem = nil
	}
}
