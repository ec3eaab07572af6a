package flow

import (
	"fmt"
	"math"

	"github.com/ibconduit/conduit/internal/queue"
)

// Offer is a payload that a rank wants to send here: a request to send. Its bytes are granted in
// its turn, then the data may come, and Release gives the bytes back when they are consumed. Until
// then it counts, also when the data never come.
type Offer struct {
	claim   claim
	b       *Budget
	source  *source
	granted func(*Offer)
	link    queue.Link[Offer]
	told    bool // granted was called, or is about to be
}

// Offer claims bytes for a payload that a rank announces. granted is called once when they are
// granted, perhaps before Offer returns, or will not be as the budget is closed (Err), unless the
// offer is released before or the rank is down. It may be called from any goroutine that gives
// bytes back, without locks, and must not block: it makes the memory and grants it to the sender.
// An error is a *SetTooLargeError or ErrBudgetClosed: then the payload is to be refused.
//
// Among ranks that offer, the bytes are shared equally, whatever the sizes of their payloads; those
// of one rank are granted in the order of their offers. An offer has its place among the sets.
func (b *Budget) Offer(rank int, bytes int64, granted func(*Offer)) (*Offer, error) {
	o := &Offer{b: b, granted: granted}
	o.claim.bytes, o.claim.messages, o.claim.offer = bytes, 1, o
	b.mu.Lock()
	if err := b.refusalLocked(bytes, 1); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	o.claim.since = b.cfg.Now()
	o.source = b.offers.source(rank)
	if o.source.waiting.Len() == 0 {
		if from := b.atOnceLocked(bytes, 1); from != nil {
			b.offers.charge(o)
			b.grantLocked(&o.claim, from)
			b.due = append(b.due, o)
			b.unlock()
			return o, nil
		}
	}
	o.claim.state = claimWaiting
	b.stats.Queued++
	b.waited = true
	b.offers.add(&b.ledger, o)
	b.unlock()
	return o, nil
}

// Rank is the one that offers.
func (o *Offer) Rank() int { return o.source.rank }

// Bytes is the size of the payload.
func (o *Offer) Bytes() int64 { return o.claim.bytes }

// Err is why an offer is not granted, if the budget was closed before, and nil otherwise.
func (o *Offer) Err() error {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	return o.claim.err
}

// Release withdraws an offer that waits, and gives back the bytes of one that was granted. A second
// call does nothing.
func (o *Offer) Release() {
	b := o.b
	b.mu.Lock()
	defer b.unlock()
	switch o.claim.state {
	case claimWaiting:
		b.offers.remove(&b.ledger, o)
		b.serveLocked()
	case claimGranted:
		b.giveBackLocked(&o.claim, o.claim.left)
		o.claim.state = claimOver // also without bytes
	}
}

// report calls granted, unless the offer was released meanwhile.
func (o *Offer) report() {
	o.b.mu.Lock()
	call := (o.claim.state == claimGranted || o.claim.err != nil) && !o.told
	o.told = o.told || call
	o.b.mu.Unlock()
	if call {
		o.granted(o)
	}
}

// offers are the ranks that want to send. Which is next follows start-time fair queueing (Goyal,
// Vin, Cheng 1996): each rank has a clock that its bytes move on, and the one that is furthest back
// is next. A rank that comes anew begins where the others are, so idling saves up nothing.
//
// An offer that waits has a place in the budget's queue, as a set has. The rank that is served when
// a place comes first is decided then.
type offers struct {
	places  queue.List[claim] // as many as offers wait, in the order of the queue
	ranks   map[int]*source
	ready   queue.Heap[*source] // those with waiting offers, the next one first
	virtual int64               // where the rank was that was served last
	order   uint64              // of arrival
}

type source struct {
	rank    int
	waiting queue.List[Offer]
	start   int64 // its clock
	order   uint64
	at      int // in ready
}

// Before is the order in which ranks are served.
func (r *source) Before(o *source) bool {
	return r.start < o.start || r.start == o.start && r.order < o.order
}

// Place is where ready notes it.
func (r *source) Place() *int { return &r.at }

func (s *offers) init() { s.ranks = map[int]*source{} }

func (s *offers) source(rank int) *source {
	r := s.ranks[rank]
	if r == nil {
		r = &source{rank: rank, start: s.virtual}
		s.ranks[rank] = r
	}
	return r
}

// charge moves a rank's clock on by an offer.
func (s *offers) charge(o *Offer) {
	r := o.source
	s.virtual = max(s.virtual, r.start)
	r.start = max(r.start, s.virtual) + max(o.claim.bytes, 1)
	if s.virtual > math.MaxInt64/4 || r.start > math.MaxInt64/2 { // after exabytes: all begin anew
		s.virtual = 0
		for _, r := range s.ranks {
			if r.start = 0; r.at > 0 {
				s.ready.Fix(r)
			}
		}
	}
}

func (s *offers) add(b *ledger, o *Offer) {
	r := o.source
	r.waiting.Add(&o.link, o)
	if r.at == 0 {
		s.order++
		r.start, r.order = max(r.start, s.virtual), s.order
		s.ready.Add(r)
	}
	place := &claim{place: true}
	b.queue.Add(&place.turn, place)
	s.places.Add(&place.short, place)
	b.serveLocked() // it may be another's offer that fits
}

