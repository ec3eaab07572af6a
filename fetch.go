package conduit

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/transient"
)

type fetchRequest = transient.FetchRequest

// FetchRequest is a request of another rank for data (MemoryConfig.Fetches). It is to be answered
// once, by any goroutine, at once or later: a rank whose data are not ready yet keeps it until they
// are.
//
// Its methods are those of [transient.FetchRequest] too: From is the rank that asks, Size the bytes
// that it takes at most, Args and Arg are its arguments. Reply(ctx, data) sends the data, and
// returns when they may be reused; it waits for a credit and for one answer of that rank, not for
// memory. Fail(ctx, why) tells the rank why there are none. Errors of both: am.ErrAnswered after an
// answer; an *am.RefusedError where the rank waits for the data no more.
type FetchRequest struct {
	*fetchRequest
	job *Job
}

// Job is the job of the rank that is asked.
func (r *FetchRequest) Job() *Job { return r.job }

// FetchError says why a rank makes no data.
type FetchError = transient.FetchError

// FetchSet is data of other ranks that are needed together. They are asked for when there is memory
// for all of them; the memory is the library's, outside of Go's heap. One goroutine uses a set,
// that of its worker, and submits or posts it once.
type FetchSet struct {
	w   *Worker
	set transient.FetchSet
}

// NewFetchSet begins a set. Its errors come with Submit.
//
//	set := conduit.NewFetchSet(w)
//	left := conduit.FetchSlice(set, p, 64)                       // a get
//	face := conduit.FetchFrom[float64](set, rank, "face", 64, i) // what a function there makes
//	lease, err := set.Submit(ctx)
//	... left.Data(), face.Data() ...
//	lease.Release()
//
// The worker is who waits and holds (flow.Owner): one that holds the lease of a set must not wait
// for one that it posted later, which is an [ErrHoldAndWait], unless Config.Memory.Budget has a
// Reserve; then that serves it.
func NewFetchSet(w *Worker) *FetchSet {
	return &FetchSet{w, transient.NewFetchSet(fetcherOf(w))}
}

// fetcherOf has a worker's sets. It is made with the first one.
func fetcherOf(w *Worker) *transient.Fetcher {
	if w.fetches == nil {
		w.fetches = w.job.memory.NewFetcher(workerView{w})
	}
	return w.fetches
}

// Fetched is one fetch of a set, of a T that holds no Go pointers.
type Fetched[T any] struct{ f transient.Fetched }

// Data are the elements, valid from the lease to its release, and nil at other times. The memory
// may be written.
func (f *Fetched[T]) Data() []T {
	var v T
	data := f.f.Data()
	if n := uint64(unsafe.Sizeof(v)); n > 0 && len(data) > 0 {
		return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), uint64(len(data))/n)
	}
	return nil
}

// Release is [Lease.Release] of this fetch alone.
func (f *Fetched[T]) Release() { f.f.Release() }

// FetchSlice adds a get of n elements from p on, at least 0. It takes whole pages of memory.
func FetchSlice[T any](s *FetchSet, p Ptr[T], n int) *Fetched[T] {
	out := &Fetched[T]{}
	if size, err := fetchSize[T](n); err != nil {
		s.set.Fail(err)
	} else {
		s.set.Get(&out.f, int(global.Node(p))-1, p.Offset(), size)
	}
	return out
}

// FetchFrom adds what the function of that name (MemoryConfig.Fetches) at a rank makes: at most n
// elements, from 1 up. With it go at most 13 arguments. It takes whole pages of memory. It fails
// where that rank has 4096 requests of this one that it has not answered yet.
func FetchFrom[T any](s *FetchSet, rank int, name string, n int, args ...uint64) *Fetched[T] {
	out := &Fetched[T]{}
	if size, err := fetchSize[T](n); err != nil {
		s.set.Fail(err)
	} else {
		s.set.From(&out.f, rank, name, size, args)
	}
	return out
}

func fetchSize[T any](n int) (int, error) {
	var v T
	size := int(unsafe.Sizeof(v))
	switch {
	case !pointerFree[T]():
		return 0, typeError[T]()
	case n < 0 || size > 0 && n > 1<<40/size:
		return 0, fmt.Errorf("conduit: fetch of %d elements of %d bytes: want 0 or more, and 2^40 bytes at most", n, size)
	}
	return n * size, nil
}

