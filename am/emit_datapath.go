package am

import (
	"errors"
	"time"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/racesync"
)

// emitter hands messages to the network. It never waits.
type emitter struct{ *core }

// outgoing is a message that is to be sent. Its arguments are passed beside it: fields of it, as
// the payload, move to the heap.
type outgoing struct {
	kind    kind
	cat     category
	handler uint16
	token   uint64 // of the call that a reply ends
	payload []byte
	off     uint64          // of a Long
	wants   bool            // a reply
	w       *waiter         // waits for the reply, or for the network to have read the payload
	buf     *fabric.SendBuf // prepared: the payload is in it
	commits bool            // buf is given back, and the payload copied, if something is missing
	own     bool            // the endpoint owns the payload and keeps it until the network has read it
	at      time.Duration   // when the first attempt is made, if that is known
}

// Any receiver may sleep; one that does not is not disturbed.
const sendFlags = fabric.Solicited

// small reports whether a message is copied by the network, and takes no send buffer here: a Short,
// or a Medium no longer than one can be.
func (o *outgoing) small(nargs int) bool {
	return o.cat != long && len(o.payload)+8*nargs <= argsSize
}

// needLocked sets what a request needs. A small one takes no send buffer unless requests queue for
// one: the network may need one for it.
func (e *emitter) needLocked(c *claim, p *peer, o *outgoing, nargs int) {
	c.p, c.next, c.needs = p, 0, needsSend
	if o.wants {
		c.needs |= needsCall
	}
	if o.buf == nil && o.kind != ping && (!o.small(nargs) || e.acquirer.buffers.Len() > 0) {
		c.needs |= needsBuffer
	}
}

// peerRefusalLocked is why no request to a peer is sent any more, or nil.
func (e *emitter) peerRefusalLocked(p *peer, o *outgoing) error {
	if err := e.refusalLocked(o.kind); err != nil {
		return err
	}
	if p.down != nil {
		return &fabric.PeerDownError{Rank: p.rank, Op: "request", Cause: p.down}
	}
	return nil
}

// trySend sends a request if everything that it needs is there. Else it returns the obstacle and
// changes nothing; with a waiter the request is queued for the first that is missing.
func (e *emitter) trySend(p *peer, o *outgoing, args []uint64, w *waiter) error {
	k := &p.claim
	if w != nil {
		k = &w.claim
	}
	p.sending.Lock()
	e.mu.Lock()
	if o.kind == request && o.cat != long && o.buf == nil && e.takeNowLocked(p, o, len(args), k) {
		err := e.sendNow(p, o, args, k, w != nil)
		p.sending.Unlock()
		return err
	}
	now, err := e.startLocked(p, o)
	if err == nil {
		e.needLocked(k, p, o, len(args))
	}
	switch {
	case err != nil:
		e.mu.Unlock()
	case e.acquirer.takeAtOnce(k) || e.takeLocked(k, o, w != nil):
		err = e.launch(p, o, args, k, w != nil, now)
	default:
		missing, granted := k.next, p.granted
		e.mu.Unlock()
		err = e.obstacleAt(p, missing, granted, o)
	}
	p.sending.Unlock()
	return err
}

// takeNowLocked takes what a Short or a Medium needs, if all of it is there, and nothing has to be
// looked at more closely. Else it changes nothing. A small one leaves its claim alone.
func (e *emitter) takeNowLocked(p *peer, o *outgoing, nargs int, k *claim) bool {
	if e.mute || e.end != nil || p.down != nil || e.acquirer.buffers.Len() > 0 || p.credits.Epoch() == 0 {
		return false
	}
	if o.small(nargs) {
		return e.acquirer.takeSmall(p, o.wants)
	}
	e.needLocked(k, p, o, nargs)
	return e.acquirer.takeAtOnce(k)
}

