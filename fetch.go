package conduit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// FetchSet is data of other ranks that are needed together. They are asked for when there is memory
// for all of them; the memory is the library's, outside of Go's heap. One goroutine uses a set,
// that of its worker, and submits or posts it once.
type FetchSet struct {
	w    *Worker
	set  *flow.FetchSet
	gets []*getFetch
	land *landing // of its messages; nil: it has none
	err  error    // of what was added, or that it was posted
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
	s := &FetchSet{w: w}
	switch {
	case w.peers == nil:
		s.err = errClosed("fetch set", "worker")
	case w.job.memory.budget == nil:
		s.err = errNoBudget("fetch set", remedyBudget)
	default:
		s.set = fetcherOf(w).owner.NewFetchSet()
	}
	return s
}

// Fetched is one fetch of a set, of a T that holds no Go pointers.
type Fetched[T any] struct{ fetched }

// fetched is what a fetch has brought.
type fetched struct {
	data  []byte // nil unless there is a lease of it
	lease *flow.Lease
	index int
}

// Data are the elements, valid from the lease to its release, and nil at other times. The memory
// may be written.
func (f *Fetched[T]) Data() []T {
	var v T
	if n := uint64(unsafe.Sizeof(v)); n > 0 && len(f.data) > 0 {
		return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(f.data))), uint64(len(f.data))/n)
	}
	return nil
}

// Release is [Lease.Release] of this fetch alone.
func (f *Fetched[T]) Release() {
	if f.lease != nil {
		f.data = nil
		f.lease.ReleaseOne(f.index)
	}
}

// FetchSlice adds a get of n elements from p on, at least 0. It takes whole pages of memory.
func FetchSlice[T any](s *FetchSet, p Ptr[T], n int) *Fetched[T] {
	out := &Fetched[T]{}
	size, err := fetchSize[T](n)
	if s.err == nil && err != nil {
		s.err = err
	}
	if s.err != nil || size == 0 {
		return out
	}
	g := &getFetch{w: s.w, from: Ptr[byte]{node: p.node, off: p.off}, n: size, out: &out.fetched}
	s.gets = append(s.gets, g)
	s.add(g, &out.fetched)
	return out
}

