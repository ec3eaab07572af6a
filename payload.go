package conduit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// SendPayload in messages, all of the library's endpoints:
//
//	conduit.payload           a payload that is announced (am.Large): hash of the name, arguments
//	conduit.payload.unasked   one that came unasked, a Medium: hash of the name, arguments
//	conduit.payload.consumed  to who sends: how many bytes that came unasked were consumed in all,
//	                          how many may be unconsumed
//
// A sender sends nothing unasked before a receiver has told it the second, nor under a name that
// the receiver did not say in Join that it has (hello): what is announced is refused with an error.
const (
	payloadName  = "conduit.payload"
	unaskedName  = "conduit.payload.unasked"
	consumedName = "conduit.payload.consumed"

	maxPayloadArgs = am.MaxArgs - 2
	// minUnasked is what a payload that comes unasked counts at least: it has a goroutine.
	minUnasked = 512
	// maxAllowance bounds what a sender believes it may send unasked.
	maxAllowance = 1 << 20
)

// payloadProtocol is SendPayload, as sender and as receiver, under transient.mu.
type payloadProtocol struct {
	takers   map[uint64]named[*Payload]
	taken    [][]uint64 // by rank, hashes of the names that it has, ascending; fixed in Join
	payload  *am.Large
	unasked  *am.Handler
	consumed *am.Handler

	arriving map[*am.Announcement]*Payload
	senders  map[int]*flow.UnaskedSender // to each rank that allows some
	told     map[int]uint64              // what each rank knows to be consumed
}

func (t *transient) registerPayloads(table *am.Table) {
	t.payload = table.HandleLarge(payloadName, am.Receiver{Announced: t.offered, Ended: t.delivered})
	t.unasked = table.Handle(unaskedName, t.cameUnasked)
	t.consumed = table.Handle(consumedName, t.hasConsumed)
}

func (t *transient) openPayloads() {
	t.takers = byHash(t.cfg.Payloads)
	t.arriving = map[*am.Announcement]*Payload{}
	t.senders, t.told = map[int]*flow.UnaskedSender{}, map[int]uint64{}
}

// takes notes which names a rank has, of ranks in their order. Those that have the same share them.
func (t *transient) takes(rank int, names []uint64) {
	if rank > 0 && slices.Equal(names, t.taken[rank-1]) {
		names = t.taken[rank-1]
	}
	t.taken = append(t.taken, names)
}

// SendPayload sends a payload to the function of that name at a rank (MemoryConfig.Payloads), with
// at most 14 arguments, and returns when it may be reused. The receiver's budget has memory for it
// before it is sent: SendPayload waits until then, holding nothing, and ranks that send to one have
// equal parts of its memory. A short payload goes at once where the receiver allows it. Payloads
// may arrive in any order. The end of ctx withdraws a payload that was not sent. Any goroutine may
// call it, but no handler. Errors: an *am.RefusedError with the receiver's reason (no such
// function, larger than its budget or its ReceiveSize); a *PeerDownError; as of [am.Large.Send].
func SendPayload(ctx context.Context, v am.Via, rank int, name string, payload []byte, args ...uint64) error {
	var j *Job
	switch v := v.(type) {
	case *Job:
		j = v
	case *Worker:
		if err := v.enter("send payload"); err != nil {
			return err
		}
		defer v.exit()
		if err := v.fences.release(ctx); err != nil {
			return err
		}
		j = v.job
	default:
		return fmt.Errorf("conduit: send payload %q: %w", name, am.ErrNoEndpoint)
	}
	t := j.memory
	switch {
	case j.members.has(left):
		return errClosed("send payload", "job")
	case t.region == nil:
		return errNoBudget("send payload", remedyReceive)
	case rank < 0 || rank >= j.size:
		return &RankError{Op: "send payload", Rank: rank, Size: j.size}
	case len(args) > maxPayloadArgs:
		return fmt.Errorf("conduit: send payload %q: %d arguments, want at most %d", name, len(args), maxPayloadArgs)
	}
	args = append([]uint64{nameHash(name)}, args...)
	var err error
	if t.takeUnasked(rank, args[0], len(payload)) {
		if err = t.unasked.PostWith(ctx, t.via(), rank, am.Medium(payload), args...); err != nil {
			t.untake(rank, len(payload))
		}
	} else {
		err = t.payload.Send(ctx, t.via(), rank, payload, args...)
	}
	if err != nil {
		return fmt.Errorf("conduit: payload %q to rank %d: %w", name, rank, err)
	}
	return nil
}