// sendNow sends a Short or a Medium for which everything is taken: the straight path. It does what
// launch does for any message. The peer's sending lock and the endpoint's lock are held; the latter
// is given up.
func (e *emitter) sendNow(p *peer, o *outgoing, args []uint64, k *claim, mayQueue bool) error {
	c := e.core
	now := o.at
	if now == 0 && (o.wants || !p.credits.Timeless(0)) {
		now = c.net.Now()
	}
	o.at = 0
	h := &p.head
	h.kind, h.cat, h.wants, h.nargs, h.handler = request, o.cat, o.wants, uint8(len(args)), o.handler
	h.token, h.length, h.credit = 0, uint32(len(o.payload)), credit.Header{}
	b, small := &p.copied, o.small(len(args))
	if !small {
		b = &k.buf
	}
	if !o.wants {
		c.stats.posts++
	} else {
		c.stats.calls++
		h.token = e.enterCallLocked(p, o.w, needReply, nil, now)
	}
	err := e.sendHead(p, b, o.payload, args, now, sendFlags)
	if err == nil {
		return nil
	}
	if small {
		k.p, k.needs, k.next, k.share = p, needsSend, acquired, 0
		if o.wants {
			k.needs |= needsCall
		}
	}
	return e.launched(p, o, k, 0, err, mayQueue)
}

// sendHead sends the Short or Medium that is in the peer's head, but for its credits. The
// endpoint's lock is held, and given up.
func (e *emitter) sendHead(p *peer, b *fabric.SendBuf, payload []byte, args []uint64, now time.Duration,
	f fabric.SendFlag) error {
	h := &p.head
	p.owed = e.pool.Fill(p.rank, &h.credit, now)
	p.credits.Fill(&h.credit, now)
	e.mu.Unlock()
	n := headSize + len(payload) + 8*len(args)
	if len(payload) > 0 {
		copy(b.Data[headSize:], payload)
	}
	h.encode(b.Data[:n], e.hash, args)
	racesync.Release()
	err := e.net.Send(p.rank, *b, n, nil, 0, f)
	if err != nil {
		err = e.obstacle(err)
	}
	return err
}

// enterCallLocked makes the entry of a message that needs one, and returns its token.
func (e *emitter) enterCallLocked(p *peer, w *waiter, n need, keep []byte, now time.Duration) uint64 {
	c := e.core
	token := c.calls.add(w, p.rank, n, keep, now)
	if n&needReply != 0 && c.pingDue == 0 && c.cfg.PingAfter > 0 { // the leader may sleep since before
		c.pingDue = now + c.cfg.PingAfter
		e.armFrom(now, c.pingDue)
	}
	if w != nil {
		w.token, w.answered = token, false
	}
	return token
}

// startLocked checks that a request to a peer may be sent, and returns the time of the attempt, see
// dateLocked.
func (e *emitter) startLocked(p *peer, o *outgoing) (now time.Duration, err error) {
	if e.mute || e.end != nil || p.down != nil {
		if err = e.peerRefusalLocked(p, o); err != nil {
			return 0, err
		}
	}
	if now, o.at = o.at, 0; now == 0 { // a later attempt
		now = e.dateLocked(p, o)
	}
	if p.credits.Epoch() == 0 {
		err = e.openLocked(p, now)
	}
	return now, err
}

// takeLocked takes what a request needs, in the way that suits it.
func (e *emitter) takeLocked(k *claim, o *outgoing, mayQueue bool) bool {
	switch a := &e.acquirer; {
	case mayQueue:
		return a.acquire(k)
	case o.commits:
		return a.commit(k, *o.buf, func() { o.payload, o.buf = append([]byte(nil), o.payload...), nil })
	default:
		return a.try(k)
	}
}

// sendAcquired sends a request with a complete claim.
func (e *emitter) sendAcquired(p *peer, o *outgoing, args []uint64, k *claim) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	e.mu.Lock()
	if err := e.peerRefusalLocked(p, o); err != nil {
		e.mu.Unlock()
		return err
	}
	return e.launch(p, o, args, k, true, e.dateLocked(p, o))
}

