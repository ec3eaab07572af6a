package am

import (
	"context"
	"errors"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/flow"
)

// outgoing is a message that is to be sent. Its arguments are passed beside it: what is in here, the
// payload that is, moves to the heap.
type outgoing struct {
	kind    kind
	cat     category
	handler uint16
	token   uint64 // of the call that a reply ends
	payload []byte
	off     uint64          // of a Long
	wants   bool            // a reply
	w       *waiter         // who waits for the reply, or for the network to have done with the payload
	buf     *fabric.SendBuf // prepared: the payload is in it
	keeps   bool            // buf, if it cannot be sent now
	own     bool            // the payload is the lane's: it is kept until the network has done with it
	at      time.Duration   // when the first attempt is made, if that is known
}

// attempt sends a request if everything that it needs is there. w is who waits already, or nil.
// The errors are those of the try-forms; it changes nothing then.
func (l *Endpoint) attempt(p *peer, o *outgoing, args []uint64, w *waiter) error {
	p.mu.Lock()
	err := l.launch(p, o, args, w)
	p.mu.Unlock()
	if err == ErrNoCredit || err == ErrNotConnected {
		l.mu.Lock()
		end := l.refusal(o.kind)
		l.mu.Unlock()
		if end != nil { // no credit will come any more, or be of use
			return end
		}
		l.stats.noCredit.Add(1)
		l.ask(p)
	}
	return err
}

// refusal is why nothing of a kind is sent any more, or nil. The lane's lock is held.
func (l *Endpoint) refusal(k kind) error {
	if l.end == nil && (l.sealed && k == request || l.mute && k == ping) {
		return errSealed
	}
	return l.end
}

// mayReserve is nil unless others wait for send buffers. The lane's lock is held.
func (l *Endpoint) mayReserve(w *waiter) error {
	if l.end != nil {
		return l.end
	}
	if l.waiting.blocks(w) {
		return ErrNoBuffer
	}
	return nil
}

// reserve takes a send buffer for a request, unless others wait for one. The lane's lock is held.
func (l *Endpoint) reserve(w *waiter) (fabric.SendBuf, error) {
	if err := l.mayReserve(w); err != nil {
		return fabric.SendBuf{}, err
	}
	b, err := l.port.Reserve(0)
	return b, l.obstacle(err)
}

// obstacle is what stands in the way where the network cannot take something now, and err where that is something else.
func (l *Endpoint) obstacle(err error) error {
	switch {
	case err == nil || !errors.Is(err, fabric.ErrAgain):
		return err
	case errors.Is(err, fabric.ErrNoBuffer):
		l.stats.noBuffer.Add(1)
		return ErrNoBuffer
	}
	l.stats.queueFull.Add(1)
	return ErrQueueFull
}

// launch takes what the request needs and sends it. The peer's lock is held.
func (l *Endpoint) launch(p *peer, o *outgoing, args []uint64, w *waiter) error {
	if p.down != nil {
		return &fabric.PeerDownError{Rank: p.rank, Op: "request", Cause: p.down}
	}
	now := l.date(p, o)
	if err := l.open(p, now); err != nil {
		return err
	}
	// Who waits may wait for what the ping finds out. Where there is no credit at all, Take notes that one is wanted: the first who
	// waits may do so for a reply buffer, and want none yet.
	if k := p.purse.Balance(); k > 0 && o.kind != ping && p.waiting.lacks(w, atPeer, k) && !l.passes(p, o, w) {
		return ErrNoCredit
	}
	epoch, err := p.purse.Take(now)
	if err != nil {
		l.lookAfter(p)
		if !p.heard {
			return ErrNotConnected
		}
		return err
	}
	h := p.heading(o, len(args))
	b := fabric.SendBuf{ID: fabric.Copied}
	if o.buf != nil {
		b = *o.buf
	}
	cookie, err := l.acquire(p, o, w, h, &b, now)
	if err != nil {
		p.purse.Cancel(epoch)
		return err
	}
	p.purse.Fill(&h.credit, now)
	if err := l.emit(p, o, args, h, &b, cookie, sendFlags); err != nil {
		l.withdraw(p, o, h, cookie)
		p.purse.Cancel(epoch)
		if o.buf == nil && b.ID != fabric.Copied {
			l.port.Release(b)
		}
		return err
	}
	return nil
}

