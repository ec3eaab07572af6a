package am

import (
	"slices"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// transfers are the large payloads between this rank and a peer, under the endpoint's lock. The
// network keeps the order of messages, so both ends see the steps of all payloads in one order: a
// rank that announces more than maxAnnounced, as its peer counts them, breaks the protocol.
type transfers struct {
	out    []*sending // that have a place
	queued queue.List[sending]
	in     []*Announcement // neither refused nor ended
}

// transfersLocked are a peer's.
func (c *core) transfersLocked(p *peer) *transfers {
	if p.large == nil {
		p.large = new(transfers)
	}
	return p.large
}

func (t *transfers) sent(token uint64) *sending {
	if t != nil {
		for _, s := range t.out {
			if s.token == token {
				return s
			}
		}
	}
	return nil
}

func (t *transfers) announced(token uint64) *Announcement {
	if t != nil {
		for _, a := range t.in {
			if a.token == token {
				return a
			}
		}
	}
	return nil
}

// queueLocked gives a payload a place, or has it wait for one.
func (c *core) queueLocked(s *sending) error {
	if err := c.refusalLocked(announce); err != nil {
		return err
	}
	if s.p.down != nil {
		return &fabric.PeerDownError{Rank: s.p.rank, Op: "send", Cause: s.p.down}
	}
	t := c.transfersLocked(s.p)
	t.queued.Add(&s.turn, s)
	c.placeLocked(t)
	return nil
}

// placeLocked gives places that are free to those who wait.
func (c *core) placeLocked(t *transfers) {
	for len(t.out) < maxAnnounced && t.queued.Len() > 0 {
		s := t.queued.First()
		s.turn.Leave()
		s.step, s.token = stepAnnounced, c.watchLocked(s.p)
		t.out = append(t.out, s)
		c.transfers++
		s.w.unpark()
	}
}

// dropLocked takes a payload from its place.
func (c *core) dropLocked(s *sending) {
	t := s.p.large
	i := slices.Index(t.out, s)
	if i < 0 {
		return // the peer's death or the endpoint's end did
	}
	t.out = slices.Delete(t.out, i, i+1)
	c.transfers--
	c.unwatchLocked(s.token)
	c.placeLocked(t)
}

// unparkQueuedLocked has those look who wait for a place.
func (c *core) unparkQueuedLocked(p *peer) {
	if p.large != nil {
		for s := p.large.queued.First(); s != nil; s = s.turn.Next() {
			s.w.unpark()
		}
	}
}

// queuedLocked counts them.
func (c *core) queuedLocked(rank int) int {
	if t := c.known(rank).large; t != nil {
		return t.queued.Len()
	}
	return 0
}

// watchLocked has a peer pinged of which something is awaited.
func (c *core) watchLocked(p *peer) uint64 {
	now := c.net.Now()
	c.calls.grants++
	if c.pingDue == 0 && c.cfg.PingAfter > 0 {
		c.pingDue = now + c.cfg.PingAfter
		c.armFrom(now, c.pingDue)
	}
	return c.calls.add(nil, p.rank, needGrant, nil, now)
}

// unwatchLocked ends that, once.
func (c *core) unwatchLocked(token uint64) {
	e := &c.calls.e[index(token)-1]
	if e.gen == uint32(token>>32) && e.needs == needGrant {
		c.calls.grants--
		c.calls.settle(index(token), needGrant)
	}
}

// stepLocked takes a step of a large payload that a peer sent; other messages are none. The error is
// the peer's: it is to be cut off.
func (c *core) stepLocked(p *peer, h *head, payload []byte) error {
	switch h.kind {
	case announce:
		return c.announcedLocked(p, h)
	case grant, refusal:
		return c.answeredLargeLocked(p, h, payload)
	case data:
		return c.deliveredLocked(p, h)
	case withdraw:
		c.withdrawnLocked(p, h)
	}
	return nil
}

func (c *core) announcedLocked(p *peer, h *head) error {
	t, size := c.transfersLocked(p), h.args[0]
	switch {
	case len(t.in) >= maxAnnounced:
		return broken("announces more payloads than it may", len(t.in)+1, maxAnnounced)
	case t.announced(h.token) != nil:
		return &MessageError{Rule: "announces a payload twice", Got: h.token}
	case size > maxLong:
		return &MessageError{Rule: "announces a payload that no write carries", Got: size, Limit: maxLong}
	}
	c.stats.large.Offered++
	x := c.table.find(h.handler)
	if x == nil || x.large == nil {
		c.stats.large.Declined++
		why := of(p.rank, broken("names a receiver of large payloads that is not there", int(h.handler), len(c.table.sorted)-1))
		c.report(p.rank, why)
		l, token := c.self, h.token
		c.cfg.Host.Go("large payload", func() { l.refuseLarge(p, token, why.Error()) })
		return nil
	}
	a := &Announcement{l: c.self, p: p, h: x, token: h.token, size: int(size), args: slices.Clone(h.args[1:h.nargs]), busy: true}
	t.in = append(t.in, a)
	c.transfers++
	c.telling++
	c.cfg.Host.Go("receiver", a.announced)
	return nil
}

// answeredLargeLocked takes the one answer to an announcement.
func (c *core) answeredLargeLocked(p *peer, h *head, text []byte) error {
	s := p.large.sent(h.token)
	switch {
	case s == nil:
		return &MessageError{Rule: "answers a payload that is not announced", Got: h.token}
	case s.answered:
		return &MessageError{Rule: "answers a payload twice", Got: h.token}
	case h.kind == grant && h.args[1] != s.size:
		return &MessageError{Rule: "grants memory for a payload of another size", Got: h.args[1], Limit: s.size}
	case h.kind == grant && c.cfg.SegmentSize != nil:
		size := c.cfg.SegmentSize(p.rank)
		if fabric.CheckRange("grant", p.rank, h.args[0], s.size, size) != nil {
			return &MessageError{Rule: "grants memory beyond its segment", Got: h.args[0], Limit: size}
		}
	}
	s.answered = true
	c.unwatchLocked(s.token)
	switch {
	case s.step == stepWithdrawn:
		if s.told {
			c.dropLocked(s)
		}
	case h.kind == grant:
		s.step, s.off = stepGranted, h.args[0]
		s.w.unpark()
	default:
		s.step, s.err = stepOver, &RefusedError{Rank: p.rank, Handler: s.h.name, Text: string(text)}
		s.w.unpark()
		c.dropLocked(s)
	}
	return nil
}

func (c *core) deliveredLocked(p *peer, h *head) error {
	a := p.large.announced(h.token)
	switch {
	case a == nil:
		return &MessageError{Rule: "sends a payload that is not announced", Got: h.token}
	case !a.granted:
		return &MessageError{Rule: "sends a payload that was granted no memory", Got: h.token}
	case h.off != a.off || uint64(h.length) != uint64(a.size):
		return &MessageError{Rule: "sends a payload to other memory than was granted", Got: h.off, Limit: a.off}
	}
	c.stats.large.Delivered++
	c.endedLocked(a, nil)
	return nil
}

// withdrawnLocked ends a payload that its sender has given up, and answers that if nothing else will.
// One that is not there was refused meanwhile.
func (c *core) withdrawnLocked(p *peer, h *head) {
	a := p.large.announced(h.token)
	if a == nil {
		return
	}
	if !a.decided {
		l := c.self
		c.cfg.Host.Go("large payload", func() { l.refuseLarge(p, a.token, ErrWithdrawn.Error()) })
	}
	c.stats.large.Cancelled++
	c.endedLocked(a, ErrWithdrawn)
}

// endedLocked has the receiver told that a payload has ended.
func (c *core) endedLocked(a *Announcement, err error) {
	c.forgetLocked(a)
	a.ended, a.err = true, err
	if !a.busy { // else the goroutine that runs Announced goes on with Ended
		c.telling++
		c.cfg.Host.Go("receiver", a.tell)
	}
}

// forgetLocked takes an Announcement from those that go on.
func (c *core) forgetLocked(a *Announcement) {
	t := a.p.large
	if i := slices.Index(t.in, a); i >= 0 {
		t.in = slices.Delete(t.in, i, i+1)
		c.transfers--
	}
	if a.watch != 0 {
		c.unwatchLocked(a.watch)
	}
}

// endTransfersLocked ends all large payloads from and to a peer, because of its death or the end of
// the endpoint.
func (c *core) endTransfersLocked(p *peer, cause error) {
	t := p.large
	if t == nil {
		return
	}
	for s := t.queued.First(); s != nil; s = t.queued.First() {
		s.turn.Leave()
		s.step, s.err = stepOver, cause
		s.w.unpark()
	}
	for _, s := range t.out {
		c.unwatchLocked(s.token)
		c.transfers--
		if s.step != stepWithdrawn {
			s.step, s.err = stepOver, cause
			s.w.unpark()
		}
	}
	t.out = nil
	for _, a := range slices.Clone(t.in) {
		c.stats.large.Cancelled++
		c.endedLocked(a, cause)
	}
}
