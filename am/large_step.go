package am

import (
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/guard"
	"github.com/ibconduit/conduit/internal/queue"
)

// transfers are the large payloads between this rank and a peer, under the endpoint's lock. The
// network keeps the order of messages, so both ends see the steps of all payloads in one order: a
// rank that announces more than maxAnnounced, as its peer counts them, breaks the protocol.
type transfers struct {
	c      *core
	p      *peer
	out    []*sending // that have a place
	queued queue.List[sending]
	in     []*Announcement // neither refused nor ended
}

// transfersLocked are a peer's.
func (c *core) transfersLocked(p *peer) *transfers {
	if p.large == nil {
		p.large = &transfers{c: c, p: p}
	}
	return p.large
}

func (t *transfers) sent(token uint64) *sending {
	for _, s := range t.out {
		if s.token == token {
			return s
		}
	}
	return nil
}

func (t *transfers) announced(token uint64) *Announcement {
	for _, a := range t.in {
		if a.token == token {
			return a
		}
	}
	return nil
}

// queue gives a payload a place, or has it wait for one.
func (t *transfers) queue(s *sending) error {
	if err := t.c.refusalLocked(announce); err != nil {
		return err
	}
	if t.p.down != nil {
		return &fabric.PeerDownError{Rank: t.p.rank, Op: "send", Cause: t.p.down}
	}
	t.queued.Add(&s.turn, s)
	t.place()
	return nil
}

// place gives free places to payloads that wait.
func (t *transfers) place() {
	for len(t.out) < maxAnnounced && t.queued.Len() > 0 {
		s := t.queued.First()
		s.turn.Leave()
		s.step, s.token = stepAnnounced, t.watch()
		t.out = append(t.out, s)
		t.c.transfers++
		s.w.unpark()
	}
}

// drop takes a payload from its place.
func (t *transfers) drop(s *sending) {
	i := slices.Index(t.out, s)
	if i < 0 {
		return // the peer's death or the endpoint's end did
	}
	t.out = slices.Delete(t.out, i, i+1)
	t.c.transfers--
	t.unwatch(s.token)
	t.place()
}

// unparkQueued has the payloads look that wait for a place.
func (t *transfers) unparkQueued() {
	for s := t.queued.First(); s != nil; s = s.turn.Next() {
		s.w.unpark()
	}
}

// watch has the peer pinged of which something is awaited.
func (t *transfers) watch() uint64 {
	now := t.c.net.Now()
	t.c.calls.grants++
	if t.c.pingDue == 0 && t.c.cfg.PingAfter > 0 {
		t.c.pingDue = now + t.c.cfg.PingAfter
		t.c.armFrom(now, t.c.pingDue)
	}
	return t.c.calls.add(nil, t.p.rank, needGrant, nil, now)
}

// unwatch ends that, once.
func (t *transfers) unwatch(token uint64) {
	e := &t.c.calls.e[index(token)-1]
	if e.gen == uint32(token>>32) && e.needs == needGrant {
		t.c.calls.grants--
		t.c.calls.settle(index(token), needGrant)
	}
}

// stepLocked takes a step of a large payload that a peer sent; other messages are none. The error
// is the peer's: it is to be cut off.
func (c *core) stepLocked(p *peer, h *head, payload []byte) error {
	if h.kind <= ping || p.down != nil || c.end != nil {
		return nil
	}
	t := c.transfersLocked(p)
	switch h.kind {
	case announce:
		return t.takeAnnouncement(h)
	case grant, refusal:
		return t.takeAnswer(h, payload)
	case data:
		return t.takeData(h)
	case withdraw:
		t.takeWithdrawal(h)
	}
	return nil
}

func (t *transfers) takeAnnouncement(h *head) error {
	size := h.args[0]
	switch {
	case len(t.in) >= maxAnnounced:
		return broken("announces more payloads than it may", len(t.in)+1, maxAnnounced)
	case t.announced(h.token) != nil:
		return &MessageError{Rule: "announces a payload twice", Got: h.token}
	case size > maxLong:
		return &MessageError{Rule: "announces a payload that no write carries", Got: size, Limit: maxLong}
	}
	t.c.stats.large.Offered++
	x := t.c.table.find(h.handler)
	if x == nil || x.large == nil {
		t.c.stats.large.Declined++
		why := of(t.p.rank, broken("names a receiver of large payloads that is not there", int(h.handler),
			len(t.c.table.sorted)-1))
		t.c.report(t.p.rank, why)
		l, token := t.c.self, h.token
		t.c.cfg.Host.Go("large payload", func() { l.refuseLarge(t.p, token, why.Error()) })
		return nil
	}
	a := &Announcement{l: t.c.self, p: t.p, h: x, token: h.token, size: int(size),
		args: slices.Clone(h.args[1:h.nargs]), busy: 1}
	t.in = append(t.in, a)
	t.c.transfers++
	t.c.callLocked(a, a.announced)
	return nil
}

// refuseLarge answers a payload that is not taken.
func (l *Endpoint) refuseLarge(p *peer, token uint64, why string) {
	l.sendSurely(p, &outgoing{kind: refusal, cat: medium, token: token, payload: []byte(clip(why))}, nil, nil)
}