// passes reports whether a request may go past those who wait for credits. One that keeps its buffer may where all are kept and somebody
// waits for one, unless the first of them has all but the credit: nobody would go on without it. The peer's lock is held.
func (l *Endpoint) passes(p *peer, o *outgoing, w *waiter) bool {
	if o.wants {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.keeps && int(l.prepared.Load()) == l.cfg.Sends && l.waiting.First() != nil && (p.bypassable() || p.waiting.First().waits(atLane)) {
		return true
	}
	return p.left(w, p.purse.Balance()) > 0
}

// reserveEarly takes the reply buffer for who is first in both queues and has no credit, since messages that passed it took all: if it
// gave up its turn for the one it might find the other gone when it comes back, without end. It may keep the buffer: no credit
// depends on one. From then on nobody passes it. The peer's lock is held.
func (l *Endpoint) reserveEarly(p *peer, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.replyless.First() != w {
		return
	}
	if _, err := l.pool.ReserveReply(p.rank); err == nil {
		w.reserved = true
		w.leave(atReplies)
		l.replyless.wake(l)
	}
}

// date is the time of an attempt; 0 where nobody looks at it, since a clock costs as much as two locks. The peer's lock
// is held.
func (l *Endpoint) date(p *peer, o *outgoing) time.Duration {
	now := o.at
	o.at = 0 // the next attempt is made later
	if now == 0 && (o.wants || o.cat == long || !p.purse.Ample()) {
		now = l.port.Now()
	}
	return now
}

// heading is the head of a message to a peer, but for tokens and credits. It is valid as long as the peer's lock is held.
func (p *peer) heading(o *outgoing, nargs int) *head {
	h := &p.head
	h.kind, h.cat, h.wants, h.nargs, h.handler = o.kind, o.cat, o.wants, uint8(nargs), o.handler
	h.token, h.length, h.off, h.credit = o.token, uint32(len(o.payload)), o.off, flow.Header{}
	return h
}

// acquire takes the buffers of a request and enters it, with the lane's lock. The order, credit before
// reply before send buffer, is also that of the queues: who waits for the later keeps its
// turn for the earlier, and never the other way round but for reserveEarly. Requests that want no reply pass it there.
func (l *Endpoint) acquire(p *peer, o *outgoing, w *waiter, h *head, b *fabric.SendBuf, now time.Duration) (cookie uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.refusal(o.kind); err != nil {
		return 0, err
	}
	early := w != nil && w.reserved
	if o.wants && !early {
		if l.replyless.blocks(w) {
			return 0, ErrNoReply
		}
		if _, err := l.pool.ReserveReply(p.rank); err != nil {
			l.stats.noReply.Add(1)
			return 0, err
		}
	}
	if o.buf == nil {
		switch {
		case o.cat != short:
			*b, err = l.reserve(w)
		case o.kind != ping: // what is short is copied
			err = l.mayReserve(w)
		}
		if err != nil {
			if o.wants && !early {
				l.pool.CancelReply(p.rank, connection)
			}
			return 0, err
		}
	}
	if early {
		w.reserved = false
	}
	if o.buf != nil { // now: the message may have arrived when Send returns, and Quiesce adds up what is prepared and what is free
		l.prepared.Add(-1)
	}
	return l.enter(p, o, h, now), nil
}

// enter counts a message, makes the entry that it needs, and writes what the pool has to say into its header.
func (l *Endpoint) enter(p *peer, o *outgoing, h *head, now time.Duration) (cookie uint64) {
	l.count(o, 1)
	if need := needOf(o); need != 0 {
		var keep []byte
		if o.own {
			keep = o.payload
		}
		token := l.calls.add(o.w, p.rank, need, keep, now)
		if need&needSent != 0 {
			cookie = token
		}
		if o.wants {
			h.token = token
			if l.pingDue == 0 && l.cfg.PingAfter > 0 { // who leads may sleep since before, when no reply was awaited
				l.pingDue = now + l.cfg.PingAfter
				l.armFrom(now, l.pingDue)
			}
		}
		if o.w != nil {
			o.w.token = token
		}
	}
	p.owed = l.pool.Fill(p.rank, &h.credit, now)
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

// count counts messages of a kind, with the lane's lock.
func (l *Endpoint) count(o *outgoing, by uint64) {
	switch c := &l.stats; {
	case o.wants:
		c.calls += by
	case o.kind == request:
		c.posts += by
	case o.kind == ping:
		c.pings += by
	default:
		c.answered += by
	}
	if o.cat == long && len(o.payload) > 0 {
		l.stats.writes += by
	}
}

// uncountEnd undoes what endCalls counted of a message, with the lane's lock.
func (l *Endpoint) uncountEnd(o *outgoing) {
	need := needOf(o)
	if need&needReply != 0 {
		l.stats.ended--
	}
	if need&needSent != 0 {
		l.stats.written--
	}
}

// withdraw undoes enter, and what the purse has told. The peer's lock is held.
func (l *Endpoint) withdraw(p *peer, o *outgoing, h *head, cookie uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(o, ^uint64(0))
	if o.buf != nil {
		l.prepared.Add(1)
	}
	tell := h.wants // those who wait for reply buffers
	if h.wants {
		cookie = h.token
		if w := o.w; w != nil && p.waiting.First() == w { // see reserveEarly
			w.reserved, tell = true, w.waits(atReplies) // else it had the buffer before, and none is free
			w.leave(atReplies)
		} else {
			l.pool.CancelReply(p.rank, connection)
		}
	}
	switch {
	case cookie == 0:
	case l.calls.find(cookie, p.rank) != nil:
		l.calls.withdraw(index(cookie))
	default: // Close has ended what was not sent
		l.uncountEnd(o)
	}
	if p.owed {
		l.pool.Unsaid(p.rank, &h.credit)
	}
	p.purse.Unsaid(&h.credit)
	if first := l.replyless.First(); tell && first != nil && first != o.w { // who is first itself keeps its turn
		first.wake(l)
	}
}

// emit writes the message and hands it to the network. The peer's lock is held.
func (l *Endpoint) emit(p *peer, o *outgoing, args []uint64, h *head, b *fabric.SendBuf, cookie uint64, f fabric.SendFlag) error {
	switch {
	case o.cat == short:
		b.Data = p.text[:]
	case o.cat == medium && o.buf == nil:
		copy(b.Data[headSize:], o.payload)
	}
	n := h.size()
	h.encode(b.Data[:n], l.hash, args)
	if cookie != 0 {
		return l.obstacle(l.port.Send(p.rank, *b, n, &fabric.Write{Off: o.off, Src: o.payload}, cookie, f))
	}
	return l.obstacle(l.port.Send(p.rank, *b, n, nil, 0, f))
}

// Any receiver may sleep, and one that does not is not disturbed.
const sendFlags = fabric.Solicited

// passing reports whether an obstacle goes away by itself.
func passing(err error) bool {
	switch err {
	case ErrNoBuffer, ErrNotConnected, ErrNoCredit, ErrNoReply, ErrQueueFull:
		return true
	}
	return false
}

// send sends a request as soon as it can. w waits, if need be; it is o.w for a call, which waits on from then.
func (l *Endpoint) send(ctx context.Context, p *peer, o *outgoing, args []uint64, w *waiter) error {
	began := o.at
	err := l.attempt(p, o, args, w)
	if err == nil && o.cat == short { // others are copied, which may take long
		w.began = began
	}
	if err == nil || !passing(err) {
		return err
	}
	if err = l.sendLater(ctx, p, o, args, w, err); err == nil {
		l.beginAgain(w)
	}
	return err
}

// sendLater is send after a first attempt that met an obstacle.
func (l *Endpoint) sendLater(ctx context.Context, p *peer, o *outgoing, args []uint64, w *waiter, err error) error {
	defer l.unqueue(p, w)
	w.calls = o.wants
	for ; passing(err); err = l.attempt(p, o, args, w) {
		if planted == noLook { // there is all the time in the world to miss it
			l.cfg.Host.Sleep(time.Millisecond)
		}
		if joined := l.queue(p, w, err); joined && planted != noLook {
			continue // what it waits for may have come before it was in the queue
		}
		if err := l.stalled(w); err != nil { // who is woken in vain again and again waits all the same
			return err
		}
		if err := l.await(ctx, w); err != nil {
			return err
		}
	}
	return err
}

// queue has a waiter told when an obstacle may be gone. Whoever asks next is behind it. False: it was
// in that queue.
func (l *Endpoint) queue(p *peer, w *waiter, why error) (joined bool) {
	switch why {
	case ErrNoBuffer:
		joined = l.join(&l.waiting, w, atLane)
	case ErrNoReply:
		l.quit(w, atLane)
		if joined = l.join(&l.replyless, w, atReplies); joined && w.waits(atPeer) {
			p.mu.Lock()
			l.wakePassing(p)
			p.mu.Unlock()
		}
	default: // it needs its turn here before one there
		p.mu.Lock()
		l.quit(w, atLane)
		if why == ErrNoCredit && p.waiting.First() == w {
			l.reserveEarly(p, w)
		} else {
			l.quit(w, atReplies)
		}
		joined = !w.waits(atPeer)
		if why == ErrQueueFull {
			p.full, p.fullAt = true, l.port.Now()
			l.lookAfter(p)
		}
		p.waiting.add(w, atPeer)
		if !w.calls {
			p.posts.add(w, atPosts)
		}
		p.mu.Unlock()
	}
	if why == ErrNoBuffer || why == ErrQueueFull { // nobody tells when these come free
		l.arm(l.port.Now() + retryAfter)
	}
	return joined
}

// join puts w in a queue of the lane. False: it was there.
func (l *Endpoint) join(q *list, w *waiter, kind int) (joined bool) {
	if w.waits(kind) {
		return false
	}
	l.mu.Lock()
	q.add(w, kind)
	l.mu.Unlock()
	return true
}

// quit takes a waiter out of queues of the lane, and tells who is next.
func (l *Endpoint) quit(w *waiter, kinds ...int) {
	for _, kind := range kinds {
		if q := w.links[kind].In(); q != nil {
			l.mu.Lock()
			w.leave(kind)
			if first := q.First(); first != nil {
				first.wake(l)
			}
			l.mu.Unlock()
		}
	}
}

// unqueue takes a waiter out of all queues, and tells who is next.
func (l *Endpoint) unqueue(p *peer, w *waiter) {
	l.quit(w, atLane, atReplies)
	if w.reserved {
		w.reserved = false
		l.mu.Lock()
		l.pool.CancelReply(p.rank, connection)
		l.replyless.wake(l)
		l.mu.Unlock()
	}
	if w.waits(atPeer) {
		p.mu.Lock()
		w.leave(atPeer)
		w.leave(atPosts)
		l.next(p)
		p.mu.Unlock()
	}
}

// next has those look who wait for a peer and can go on now, or asks for credits for them. The peer's lock is held.
func (l *Endpoint) next(p *peer) {
	if p.waiting.Len() == 0 {
		return
	}
	if k := p.purse.Balance(); k > 0 || p.purse.Epoch() == 0 {
		p.waiting.wakeSome(l, atPeer, max(k, 1))
		l.wakePassing(p)
		return
	}
	now := l.port.Now()
	_, _ = p.purse.Take(now) // there is none: it notes that somebody wants one
	if p.purse.Asks(now) {
		l.tell(p, now)
	}
	l.lookAfter(p)
	if at, ok := p.purse.Due(); ok { // who leads may sleep since before
		l.arm(at)
	}
}

// wakePassing has those look who may pass others that wait for a peer. The peer's lock is held.
func (l *Endpoint) wakePassing(p *peer) {
	l.mu.Lock()
	p.wakePassing(l, p.purse.Balance())
	l.mu.Unlock()
}