func charged(n int) int64 { return int64(max(n, minUnasked)) }

// takeUnasked reports whether a payload may go unasked, which is counted then.
func (t *transient) takeUnasked(rank int, name uint64, n int) bool {
	e := t.via().Endpoint(rank)
	if e == nil || n > e.MaxMedium() {
		return false
	}
	if _, taken := slices.BinarySearch(t.taken[rank], name); !taken {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.senders[rank]
	return s != nil && s.Take(charged(n))
}

func (t *transient) untake(rank, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.senders[rank]; s != nil {
		s.Untake(charged(n))
	}
}

// hasConsumed is the handler of what a receiver has consumed of this rank's.
func (t *transient) hasConsumed(c *am.Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.senders[c.From()]
	if s == nil {
		s = flow.NewUnaskedSender(int64(min(c.Arg(1), maxAllowance)))
		t.senders[c.From()] = s
	}
	if err := s.Consumed(c.From(), c.Arg(0)); err != nil {
		t.job.cfg.Logger.Warn("payloads", "rank", c.From(), "error", err)
	}
}

// Payload is what another rank has sent (MemoryConfig.Payloads), in memory of this rank's budget.
type Payload struct {
	t        *transient
	from     int
	args     []uint64
	data     []byte
	released atomic.Bool
	asked    bool // it was announced, and the rest is set

	a     *am.Announcement
	offer *flow.Offer

	// Under transient.mu.
	claim   *pagepool.Claim
	off     uint64
	placing bool // a run was asked for
	placed  bool
	over    bool // it does not come
}

// Job is the job of the rank that has the payload.
func (p *Payload) Job() *Job { return p.t.job }

// From is the rank that sent it.
func (p *Payload) From() int { return p.from }

// Args are its arguments.
func (p *Payload) Args() []uint64 { return p.args }

// Arg returns argument i, and 0 for one that there is not.
func (p *Payload) Arg(i int) uint64 {
	if uint(i) >= uint(len(p.args)) {
		return 0
	}
	return p.args[i]
}

// Data is the payload, until Release; nil afterwards. It may be written.
func (p *Payload) Data() []byte {
	if p.released.Load() {
		return nil
	}
	return p.data
}

// Release gives the memory back to the budget. A second call does nothing. Nothing may use the data
// any more.
func (p *Payload) Release() {
	if p.released.Swap(true) {
		return
	}
	if p.asked {
		p.t.region.Give(p.off, p.a.Size())
		p.offer.Release()
		return
	}
	n := charged(len(p.data))
	p.data = nil
	p.t.tell(p.from, p.t.budget.Consumed(p.from, n))
}

// tell has a sender know what was consumed of what it sent unasked, the first time, and then when
// it is half of what it may send.
func (t *transient) tell(rank int, total uint64) {
	allowance := t.budget.Allowance()
	t.mu.Lock()
	before, known := t.told[rank]
	due := rank != t.job.rank && allowance >= minUnasked && (!known || total >= before+uint64(allowance)/2)
	if due {
		t.told[rank] = total
	}
	t.mu.Unlock()
	if due {
		go func() { // a message may wait for a credit; one that is lost the next makes good
			_ = t.consumed.Post(t.job.life, t.via(), rank, total, uint64(allowance))
		}()
	}
}

// errNoTaker refuses a payload.
var errNoTaker = errors.New("it has no function of this name (Config.Memory.Payloads)")

// offered asks the budget, and then the region, for a payload that is announced.
func (t *transient) offered(a *am.Announcement) {
	if _, ok := t.takers[a.Arg(0)]; !ok {
		_ = a.Refuse(errNoTaker)
		return
	}
	size := pagepool.Round(uint64(max(a.Size(), 1)))
	if size > t.region.Bytes() {
		_ = a.Refuse(fmt.Errorf("conduit: in the memory that other ranks write (Config.Memory.ReceiveSize): %w",
			&flow.SetTooLargeError{Need: int64(size), Limit: int64(t.region.Bytes()), Fetches: 1}))
		return
	}
	p := &Payload{t: t, from: a.From(), args: a.Args()[min(1, len(a.Args())):], asked: true, a: a}
	t.mu.Lock()
	t.arriving[a] = p
	t.mu.Unlock()
	offer, err := t.budget.Offer(a.From(), int64(size), p.place)
	if err != nil {
		t.mu.Lock()
		delete(t.arriving, a)
		t.mu.Unlock()
		_ = a.Refuse(err)
		return
	}
	p.offer = offer // delivered comes after this function
}

// place takes a run for a payload whose bytes are granted.
func (p *Payload) place(o *flow.Offer) {
	t := p.t
	if err := o.Err(); err != nil {
		_ = p.a.Refuse(err) // an error is that it has ended
		t.mu.Lock()
		delete(t.arriving, p.a)
		t.mu.Unlock()
		return
	}
	t.mu.Lock()
	p.placing = !p.over
	over := p.over
	t.mu.Unlock()
	if over {
		return
	}
	o.WaitsForPlace(true)
	c := t.region.Take([]int{p.a.Size()}, func(offs []uint64) {
		o.WaitsForPlace(false)
		t.mu.Lock()
		over := p.over
		p.off, p.placed = offs[0], !over
		t.mu.Unlock()
		if over {
			t.region.Give(offs[0], p.a.Size())
			p.offer.Release()
			return
		}
		_ = p.a.Grant(t.region.begin + offs[0]) // an error is that it has ended: delivered learns of it
	})
	t.mu.Lock()
	p.claim = c
	over = p.over
	t.mu.Unlock()
	if over && c.Cancel() {
		p.offer.Release()
	}
}

// delivered is told how a payload ended that was announced.
func (t *transient) delivered(a *am.Announcement, err error) {
	t.mu.Lock()
	p := t.arriving[a]
	delete(t.arriving, a)
	t.mu.Unlock()
	switch {
	case p == nil: // refused
	case err != nil:
		p.withdraw()
	default:
		t.tell(p.from, 0) // the first time, what it may send unasked
		p.data = t.region.Memory(p.off, a.Size())
		p.run(t.takers[a.Arg(0)])
	}
}

// withdraw gives back what a payload had that does not come: its memory before its bytes. While a
// run is being taken for it, who takes it does so.
func (p *Payload) withdraw() {
	p.t.mu.Lock()
	p.over = true
	claim, placing, placed := p.claim, p.placing, p.placed
	p.t.mu.Unlock()
	if placed {
		p.t.region.Give(p.off, p.a.Size())
	}
	if placed || !placing || claim != nil && claim.Cancel() {
		p.offer.Release()
	}
}

// run has the program take a payload. One whose function panics is released.
func (p *Payload) run(f named[*Payload]) {
	called(p.t.job, func() { f.call(p) }, func(failure any) {
		p.Release()
		p.t.job.cfg.Logger.Warn("payloads", "name", f.name, "rank", p.from, "panic", fmt.Sprint(failure))
	})
}

// cameUnasked is the handler of a payload that was not announced.
func (t *transient) cameUnasked(c *am.Call) {
	n := charged(len(c.Payload()))
	if err := t.budget.Unasked(c.From(), n); err != nil {
		t.job.cfg.Logger.Warn("payloads", "rank", c.From(), "dropped", err)
		return
	}
	t.pages.Fit(t.most())
	p := &Payload{t: t, from: c.From(), args: append([]uint64(nil), c.Args()[min(1, c.Len()):]...), data: append([]byte{}, c.Payload()...)}
	f, ok := t.takers[c.Arg(0)]
	if !ok {
		t.job.cfg.Logger.Warn("payloads", "rank", c.From(), "dropped", errNoTaker)
		p.Release()
		return
	}
	c.Go(func() { p.run(f) })
}

// payloadsDown forgets what a rank that is dead was told, and may be sent.
func (t *transient) payloadsDown(rank int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.senders, rank)
	delete(t.told, rank)
}