// Bytes is the memory that the set needs at once: that of each fetch in whole pages.
func (s *FetchSet) Bytes() int64 { return s.set.Bytes() }

// Lease is the data of a set, and the right to their memory until Release. One goroutine uses it at
// a time, also another than its worker's.
type Lease struct {
	w   *Worker
	set *transient.FetchSet
}

// Release frees the memory of all fetches and gives their bytes back to the budget; what was
// released before is not again.
func (l *Lease) Release() { l.set.Release() }

// Handover makes another worker of the rank the one that holds the lease, or none with nil: the
// worker that had it may wait for the next set at once. The goroutine that uses that worker calls
// it.
func (l *Lease) Handover(to *Worker) {
	var o *flow.Owner
	if to != nil && to.job == l.w.job && to.enter("handover") == nil {
		o = fetcherOf(to).Owner()
		to.exit()
	}
	l.set.Handover(o)
}

// PendingSet is a set that was posted and not waited for. It must be waited for, or cancelled.
type PendingSet struct {
	w   *Worker
	set *transient.FetchSet
}

// Post queues the set behind those that were posted at this rank before, and does not wait: one
// posts ahead what it needs next. Nothing is asked for before Wait or Test. Errors: of what was
// added, or that the set was posted before; a *flow.SetTooLargeError ([ErrSetTooLarge]), also where
// the data of FetchFrom exceed ReceiveSize; [ErrBudgetClosed].
func (s *FetchSet) Post() (*PendingSet, error) {
	if err := s.set.Post(); err != nil {
		return nil, err
	}
	return &PendingSet{s.w, &s.set}, nil
}

// Submit is Post and Wait.
func (s *FetchSet) Submit(ctx context.Context) (*Lease, error) {
	p, err := s.Post()
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// Granted reports whether there are bytes for the set: Wait goes on to fetch then.
func (p *PendingSet) Granted() bool { return p.set.Granted() }

// Wait waits until there is memory for the set, asks for the data, and waits for them; the worker's
// lanes make progress meanwhile. After an error the set is over: its memory comes back when nothing
// writes to it any more, at the latest with the worker's next Flush or Close. Errors: a
// *flow.HoldAndWaitError; a *flow.MemoryStallError that names the holders of memory and wraps the
// cause of ctx, if that ends before there is memory; that cause; and what the first fetch failed
// with.
func (p *PendingSet) Wait(ctx context.Context) (*Lease, error) {
	if err := p.release(ctx, true); err != nil {
		return nil, err
	}
	return p.lease(true, p.set.Wait(ctx))
}

// Test is Wait that does not wait: without a lease and an error the set goes on. It makes progress
// once.
func (p *PendingSet) Test() (*Lease, error) {
	if err := p.release(p.w.ctx, false); err != nil {
		return nil, err
	}
	return p.lease(p.set.Test())
}

// release is the first half of a fence, and lease the second. With an error the set is over.
func (p *PendingSet) release(ctx context.Context, wait bool) error {
	err := p.w.enter("fetch")
	if err == nil {
		if wait {
			lockrank.CheckCommunication("fetch")
		}
		err = p.w.release(ctx)
		if wait && p.w.job.cfg.Handlers.InHandler() {
			err = fmt.Errorf("conduit: fetch: %w", am.ErrInHandler)
		}
		p.w.exit() // the lanes' operations take it
	}
	if err != nil {
		p.Cancel()
	}
	return err
}

func (p *PendingSet) lease(done bool, err error) (*Lease, error) {
	if err != nil || !done {
		return nil, err
	}
	p.w.job.learned()
	return &Lease{p.w, p.set}, nil
}

// Cancel ends the set, unless it has ended.
func (p *PendingSet) Cancel() { p.set.Cancel() }

// Each submits the set in parts, in order, each as large as the budget serves at once, and calls
// consume when the data of one are there; it is for sets that are larger than the budget. The data
// are released when consume returns. An error of consume ends it.
func (s *FetchSet) Each(ctx context.Context, consume func(*Lease) error) error {
	parts, err := s.set.Split()
	if err != nil {
		return err
	}
	for _, part := range parts {
		l, err := (&FetchSet{s.w, part}).Submit(ctx)
		if err != nil {
			return err
		}
		if err = use(l, consume); err != nil {
			return err
		}
	}
	return nil
}

func use(l *Lease, consume func(*Lease) error) error {
	defer l.Release()
	return consume(l)
}
