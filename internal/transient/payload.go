package transient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// SendPayload in messages, all of the library's endpoints:
//
//	conduit.payload           a payload that is announced (am.Large): hash of the name, arguments
//	conduit.payload.unasked   one that came unasked, a Medium: hash of the name, arguments
//	conduit.payload.consumed  to the sender: how many bytes that came unasked were consumed in all,
//	                          how many may be unconsumed
//
// A sender sends nothing unasked before it has the second from the receiver, nor under a name that
// the receiver did not say in Join that it has (hello): announced payloads are refused with an
// error.
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

// payloadProtocol is SendPayload, as sender and as receiver, under Memory.mu.
type payloadProtocol struct {
	receivers map[uint64]named[*Payload]
	taken     [][]uint64 // by rank, hashes of the names that it has, ascending; fixed in Join
	payload   *am.Large
	unasked   *am.Handler
	consumed  *am.Handler

	arriving map[*am.Announcement]*Payload
	senders  map[int]*flow.UnaskedSender // to each rank that allows some
	told     map[int]uint64              // what each rank knows to be consumed
}

func (m *Memory) registerPayloads(table *am.Table) {
	m.payload = table.HandleLarge(payloadName, am.Receiver{Announced: m.offered, Ended: m.delivered})
	m.unasked = table.Handle(unaskedName, m.cameUnasked)
	m.consumed = table.Handle(consumedName, m.hasConsumed)
}

func (m *Memory) openPayloads() {
	m.receivers = byHash(m.cfg.Payloads)
	m.arriving = map[*am.Announcement]*Payload{}
	m.senders, m.told = map[int]*flow.UnaskedSender{}, map[int]uint64{}
}

// Takes notes the hashes of a rank's names, ascending, of ranks in their order. Those that have the
// same share them.
func (m *Memory) Takes(rank int, names []uint64) {
	if rank > 0 && slices.Equal(names, m.taken[rank-1]) {
		names = m.taken[rank-1]
	}
	m.taken = append(m.taken, names)
}

// SendPayload sends a payload to the function of that name at a rank, and returns when it may be
// reused. The receiver's budget has memory for it before it is sent.
func (m *Memory) SendPayload(ctx context.Context, rank int, name string, payload []byte, args ...uint64) error {
	switch {
	case m.region == nil:
		return errNoBudget("send payload", remedyReceive)
	case rank < 0 || rank >= m.env.Size():
		return &fabric.RankError{Op: "send payload", Rank: rank, Size: m.env.Size()}
	case len(args) > maxPayloadArgs:
		return fmt.Errorf("conduit: send payload %q: %d arguments, want at most %d", name, len(args), maxPayloadArgs)
	}
	args = append([]uint64{Hash(name)}, args...)
	var err error
	if m.TakeUnasked(rank, args[0], len(payload)) {
		if err = m.unasked.PostWith(ctx, m.via(), rank, am.Medium(payload), args...); err != nil {
			m.Untake(rank, len(payload))
		}
	} else {
		err = m.payload.Send(ctx, m.via(), rank, payload, args...)
	}
	if err != nil {
		return fmt.Errorf("conduit: payload %q to rank %d: %w", name, rank, err)
	}
	return nil
}

func charged(n int) int64 { return int64(max(n, minUnasked)) }

// TakeUnasked reports whether a payload of n bytes to the function of a hash may go unasked, which
// is counted then. Untake is for one that did not go.
func (m *Memory) TakeUnasked(rank int, name uint64, n int) bool {
	e := m.via().Endpoint(rank)
	if e == nil || n > e.MaxMedium() {
		return false
	}
	if _, taken := slices.BinarySearch(m.taken[rank], name); !taken {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.senders[rank]
	return s != nil && s.Take(charged(n))
}

// Untake gives back what TakeUnasked has counted.
func (m *Memory) Untake(rank, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.senders[rank]; s != nil {
		s.Untake(charged(n))
	}
}

// hasConsumed is the handler of what a receiver has consumed of this rank's.
func (m *Memory) hasConsumed(c *am.Call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.senders[c.From()]
	if s == nil {
		s = flow.NewUnaskedSender(int64(min(c.Arg(1), maxAllowance)))
		m.senders[c.From()] = s
	}
	if err := s.Consumed(c.From(), c.Arg(0)); err != nil {
		m.env.Logger().Warn("payloads", "rank", c.From(), "error", err)
	}
}

// Payload is what another rank has sent (Config.Payloads), in memory of this rank's budget.
type Payload struct {
	m        *Memory
	from     int
	args     []uint64
	data     []byte
	released atomic.Bool
	asked    bool // it was announced, and the rest is set

	a     *am.Announcement
	offer *flow.Offer

	// Under Memory.mu.
	claim   *pagepool.Claim
	off     uint64
	placing bool // a run was claimed
	placed  bool
	over    bool // it does not come
}

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
		p.m.region.Give(p.off, p.a.Size())
		p.offer.Release()
		return
	}
	n := charged(len(p.data))
	p.data = nil
	p.m.tell(p.from, p.m.budget.Consumed(p.from, n))
}