// takeAnswer takes the one answer to an announcement.
func (t *transfers) takeAnswer(h *head, text []byte) error {
	s := t.sent(h.token)
	switch {
	case s == nil:
		return &MessageError{Rule: "answers a payload that is not announced", Got: h.token}
	case s.answered:
		return &MessageError{Rule: "answers a payload twice", Got: h.token}
	case h.kind == grant && h.args[1] != s.size:
		return &MessageError{Rule: "grants memory for a payload of another size", Got: h.args[1], Limit: s.size}
	case h.kind == grant && t.c.cfg.SegmentSize != nil:
		size := t.c.cfg.SegmentSize(t.p.rank)
		if fabric.CheckRange("grant", t.p.rank, h.args[0], s.size, size) != nil {
			return &MessageError{Rule: "grants memory beyond its segment", Got: h.args[0], Limit: size}
		}
	}
	s.answered = true
	t.unwatch(s.token)
	switch {
	case s.step == stepWithdrawn:
		if s.sent {
			t.drop(s)
		}
	case h.kind == grant:
		s.step, s.off = stepGranted, h.args[0]
		s.w.unpark()
	default:
		s.step, s.err = stepOver, &RefusedError{Rank: t.p.rank, Handler: s.h.name, Text: string(text)}
		s.w.unpark()
		t.drop(s)
	}
	return nil
}

func (t *transfers) takeData(h *head) error {
	a := t.announced(h.token)
	switch {
	case a == nil:
		return &MessageError{Rule: "sends a payload that is not announced", Got: h.token}
	case !a.granted:
		return &MessageError{Rule: "sends a payload that was granted no memory", Got: h.token}
	case h.off != a.off || uint64(h.length) != uint64(a.size):
		return &MessageError{Rule: "sends a payload to other memory than was granted", Got: h.off, Limit: a.off}
	}
	t.c.stats.large.Delivered++
	t.ended(a, nil)
	return nil
}

// takeWithdrawal ends a payload that its sender has given up, and answers that if nothing else
// will. One that is not there was refused meanwhile.
func (t *transfers) takeWithdrawal(h *head) {
	a := t.announced(h.token)
	if a == nil {
		return
	}
	if !a.decided {
		l := t.c.self
		t.c.cfg.Host.Go("large payload", func() { l.refuseLarge(t.p, a.token, ErrWithdrawn.Error()) })
	}
	t.c.stats.large.Cancelled++
	t.ended(a, ErrWithdrawn)
}

// ended has the receiver's Ended called for a payload.
func (t *transfers) ended(a *Announcement, err error) {
	t.forget(a)
	a.ended, a.err = true, err
	t.tellLocked(a)
}

// callLocked has functions of a receiver run, on a goroutine of their own unless they are quick and
// the leader can do it at the end of its round.
func (c *core) callLocked(a *Announcement, f func()) {
	c.functions++
	if a.h.large.Quick && c.rounding {
		c.quick = append(c.quick, f)
		return
	}
	c.cfg.Host.Go("receiver", f)
}

// tellLocked has Ended run, unless a goroutine that is busy with a goes on with it.
func (t *transfers) tellLocked(a *Announcement) {
	if a.busy == 0 {
		t.c.callLocked(a, a.callEnded)
	}
}

// copyLocked takes the data of a payload from this rank, for which the lock is given up. The
// endpoint may be closed meanwhile: the memory is the receiver's again when they are copied.
func (t *transfers) copyLocked(h *head, payload []byte) error {
	a := t.announced(h.token)
	a.busy++
	t.c.copyToSelfLocked(h.off, payload)
	a.busy--
	if t.c.end != nil { // which has ended the payload
		t.tellLocked(a)
		return t.c.end
	}
	return t.takeData(h)
}

// forget takes an Announcement from those that go on.
func (t *transfers) forget(a *Announcement) {
	if i := slices.Index(t.in, a); i >= 0 {
		t.in = slices.Delete(t.in, i, i+1)
		t.c.transfers--
	}
	if a.watch != 0 {
		t.unwatch(a.watch)
	}
}

// end ends all large payloads from and to the peer, because of its death or the end of the
// endpoint. t may be nil.
func (t *transfers) end(cause error) {
	if t == nil {
		return
	}
	for s := t.queued.First(); s != nil; s = t.queued.First() {
		s.turn.Leave()
		s.step, s.err = stepOver, cause
		s.w.unpark()
	}
	for _, s := range t.out {
		t.unwatch(s.token)
		t.c.transfers--
		if s.step != stepWithdrawn {
			s.step, s.err = stepOver, cause
			s.w.unpark()
		}
	}
	t.out = nil
	for _, a := range slices.Clone(t.in) {
		t.c.stats.large.Cancelled++
		t.ended(a, cause)
	}
}

// announced runs the receiver's functions: Announced, and Ended if that is due by then.
func (a *Announcement) announced() {
	l := a.l
	a.guard(func() { a.h.large.Announced(a) }, func(failure any) {
		if failure != nil {
			_ = a.Refuse(fmt.Errorf("the receiver panicked: %v", failure)) // unless it has decided
		}
		l.core.mu.Lock()
		a.busy--
		due := a.ended && a.busy == 0
		if !due {
			l.core.functions--
		}
		l.core.mu.Unlock()
		if due {
			a.callEnded()
		}
	})
}

// callEnded runs Ended.
func (a *Announcement) callEnded() {
	a.guard(func() { a.h.large.Ended(a, a.err) }, func(any) {
		a.l.core.mu.Lock()
		a.l.core.functions--
		a.l.core.mu.Unlock()
	})
}

// guard runs a function of the receiver, and then what follows, which gets what it panicked with.
func (a *Announcement) guard(f func(), then func(failure any)) {
	fenceHandler(&a.l.core.cfg, a.p.rank)
	guard.Call(f, func(v any) {
		if v != nil {
			a.l.core.stats.panics.Add(1)
			a.l.core.report(a.p.rank, &RemoteError{Rank: a.l.core.cfg.Rank, Handler: a.h.name, Reason: Panicked,
				Text: clip(fmt.Sprint(v))})
		}
		fenceHandler(&a.l.core.cfg, a.p.rank)
		then(v)
	})
}
