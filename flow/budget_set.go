package flow

import (
	"context"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/queue"
)

// Fetch brings bytes from a rank to this one, into memory that it makes when it starts: a get, or
// an active message to a handler that sends data. Packages above implement it; all functions return
// without waiting, and are called without locks.
type Fetch interface {
	// Rank is where the bytes come from.
	Rank() int
	// Bytes is how much memory the fetch takes from Start to Free, at least 0, and always the same.
	Bytes() int64
	// Start makes the memory and begins the transfer. It is called at most once, when the bytes are
	// granted, by the goroutine that waits for the set. ended is called once, by any goroutine:
	// with nil when the data are there, else with the reason when nothing can write to the memory any
	// more. A fetch from a rank that dies ends as well.
	Start(ended func(error))
	// Cancel requests that a started fetch ends soon, at most once. It may come after the end.
	Cancel()
	// Free gives the memory back, once, after the end of a fetch that was started.
	Free()
}

// FetchSet is fetches that are needed together, R = {F1..Fn, W} of the paper. Its bytes are granted
// all at once or not at all. One goroutine uses it, and posts it once.
type FetchSet struct {
	b       *Budget
	owner   *Owner
	fetches []Fetch
	bytes   int64
	placed  bool
	wrong   error
	posted  bool
}

// NewFetchSet begins a set of no owner: that it does not wait while its caller holds another set is
// the caller's duty, and not checked.
func (b *Budget) NewFetchSet() *FetchSet { return &FetchSet{b: b} }

// NewFetchSet begins a set.
func (o *Owner) NewFetchSet() *FetchSet { return &FetchSet{b: o.b, owner: o} }

// Fetch adds one to the set.
func (s *FetchSet) Fetch(f Fetch) {
	n := f.Bytes()
	if n < 0 || n > 1<<62-s.bytes {
		s.wrong = fmt.Errorf("flow: a fetch of %d bytes in a set of %d", n, s.bytes)
		return
	}
	s.fetches, s.bytes = append(s.fetches, f), s.bytes+n
}

// Len is the number of fetches.
func (s *FetchSet) Len() int { return len(s.fetches) }

// At is the i-th fetch, in the order in which they were added.
func (s *FetchSet) At(i int) Fetch { return s.fetches[i] }

// Bytes is the memory that the set needs at once.
func (s *FetchSet) Bytes() int64 { return s.bytes }

// Post queues the set, all of it in one place, and does not wait. Until the Pending is waited for
// no fetch starts. Errors are a *SetTooLargeError and ErrBudgetClosed.
func (s *FetchSet) Post() (*Pending, error) {
	switch {
	case s.wrong != nil:
		return nil, s.wrong
	case s.posted:
		return nil, errPosted
	}
	b := s.b
	p := &Pending{b: b, parts: make([]part, len(s.fetches))}
	p.bytes, p.messages, p.owner, p.pending = s.bytes, len(s.fetches), s.owner, p
	p.placed = s.placed
	for i, f := range s.fetches {
		p.parts[i] = part{fetch: f, bytes: f.Bytes()}
	}
	if s.owner != nil {
		p.parker = s.owner.parker
	} else {
		p.parker = b.cfg.NewParker()
	}
	b.mu.Lock()
	defer b.unlock()
	if err := b.refusalLocked(s.bytes, len(s.fetches)); err != nil {
		return nil, err
	}
	s.posted = true
	b.postLocked(&p.claim)
	return p, nil
}