// obstacleAt names the resource that is missing, and asks for credits where these are.
func (e *emitter) obstacleAt(p *peer, missing stage, granted bool, o *outgoing) error {
	switch missing {
	case stagePlace, stageReply:
		e.stats.noReply.Add(1)
		return ErrNoReply
	case stageCredit:
		e.stats.noCredit.Add(1)
		if o.kind != ping {
			e.askLocked(p)
		}
		if !granted {
			return ErrNotConnected
		}
		return ErrNoCredit
	case stageShare:
		return ErrNotConnected
	case stageRoom:
		e.stats.queueFull.Add(1)
		return ErrQueueFull
	}
	e.stats.noBuffer.Add(1)
	return ErrNoBuffer
}

// launch sends a request with what its claim has. The peer's sending lock and the endpoint's lock
// are held; the latter is given up. When the network has no room after all the claim falls back to
// that stage, and queues there if it may.
func (e *emitter) launch(p *peer, o *outgoing, args []uint64, k *claim, mayQueue bool, now time.Duration) error {
	b := &p.copied
	switch {
	case o.buf != nil:
		b = o.buf
		// Now: the message may have arrived when Send returns, and Quiesce adds up buffers
		// prepared and free.
		e.acquirer.prepared--
		e.acquirer.committing++
	case k.needs.has(stageBuffer):
		b = &k.buf
	}
	cookie := e.enterLocked(p, o, len(args), now)
	e.mu.Unlock()
	err := e.emit(p, o, args, b, cookie, sendFlags)
	if err == nil && o.buf == nil {
		return nil
	}
	return e.launched(p, o, k, cookie, err, mayQueue)
}

// launched is what follows when a prepared message was sent, or any was not.
func (e *emitter) launched(p *peer, o *outgoing, k *claim, cookie uint64, err error, mayQueue bool) error {
	h := &p.head
	e.mu.Lock()
	defer e.mu.Unlock()
	if o.buf != nil {
		e.acquirer.committed(err == nil)
	}
	if err == nil {
		return nil
	}
	if e.withdrawLocked(p, o, h, cookie) {
		err = e.guessedLocked(p, h, k)
	}
	p.credits.Unsaid(&h.credit)
	e.fallBackLocked(p, o, k, err, mayQueue)
	return err
}

// fallBackLocked gives back what a request that was not sent does not keep.
func (e *emitter) fallBackLocked(p *peer, o *outgoing, k *claim, err error, mayQueue bool) {
	a := &e.acquirer
	to := stage(0)
	switch {
	case err == ErrQueueFull:
		p.full, p.fullAt = true, e.net.Now()
		e.enlistLocked(p)
		e.arm(p.fullAt + retryAfter) // no event tells that there is room
		to = stageRoom
	case err == ErrNoBuffer: // of what is copied
		to = stageBuffer
	}
	if to == 0 || !mayQueue {
		a.retreat(k, 0)
		return
	}
	a.retreat(k, to)
	if err == ErrNoBuffer {
		k.needs |= needsBuffer
	}
	if a.acquireFirst(k) {
		k.w.unpark()
	}
}

// obstacle is what stands in the way where the network cannot take something now, and err where
// that is something else.
func (e *emitter) obstacle(err error) error {
	switch {
	case !errors.Is(err, fabric.ErrAgain):
		return err
	case errors.Is(err, fabric.ErrNoBuffer):
		e.stats.noBuffer.Add(1)
		return ErrNoBuffer
	}
	e.stats.queueFull.Add(1)
	return ErrQueueFull
}

// dateLocked is the time of an attempt; 0 where nothing looks at it: a clock costs as much as two
// locks.
func (e *emitter) dateLocked(p *peer, o *outgoing) time.Duration {
	takes := 1
	if o.kind.answers() {
		takes = 0
	}
	if o.wants || o.cat == long || !p.credits.Timeless(takes) {
		return e.net.Now()
	}
	return 0
}