// FetchFrom adds what the function of that name (MemoryConfig.Fetches) at a rank makes: at most n
// elements, from 1 up. With it go at most 13 arguments. It takes whole pages of memory. It fails
// where that rank has 4096 requests of this one that it has not answered yet.
func FetchFrom[T any](s *FetchSet, rank int, name string, n int, args ...uint64) *Fetched[T] {
	out := &Fetched[T]{}
	size, err := fetchSize[T](n)
	switch {
	case s.err != nil:
		return out
	case err != nil:
	case s.w.job.memory.region == nil:
		err = errNoBudget("fetch", remedyReceive)
	case rank < 0 || rank >= s.w.job.size:
		err = &RankError{Op: "fetch", Rank: rank, Size: s.w.job.size}
	case size == 0:
		err = fmt.Errorf("conduit: fetch %q: 0 bytes, want 1 or more", name)
	case len(args) > maxFetchArgs:
		err = fmt.Errorf("conduit: fetch %q: %d arguments, want at most %d", name, len(args), maxFetchArgs)
	}
	if err != nil {
		s.err = err
		return out
	}
	if s.land == nil {
		s.land = &landing{t: s.w.job.memory}
		s.set.Placed()
	}
	f := &messageFetch{t: s.w.job.memory, land: s.land, rank: rank, name: name, n: size, args: slices.Clone(args), out: &out.fetched}
	s.land.fetches = append(s.land.fetches, f)
	s.add(f, &out.fetched)
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

func (s *FetchSet) add(f flow.Fetch, out *fetched) {
	out.index = s.set.Len()
	s.set.Fetch(f) // sizes are checked
}

// Bytes is the memory that the set needs at once: that of each fetch in whole pages.
func (s *FetchSet) Bytes() int64 {
	if s.set == nil {
		return 0
	}
	return s.set.Bytes()
}

// Lease is the data of a set, and the right to their memory until Release. One goroutine uses it at
// a time, also another than its worker's.
type Lease struct {
	l *flow.Lease
	s *FetchSet
}

// Release frees the memory of all fetches and gives their bytes back to the budget; what was
// released before is not again.
func (l *Lease) Release() {
	l.s.forget()
	l.l.Release()
}

// Handover makes another worker of the rank the one that holds the lease, or none with nil: the
// worker that had it may wait for the next set at once. The goroutine that uses that worker calls
// it.
func (l *Lease) Handover(to *Worker) {
	var o *flow.Owner
	if to != nil && to.job == l.s.w.job && to.enter("handover") == nil {
		o = fetcherOf(to).owner
		to.exit()
	}
	l.l.Handover(o)
}

// outs calls f for the outcome of each fetch.
func (s *FetchSet) outs(f func(*fetched)) {
	for _, g := range s.gets {
		f(g.out)
	}
	if s.land != nil {
		for _, m := range s.land.fetches {
			f(m.out)
		}
	}
}

func (s *FetchSet) forget() { s.outs(func(f *fetched) { f.data = nil }) }

// PendingSet is a set that was posted and not waited for. It must be waited for, or cancelled.
type PendingSet struct {
	s *FetchSet
	p *flow.Pending
}

// Post queues the set behind those that were posted at this rank before, and does not wait: one
// posts ahead what it needs next. Nothing is asked for before Wait or Test. Errors: of what was
// added, or that the set was posted before; a *flow.SetTooLargeError ([ErrSetTooLarge]), also where
// the data of FetchFrom exceed ReceiveSize; [ErrBudgetClosed].
func (s *FetchSet) Post() (*PendingSet, error) {
	switch {
	case s.err != nil:
		return nil, s.err
	case s.w.peers == nil:
		return nil, errClosed("fetch set", "worker")
	}
	if s.land != nil {
		if n := s.land.bytes(); n > s.w.job.memory.region.Bytes() {
			return nil, fmt.Errorf("conduit: fetch set: in the memory that other ranks write (Config.Memory.ReceiveSize): %w",
				&flow.SetTooLargeError{Need: int64(n), Limit: int64(s.w.job.memory.region.Bytes()), Fetches: len(s.land.fetches)})
		}
	}
	p, err := s.set.Post()
	if err != nil {
		return nil, err
	}
	s.err = errSetPosted
	if s.land != nil {
		s.land.p = p
	}
	return &PendingSet{s: s, p: p}, nil
}

// errSetPosted is that of a set that is posted once more; what is added to it has no data.
var errSetPosted = errors.New("conduit: the set was posted before: make another")

// Submit is Post and Wait.
func (s *FetchSet) Submit(ctx context.Context) (*Lease, error) {
	p, err := s.Post()
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// Granted reports whether there are bytes for the set: Wait goes on to fetch then.
func (p *PendingSet) Granted() bool { return p.p.Granted() }

// Wait waits until there is memory for the set, asks for the data, and waits for them; the worker's
// lanes make progress meanwhile. After an error the set is over: its memory comes back when nothing
// writes to it any more, at the latest with the worker's next Flush or Close. Errors: a
// *flow.HoldAndWaitError; a *flow.MemoryStallError that names the holders of memory and wraps the
// cause of ctx, if that ends before there is memory; that cause; and what the first fetch failed
// with.
func (p *PendingSet) Wait(ctx context.Context) (*Lease, error) {
	w := p.s.w
	if err := w.enter("fetch"); err != nil {
		p.Cancel()
		return nil, err
	}
	lockrank.CheckCommunication("fetch")
	err := w.fences.release(ctx)
	if w.job.cfg.Handlers.InHandler() {
		err = fmt.Errorf("conduit: fetch: %w", am.ErrInHandler)
	}
	w.exit() // the lanes' operations take it
	if err != nil {
		p.Cancel()
		return nil, err
	}
	if p.s.land != nil {
		if err := p.s.land.wait(); err != nil {
			p.Cancel()
			return nil, err
		}
	}
	l, err := p.p.Wait(ctx)
	return p.ended(l, err)
}

// Test is Wait that does not wait: without a lease and an error the set goes on. It makes progress
// once.
func (p *PendingSet) Test() (*Lease, error) {
	w := p.s.w
	if err := w.enter("fetch"); err != nil {
		p.Cancel()
		return nil, err
	}
	err := w.fences.release(w.ctx)
	w.exit()
	if err != nil {
		p.Cancel()
		return nil, err
	}
	f := fetcherOf(w)
	f.reap()
	if p.s.land != nil {
		for _, e := range w.job.library.all {
			_, _ = e.Test() // its error is the set's too, if it matters
		}
	}
	l, err := p.p.Test()
	if err == nil && l == nil {
		if err = f.failure(); err == nil {
			return nil, nil
		}
		p.p.Cancel()
	}
	return p.ended(l, err)
}

// Cancel ends the set, unless it has ended.
func (p *PendingSet) Cancel() {
	p.p.Cancel()
	p.s.abandoned()
}

// ended is what Wait and Test return.
func (p *PendingSet) ended(l *flow.Lease, err error) (*Lease, error) {
	if err != nil {
		p.s.abandoned()
		return nil, err
	}
	for _, g := range p.s.gets {
		g.out.data, g.out.lease = g.mem[:g.n], l
	}
	if p.s.land != nil {
		p.s.land.lease(l)
	}
	p.s.w.fences.learn()
	return &Lease{l, p.s}, nil
}

// drainFor is how long a set that failed waits for gets that are in flight: they take microseconds
// unless their rank is dead or silent.
const drainFor = 10 * time.Millisecond

// abandoned gives back what gets of a set had that is over, and that end soon.
func (s *FetchSet) abandoned() {
	if s.w.peers != nil && len(s.gets) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), drainFor)
		defer cancel()
		for fetcherOf(s.w).next(ctx, (*Pending).Wait) == nil {
		}
	}
}

