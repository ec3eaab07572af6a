package transient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/fabric"
)

// FetchSet is data of other ranks that are needed together. They are requested when there is memory
// for all of them. One goroutine uses a set, its worker's: it adds fetches, posts the set,
// waits for the data or cancels it. Any goroutine releases them.
type FetchSet struct {
	f    *Fetcher
	set  *flow.FetchSet
	gets []*getFetch
	runs *receiveRuns // of its messages; nil: it has none
	err  error        // of the fetches that were added, or that it was posted

	p *flow.Pending // once posted
	l *flow.Lease   // once the data are there
}

// NewFetchSet begins a set of a worker. Its errors come with Post.
func NewFetchSet(f *Fetcher) FetchSet {
	s := FetchSet{f: f}
	switch err := f.w.Open("fetch set"); {
	case err != nil:
		s.err = err
	case f.m.budget == nil:
		s.err = errNoBudget("fetch set", remedyBudget)
	default:
		s.set = f.Owner().NewFetchSet()
	}
	return s
}

// Fetched is the outcome of one fetch.
type Fetched struct {
	data  []byte // nil unless there is a lease of it
	lease *flow.Lease
	index int
}

// Data are its bytes, from the lease to its release, and nil at other times.
func (f *Fetched) Data() []byte { return f.data }

// Release is the set's Release of this fetch alone.
func (f *Fetched) Release() {
	if f.lease != nil {
		f.data = nil
		f.lease.ReleaseOne(f.index)
	}
}

// Fail has Post return an error, the first one.
func (s *FetchSet) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// Get adds a get of n bytes of a rank's user region. A null pointer has the rank -1.
func (s *FetchSet) Get(out *Fetched, rank int, off uint64, n int) {
	if s.err != nil || n == 0 {
		return
	}
	g := &getFetch{f: s.f, rank: rank, off: off, n: n, out: out}
	s.gets = append(s.gets, g)
	s.add(g, out)
}

// From adds at most n bytes, from 1 up, that the function of that name at a rank makes.
func (s *FetchSet) From(out *Fetched, rank int, name string, n int, args []uint64) {
	if s.err != nil {
		return
	}
	m := s.f.m
	switch {
	case m.region == nil:
		s.err = errNoBudget("fetch", remedyReceive)
	case rank < 0 || rank >= m.env.Size():
		s.err = &fabric.RankError{Op: "fetch", Rank: rank, Size: m.env.Size()}
	case n == 0:
		s.err = fmt.Errorf("conduit: fetch %q: 0 bytes, want 1 or more", name)
	case len(args) > maxFetchArgs:
		s.err = fmt.Errorf("conduit: fetch %q: %d arguments, want at most %d", name, len(args), maxFetchArgs)
	default:
		s.addMessage(&messageFetch{m: m, rank: rank, name: name, n: n, args: slices.Clone(args), out: out})
	}
}

func (s *FetchSet) addMessage(f *messageFetch) {
	if s.runs == nil {
		s.runs = &receiveRuns{m: s.f.m}
		s.set.Placed()
	}
	f.runs = s.runs
	s.runs.fetches = append(s.runs.fetches, f)
	s.add(f, f.out)
}

func (s *FetchSet) add(f flow.Fetch, out *Fetched) {
	out.index = s.set.Len()
	s.set.Fetch(f) // sizes are checked
}

// Bytes is the memory that the set needs at once: each fetch's in whole pages.
func (s *FetchSet) Bytes() int64 {
	if s.set == nil {
		return 0
	}
	return s.set.Bytes()
}

// outs calls f for the outcome of each fetch.
func (s *FetchSet) outs(f func(*Fetched)) {
	for _, g := range s.gets {
		f(g.out)
	}
	if s.runs != nil {
		for _, m := range s.runs.fetches {
			f(m.out)
		}
	}
}

// Post queues the set behind those that were posted at this rank before, and does not wait. Nothing
// is requested before Wait or Test.
func (s *FetchSet) Post() error {
	if err := s.mayPost(); err != nil {
		return err
	}
	if s.runs != nil {
		if n, most := s.runs.bytes(), s.f.m.region.Bytes(); n > most {
			return fmt.Errorf("conduit: fetch set: in the memory that other ranks write (Config.Memory.ReceiveSize): %w",
				&flow.SetTooLargeError{Need: int64(n), Limit: int64(most), Fetches: len(s.runs.fetches)})
		}
	}
	p, err := s.set.Post()
	if err != nil {
		return err
	}
	s.err, s.p = errSetPosted, p
	if s.runs != nil {
		s.runs.p = p
	}
	return nil
}