// enterLocked counts a message, makes the entry that it needs, and fills in its head, with the
// state of the accounts of both directions. It is valid as long as the peer's sending lock is held.
func (e *emitter) enterLocked(p *peer, o *outgoing, nargs int, now time.Duration) (cookie uint64) {
	h := &p.head
	h.kind, h.cat, h.wants, h.nargs, h.handler = o.kind, o.cat, o.wants, uint8(nargs), o.handler
	h.token, h.length, h.off, h.credit = o.token, uint32(len(o.payload)), o.off, credit.Header{}
	e.countLocked(o, 1)
	if need := needOf(o); need != 0 {
		var keep []byte
		if o.own {
			keep = o.payload
		}
		token := e.enterCallLocked(p, o.w, need, keep, now)
		if need&needSent != 0 {
			cookie = token
		}
		if o.wants {
			h.token = token
		}
	}
	p.owed = e.pool.Fill(p.rank, &h.credit, now)
	p.credits.Fill(&h.credit, now)
	return cookie
}

func needOf(o *outgoing) (n need) {
	if o.wants {
		n |= needReply
	}
	if o.cat == long && len(o.payload) > 0 {
		n |= needSent
	}
	return n
}

// countLocked counts messages of a kind.
func (e *emitter) countLocked(o *outgoing, by uint64) {
	switch c := &e.stats; {
	case o.wants:
		c.calls += by
	case o.kind == request:
		c.posts += by
	case o.kind >= ping:
		c.countStep(o.kind, by)
	default:
		c.answered += by
	}
	if o.cat == long && len(o.payload) > 0 {
		e.stats.writes += by
	}
}

// guessedLocked ends a peer that replied to a call before it was sent. The reply has ended the
// call, and given back its place.
func (e *emitter) guessedLocked(p *peer, h *head, k *claim) error {
	e.stats.calls++
	k.needs &^= needsCall
	why := &MessageError{Peer: p.rank, Rule: "replies to a call that was not sent", Got: h.token}
	e.peerDown(p.rank, why)
	return &fabric.PeerDownError{Rank: p.rank, Op: "request", Cause: why}
}

// withdrawLocked undoes enterLocked for a message that was not sent. It reports whether that is a
// call that was answered nevertheless.
func (e *emitter) withdrawLocked(p *peer, o *outgoing, h *head, cookie uint64) (answered bool) {
	e.countLocked(o, ^uint64(0))
	if h.wants {
		cookie, answered = h.token, o.w.answered
	}
	switch {
	case cookie == 0:
	case e.calls.find(cookie, p.rank) != nil:
		e.calls.withdraw(index(cookie))
	default: // Close has ended what was not sent
		need := needOf(o)
		if need&needReply != 0 && !answered {
			e.stats.ended--
			p.calls++ // the claim gives the place back
		}
		if need&needSent != 0 {
			e.stats.written--
		}
	}
	if p.owed {
		e.pool.Unsaid(p.rank, &h.credit)
	}
	return answered
}

// emit writes the message and hands it to the network. The peer's sending lock is held.
func (e *emitter) emit(p *peer, o *outgoing, args []uint64, b *fabric.SendBuf, cookie uint64,
	f fabric.SendFlag) (err error) {
	if o.cat == medium && o.buf == nil {
		copy(b.Data[headSize:], o.payload)
	}
	h := &p.head
	n := h.size()
	h.encode(b.Data[:n], e.hash, args)
	racesync.Release()
	if cookie == 0 {
		err = e.net.Send(p.rank, *b, n, nil, 0, f)
	} else {
		err = e.net.Send(p.rank, *b, n, &fabric.Write{Off: e.cfg.SegmentOffset + o.off, Src: o.payload}, cookie, f)
	}
	if err != nil {
		err = e.obstacle(err)
	}
	return err
}