// Each submits the set in parts, in order, each as large as the budget serves at once, and calls
// consume when the data of one are there; it is for sets that are larger than the budget. The data
// are released when consume returns. An error of consume ends it.
func (s *FetchSet) Each(ctx context.Context, consume func(*Lease) error) error {
	switch {
	case s.err != nil:
		return s.err
	case s.w.peers == nil:
		return errClosed("fetch set", "worker")
	}
	s.err = errSetPosted
	for _, part := range s.split() {
		l, err := part.Submit(ctx)
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

// split divides a set into parts that can be served, in the order in which its fetches were added.
func (s *FetchSet) split() (parts []*FetchSet) {
	t := s.w.job.memory
	most, messages := t.budget.Largest(), t.cfg.Budget.Messages
	var part *FetchSet
	for i := range s.set.Len() {
		f := s.set.At(i)
		n := f.Bytes()
		if part == nil || n > most-part.set.Bytes() || messages > 0 && part.set.Len() >= messages || part.overflows(f) {
			part = NewFetchSet(s.w)
			parts = append(parts, part)
		}
		switch f := f.(type) {
		case *getFetch:
			part.gets = append(part.gets, f)
			part.add(f, f.out)
		case *messageFetch:
			if part.land == nil {
				part.land = &landing{t: t}
				part.set.Placed()
			}
			f.land = part.land
			part.land.fetches = append(part.land.fetches, f)
			part.add(f, f.out)
		}
	}
	return parts
}

// overflows reports whether a fetch would have the set's messages exceed the memory that other
// ranks write.
func (s *FetchSet) overflows(f flow.Fetch) bool {
	m, ok := f.(*messageFetch)
	return ok && s.land != nil && s.land.bytes()+uint64(m.Bytes()) > m.t.region.Bytes()
}