// tell lets a sender know how much of its unasked data was consumed, the first time, and then when
// it is half of its allowance.
func (m *Memory) tell(rank int, total uint64) {
	allowance := m.budget.Allowance()
	m.mu.Lock()
	before, known := m.told[rank]
	due := rank != m.env.Rank() && allowance >= minUnasked && (!known || total >= before+uint64(allowance)/2)
	if due {
		m.told[rank] = total
	}
	m.mu.Unlock()
	if due {
		go func() { // a message may wait for a credit; one that is lost the next makes good
			_ = m.consumed.Post(m.env.Context(), m.via(), rank, total, uint64(allowance))
		}()
	}
}

// errNoReceiver refuses a payload.
var errNoReceiver = errors.New("it has no function of this name (Config.Memory.Payloads)")

// offered claims memory from the budget, and then the region, for a payload that is announced.
func (m *Memory) offered(a *am.Announcement) {
	if _, ok := m.receivers[a.Arg(0)]; !ok {
		_ = a.Refuse(errNoReceiver)
		return
	}
	size := pagepool.Round(uint64(max(a.Size(), 1)))
	if size > m.region.Bytes() {
		_ = a.Refuse(fmt.Errorf("conduit: in the memory that other ranks write (Config.Memory.ReceiveSize): %w",
			&flow.SetTooLargeError{Need: int64(size), Limit: int64(m.region.Bytes()), Fetches: 1}))
		return
	}
	p := &Payload{m: m, from: a.From(), args: a.Args()[min(1, len(a.Args())):], asked: true, a: a}
	m.mu.Lock()
	m.arriving[a] = p
	m.mu.Unlock()
	offer, err := m.budget.Offer(a.From(), int64(size), p.place)
	if err != nil {
		m.mu.Lock()
		delete(m.arriving, a)
		m.mu.Unlock()
		_ = a.Refuse(err)
		return
	}
	p.offer = offer // delivered comes after this function
}

// place takes a run for a payload with granted bytes.
func (p *Payload) place(o *flow.Offer) {
	m := p.m
	if err := o.Err(); err != nil {
		_ = p.a.Refuse(err) // an error is that it has ended
		m.mu.Lock()
		delete(m.arriving, p.a)
		m.mu.Unlock()
		return
	}
	m.mu.Lock()
	p.placing = !p.over
	over := p.over
	m.mu.Unlock()
	if over {
		return
	}
	o.WaitsForPlace(true)
	c := m.region.Take([]int{p.a.Size()}, func(offs []uint64) {
		o.WaitsForPlace(false)
		m.mu.Lock()
		over := p.over
		p.off, p.placed = offs[0], !over
		m.mu.Unlock()
		if over {
			m.region.Give(offs[0], p.a.Size())
			p.offer.Release()
			return
		}
		_ = p.a.Grant(m.region.begin + offs[0]) // an error is that it has ended: delivered learns of it
	})
	m.mu.Lock()
	p.claim = c
	over = p.over
	m.mu.Unlock()
	if over && c.Cancel() {
		p.offer.Release()
	}
}

// delivered takes the end of an announced payload.
func (m *Memory) delivered(a *am.Announcement, err error) {
	m.mu.Lock()
	p := m.arriving[a]
	delete(m.arriving, a)
	m.mu.Unlock()
	switch {
	case p == nil: // refused
	case err != nil:
		p.withdraw()
	default:
		m.tell(p.from, 0) // the first time, what it may send unasked
		p.data = m.region.Memory(p.off, a.Size())
		p.run(m.receivers[a.Arg(0)])
	}
}

// withdraw gives back the holdings of a payload that does not come: its memory before its bytes.
// While a run is being taken for it, the goroutine that takes it does so.
func (p *Payload) withdraw() {
	p.m.mu.Lock()
	p.over = true
	claim, placing, placed := p.claim, p.placing, p.placed
	p.m.mu.Unlock()
	if placed {
		p.m.region.Give(p.off, p.a.Size())
	}
	if placed || !placing || claim != nil && claim.Cancel() {
		p.offer.Release()
	}
}

// run has the program take a payload. A payload is released if its function panics.
func (p *Payload) run(f named[*Payload]) {
	p.m.called(func() { f.call(p) }, func(failure any) {
		p.Release()
		p.m.env.Logger().Warn("payloads", "name", f.name, "rank", p.from, "panic", fmt.Sprint(failure))
	})
}

// cameUnasked is the handler of a payload that was not announced.
func (m *Memory) cameUnasked(c *am.Call) {
	n := charged(len(c.Payload()))
	if err := m.budget.Unasked(c.From(), n); err != nil {
		m.env.Logger().Warn("payloads", "rank", c.From(), "dropped", err)
		return
	}
	m.pages.Fit(m.most())
	p := &Payload{m: m, from: c.From(), args: append([]uint64(nil), c.Args()[min(1, c.Len()):]...),
		data: append([]byte{}, c.Payload()...)}
	f, ok := m.receivers[c.Arg(0)]
	if !ok {
		m.env.Logger().Warn("payloads", "rank", c.From(), "dropped", errNoReceiver)
		p.Release()
		return
	}
	c.Go(func() { p.run(f) })
}

// payloadsDown forgets what a dead rank has learned, and may be sent.
func (m *Memory) payloadsDown(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.senders, rank)
	delete(m.told, rank)
}