func (s *FetchSet) mayPost() error {
	if s.err != nil {
		return s.err
	}
	return s.f.w.Open("fetch set")
}

// errSetPosted is the error of a set that is posted once more. A fetch that is added to it has no
// data.
var errSetPosted = errors.New("conduit: the set was posted before: make another")

// Granted reports whether there are bytes for the set: Wait goes on to fetch then.
func (s *FetchSet) Granted() bool { return s.p.Granted() }

// Wait waits until there is memory for the set, requests the data, and waits for them. After an
// error the set is over: its memory comes back when nothing writes to it any more.
func (s *FetchSet) Wait(ctx context.Context) error {
	if s.runs != nil {
		if err := s.runs.wait(); err != nil {
			s.Cancel()
			return err
		}
	}
	l, err := s.p.Wait(ctx)
	return s.ended(l, err)
}

// Test is Wait that does not wait: done says whether the data are there. It makes progress once.
func (s *FetchSet) Test() (done bool, err error) {
	s.f.reap()
	if s.runs != nil {
		for _, e := range s.f.m.env.Endpoints() {
			_, _ = e.Test() // its error is the set's too, if it matters
		}
	}
	l, err := s.p.Test()
	if err == nil && l == nil {
		if err = s.f.failure(); err == nil {
			return false, nil
		}
		s.p.Cancel()
	}
	err = s.ended(l, err)
	return err == nil, err
}

// Cancel ends the set, unless it has ended.
func (s *FetchSet) Cancel() {
	s.p.Cancel()
	s.abandoned()
}

// ended has the data valid, or gives up the gets that are in flight.
func (s *FetchSet) ended(l *flow.Lease, err error) error {
	if err != nil {
		s.abandoned()
		return err
	}
	s.l = l
	for _, g := range s.gets {
		g.out.data, g.out.lease = g.mem[:g.n], l
	}
	if s.runs != nil {
		s.runs.lease(l)
	}
	return nil
}

// drainFor is how long a set that failed waits for gets that are in flight: they take microseconds
// unless their rank is dead or silent.
const drainFor = 10 * time.Millisecond

// abandoned gives back what gets of a set had that is over, and that end soon.
func (s *FetchSet) abandoned() {
	if len(s.gets) > 0 && s.f.w.Open("fetch set") == nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainFor)
		defer cancel()
		for s.f.wait(ctx) == nil {
		}
	}
}

// Release frees the memory of all fetches, which have their data, and gives their bytes back to the
// budget; earlier released ones are left alone.
func (s *FetchSet) Release() {
	s.outs(func(f *Fetched) { f.data = nil })
	s.l.Release()
}

// Handover has another owner hold the data, or none with nil.
func (s *FetchSet) Handover(to *flow.Owner) { s.l.Handover(to) }

// Split divides a set into parts that can be served, in the order in which its fetches were added.
// The set itself is as if it were posted.
func (s *FetchSet) Split() (parts []FetchSet, err error) {
	if err := s.mayPost(); err != nil {
		return nil, err
	}
	s.err = errSetPosted
	m := s.f.m
	most, messages := m.budget.Largest(), m.cfg.Budget.Messages
	var part *FetchSet
	for i := range s.set.Len() {
		f := s.set.At(i)
		n := f.Bytes()
		if part == nil || n > most-part.set.Bytes() || messages > 0 && part.set.Len() >= messages || part.overflows(f) {
			parts = append(parts, NewFetchSet(s.f))
			part = &parts[len(parts)-1]
		}
		switch f := f.(type) {
		case *getFetch:
			part.gets = append(part.gets, f)
			part.add(f, f.out)
		case *messageFetch:
			part.addMessage(f)
		}
	}
	return parts, nil
}

// overflows reports whether a fetch would have the set's messages exceed the memory that other
// ranks write.
func (s *FetchSet) overflows(f flow.Fetch) bool {
	m, ok := f.(*messageFetch)
	return ok && s.runs != nil && s.runs.bytes()+uint64(m.Bytes()) > m.m.region.Bytes()
}