// serve grants the next offer, for the place that is the first in the queue, if it fits.
func (s *offers) serve(b *ledger) bool {
	o := s.first()
	if !b.fitsLocked(o.claim.bytes, 1) {
		return false
	}
	s.take(o, s.places.First())
	s.charge(o)
	if o.source.at > 0 {
		s.ready.Fix(o.source)
	}
	b.grantLocked(&o.claim, &b.bulk)
	b.due = append(b.due, o)
	return true
}

// first is the next offer to be served.
func (s *offers) first() *Offer {
	if s.ready.Len() == 0 {
		return nil
	}
	return s.ready.First().waiting.First()
}

// take has an offer wait no more, and gives up a place.
func (s *offers) take(o *Offer, place *claim) {
	r := o.source
	o.link.Leave()
	place.turn.Leave()
	place.short.Leave()
	if r.waiting.Len() == 0 {
		s.ready.Remove(r)
	}
}

// remove ends an offer that waits. The others keep the places that came first.
func (s *offers) remove(b *ledger, o *Offer) {
	s.take(o, s.places.Last())
	o.claim.state = claimOver
	b.stats.Cancelled++
}

func (s *offers) down(b *ledger, rank int) {
	if r := s.ranks[rank]; r != nil {
		for o := r.waiting.First(); o != nil; o = r.waiting.First() {
			s.remove(b, o)
		}
		delete(s.ranks, rank)
	}
}

// drop ends all offers that wait, which is reported.
func (s *offers) drop(b *ledger, err error) {
	for rank, r := range s.ranks {
		for o := r.waiting.First(); o != nil; o = o.link.Next() {
			o.claim.err = err
			b.due = append(b.due, o)
		}
		s.down(b, rank)
	}
}

// unasked is the account of the payloads that one peer sent without asking.
type unasked struct {
	held     int64
	consumed uint64 // in total
}

// Allowance is how many bytes each peer may have sent unasked and not consumed. Each has the same
// part of BudgetConfig.Unscheduled, which nothing else uses, so what comes needs no grant.
func (b *Budget) Allowance() int64 {
	if b.cfg.Peers == 0 {
		return 0
	}
	return b.cfg.Unscheduled / int64(b.cfg.Peers)
}

// Unasked takes a payload of n bytes that a rank sent without asking. An error is a
// *ViolationError: the rank has no such allowance, and the payload must not be kept.
func (b *Budget) Unasked(rank int, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.unasked[rank]
	var held int64
	if u != nil {
		held = u.held
	}
	left := b.Allowance() - held
	if u == nil && len(b.unasked) >= b.cfg.Peers {
		left = 0 // of a rank that was not counted
	}
	if n < 0 || n > left {
		return &ViolationError{Peer: rank, Rule: "sends a payload unasked", Got: saturated(n), Limit: saturated(left)}
	}
	if u == nil {
		u = new(unasked)
		b.unasked[rank] = u
	}
	u.held += n
	b.unscheduled.held += n
	b.peakLocked()
	return nil
}

// Consumed gives back n bytes that a rank sent unasked. It returns how many it has had back in all,
// which its UnaskedSender is to learn; a message that was lost is made good by the next. It
// panics if the rank has sent less: then something was consumed twice.
func (b *Budget) Consumed(rank int, n int64) (total uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.unasked[rank]
	if u == nil {
		u = new(unasked)
	}
	if n < 0 || n > u.held {
		panic(fmt.Sprintf("flow: %d bytes of rank %d consumed, and it has %d here", n, rank, u.held))
	}
	u.held -= n
	u.consumed += uint64(n)
	b.unscheduled.held -= n
	return u.consumed
}

// UnaskedSender is a sender's side of an Allowance, for one receiver. One goroutine uses it at a
// time.
type UnaskedSender struct {
	allowance int64
	sent      uint64 // bytes in all
	consumed  uint64
}

// NewUnaskedSender begins with the receiver's Allowance.
func NewUnaskedSender(allowance int64) *UnaskedSender { return &UnaskedSender{allowance: allowance} }

// Take reports whether a payload of n bytes may go unasked; then it counts as sent. Else it is to
// be offered.
func (s *UnaskedSender) Take(n int64) bool {
	if n < 0 || n > s.allowance-int64(s.sent-s.consumed) {
		return false
	}
	s.sent += uint64(n)
	return true
}

// Untake takes back a Take of n bytes that were not sent after all.
func (s *UnaskedSender) Untake(n int64) { s.sent -= uint64(n) }

// Consumed takes the bytes that the receiver says it has consumed in all. Late and repeated totals
// change nothing. An error is a *ViolationError.
func (s *UnaskedSender) Consumed(rank int, total uint64) error {
	if total > s.sent {
		return &ViolationError{Peer: rank, Rule: "consumed more than it was sent unasked",
			Got: saturated(int64(min(total, math.MaxInt64))), Limit: saturated(int64(s.sent))}
	}
	s.consumed = max(s.consumed, total)
	return nil
}

// saturated is n in the 32 bits of a ViolationError.
func saturated(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