// Submit is Post and Wait.
func (s *FetchSet) Submit(ctx context.Context) (*Lease, error) {
	p, err := s.Post()
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// Each submits the set in parts, in order, each as large as the budget serves at once, and has
// consume use each. The lease of a part is released when consume returns, before the next is
// posted. A single fetch that is too large is a *SetTooLargeError, before anything is fetched.
func (s *FetchSet) Each(ctx context.Context, consume func(*Lease) error) error {
	most := s.b.Largest()
	switch {
	case s.wrong != nil:
		return s.wrong
	case s.posted:
		return errPosted
	}
	for _, f := range s.fetches {
		if n := f.Bytes(); n > most {
			return &SetTooLargeError{Need: n, Limit: most, Fetches: 1}
		}
	}
	s.posted = true
	for rest := s.fetches; len(rest) > 0; {
		part := &FetchSet{b: s.b, owner: s.owner, placed: s.placed}
		for len(rest) > 0 && rest[0].Bytes() <= most-part.bytes &&
			(len(part.fetches) < s.b.cfg.Messages || s.b.cfg.Messages == 0) {
			part.Fetch(rest[0])
			rest = rest[1:]
		}
		lease, err := part.Submit(ctx)
		if err != nil {
			return err
		}
		err = func() error {
			defer lease.Release()
			return consume(lease)
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

var (
	errPosted = errors.New("flow: the set was posted before: make another")
	errDone   = errors.New("flow: the set has come to its end before")
)

// Pending is a set that was posted. One goroutine waits for it, or cancels it; it must do either.
type Pending struct {
	claim // of all its bytes
	b     *Budget

	parts     []part
	starting  bool  // the fetches are started, or were
	inFlight  int   // fetches that were started and have not ended
	failed    error // of the first fetch that failed, or of the wait
	lent      bool  // a Lease has the parts
	abandoned bool
}

// part is a fetch of a set. Its bytes come back once, when it is over.
type part struct {
	fetch Fetch
	bytes int64
	state partState
}

type partState uint8

const (
	partNew     partState = iota // has no memory
	partStarted                  // the transfer goes on
	partEnded                    // has memory that nothing writes to
	partOver
)

// Granted reports whether the bytes are granted: Wait then goes on to fetch at once.
func (p *Pending) Granted() bool {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	return p.state == claimGranted
}

// Reserved reports whether the bytes that are granted are the reserve's.
func (p *Pending) Reserved() bool {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	return p.from == &p.b.reserve
}

// Wait waits for the bytes, starts the fetches and waits for their data. It lets others progress
// as its owner's parker does. After an error the set is over: the memory of each fetch is freed and
// its bytes come back when it has ended, which may be later. Errors: *HoldAndWaitError,
// ErrBudgetClosed, ErrWithdrawn; a *MemoryStallError that wraps the cause of ctx, if it ends before
// the grant, or a place in a region; that cause; and what a fetch ended with.
func (p *Pending) Wait(ctx context.Context) (*Lease, error) {
	lockrank.MustHoldNone("flow: Pending.Wait")
	err := p.mayWait()
	if err == nil {
		if err := p.b.await(ctx, &p.claim); err != nil {
			return nil, err
		}
		err = context.Cause(ctx)
	}
	for {
		if err != nil {
			p.abandon(p.unplaced(ctx, err))
		}
		if lease, err := p.Test(); lease != nil || err != nil {
			return lease, err
		}
		err = p.parker.Park(ctx)
	}
}

// mayWait is why the owner may not wait; then the set is over, or to be abandoned if it is granted.
func (p *Pending) mayWait() error {
	b := p.b
	b.mu.Lock()
	defer b.unlock()
	err := b.mayWaitLocked(&p.claim)
	if err != nil {
		b.endLocked(&p.claim, err)
	}
	return err
}

// Test is Wait without waiting: it starts the fetches once their bytes are granted. Without a lease
// and an error the set goes on. Sets that the owner holds are not checked: to test again and
// again until there is a lease, with another in hand, is a wait that can last for ever.
func (p *Pending) Test() (*Lease, error) {
	b := p.b
	b.mu.Lock()
	err := p.err
	if p.lent {
		err = errDone
	}
	start := err == nil && p.state == claimGranted && !p.starting && p.failed == nil
	p.starting = p.starting || start
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if start {
		p.start()
	}
	b.mu.Lock()
	if p.failed == nil && b.closed != nil && p.turn.In() == &b.placing {
		p.failed = b.closed
	}
	err = p.failed
	done := err == nil && p.starting && p.inFlight == 0
	p.lent = p.lent || done
	b.mu.Unlock()
	switch {
	case err != nil:
		p.abandon(err)
		return nil, err
	case done:
		return &Lease{p}, nil
	}
	return nil, nil
}

// start starts the fetches in order, until one fails, but all of those that are placed: their
// memory is taken at once, and comes back as each ends.
func (p *Pending) start() {
	for i := range p.parts {
		p.b.mu.Lock()
		if p.failed != nil && !p.placed {
			p.b.mu.Unlock()
			return
		}
		p.parts[i].state = partStarted
		p.unmakeLocked(-p.parts[i].bytes)
		p.inFlight++
		p.b.mu.Unlock()
		p.parts[i].fetch.Start(func(err error) { p.ended(i, err) })
	}
}

// unmakeLocked counts bytes of the limit that are granted and have no memory yet.
func (p *Pending) unmakeLocked(n int64) {
	if p.from != &p.b.reserve {
		p.b.unmade += n
	}
}

// ended takes the end of a fetch. A second one is a mistake of the Fetch, which could have memory
// freed that is written to.
func (p *Pending) ended(i int, err error) {
	b, t := p.b, &p.parts[i]
	b.mu.Lock()
	if t.state != partStarted {
		b.mu.Unlock()
		panic("flow: a fetch has ended twice")
	}
	t.state = partEnded
	p.inFlight--
	alone := p.failed != nil // the waiter is gone, or going
	if err != nil && p.failed == nil {
		p.failed = err
	}
	wake := p.inFlight == 0 || err != nil
	b.mu.Unlock()
	if alone {
		p.free(i)
	} else if wake {
		p.parker.Unpark()
	}
}

// abandon ends a set that was granted and has no lease: at once the fetches that have ended or
// never began, the others when they end.
func (p *Pending) abandon(err error) {
	b := p.b
	b.mu.Lock()
	if p.abandoned || p.lent || p.state != claimGranted {
		b.mu.Unlock()
		return
	}
	p.abandoned = true
	p.turn.Leave()
	p.changeOwnerLocked(nil) // which can do nothing about it any more
	if p.failed == nil {
		p.failed = err
	}
	var cancel []Fetch
	for i := range p.parts {
		if p.parts[i].state == partStarted {
			cancel = append(cancel, p.parts[i].fetch)
		}
	}
	b.mu.Unlock()
	for i := range p.parts {
		p.free(i)
	}
	for _, f := range cancel {
		f.Cancel()
	}
}

// free ends a part that no transfer writes to, once: first its memory, then its bytes.
func (p *Pending) free(i int) {
	b, t := p.b, &p.parts[i]
	b.mu.Lock()
	state := t.state
	if state == partNew || state == partEnded {
		t.state = partOver
	}
	b.mu.Unlock()
	if state == partEnded {
		t.fetch.Free()
	}
	if state == partNew || state == partEnded {
		b.mu.Lock()
		if state == partNew {
			p.unmakeLocked(-t.bytes)
		}
		b.giveBackLocked(&p.claim, t.bytes)
		b.unlock()
	}
}

// Cancel ends a set that is not waited for. It does nothing once there is a lease or an error.
func (p *Pending) Cancel() {
	b := p.b
	b.mu.Lock()
	b.endLocked(&p.claim, ErrWithdrawn)
	b.unlock()
	p.abandon(ErrWithdrawn)
}

// Lease is the data of a set, and the right to their memory until Release. It may be used by one
// goroutine at a time, also another than the one that fetched.
type Lease struct{ p *Pending }

// Len is the number of fetches.
func (l *Lease) Len() int { return len(l.p.parts) }

// Fetch is the i-th of the set, in the order in which they were added. Its data are valid until it
// is released.
func (l *Lease) Fetch(i int) Fetch { return l.p.parts[i].fetch }

// Release frees the memory of all fetches and gives their bytes back. Fetches released before are
// left alone.
func (l *Lease) Release() {
	for i := range l.p.parts {
		l.p.free(i)
	}
}

// ReleaseOne is Release of the i-th fetch.
func (l *Lease) ReleaseOne(i int) { l.p.free(i) }

// Handover makes another owner the one that holds the lease, or none with nil: one that hands its
// data to another goroutine may wait for the next set at once. It panics if that is of another
// budget.
func (l *Lease) Handover(to *Owner) {
	if to != nil && to.b != l.p.b {
		panic("flow: a lease is handed to an owner of another budget")
	}
	l.p.b.mu.Lock()
	defer l.p.b.mu.Unlock()
	l.p.changeOwnerLocked(to)
}

func (p *Pending) changeOwnerLocked(to *Owner) {
	p.owner = to
	if p.state == claimGranted && p.bytes > 0 {
		to.take(&p.claim)
	}
}

// Down ends the sets that wait, also for a place, and have fetches from a rank, with the cause of
// its death, which must not be nil, and the offers of that rank that wait. Fetches in flight and
// granted payloads end as their transport says; payloads that the rank had sent unasked are
// consumed as ever.
func (b *Budget) Down(rank int, cause error) {
	b.mu.Lock()
	defer b.unlock()
	b.offers.down(&b.ledger, rank)
	var dead []*claim
	for _, l := range []*queue.List[claim]{&b.queue, &b.nested} {
		for c := l.First(); c != nil; c = c.turn.Next() {
			if c.pending != nil && c.pending.fetchesFrom(rank) {
				dead = append(dead, c)
			}
		}
	}
	for _, c := range dead {
		b.endLocked(c, cause)
	}
	b.placingDownLocked(rank, cause)
	b.serveLocked()
}

func (p *Pending) fetchesFrom(rank int) bool {
	for i := range p.parts {
		if p.parts[i].fetch.Rank() == rank {
			return true
		}
	}
	return false
}
