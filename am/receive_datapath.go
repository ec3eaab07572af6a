package am

import (
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// batch is what one goroutine takes on at once: what a Poll brought, and the requests
// of it, whose handlers it runs.
type batch struct {
	events            [eventsPerPoll]fabric.Event
	slots             [eventsPerPoll]int32 // to be posted
	work              [eventsPerPoll]work
	nslots            int
	n                 int          // of work
	taken             int          // receive buffers that messages took
	claimed, finished atomic.Int32 // of work
	freed             bool         // some were for replies
}

// work is a request whose handler is to run.
type work struct {
	head    head
	rank    int
	payload []byte
	slot    [1]int32 // that the payload lies in, to be posted afterwards; -1: none
	call    Call
	copied  []byte // memory for a payload whose slot was needed
}

// batch returns a free one.
func (l *Lane) batch() *batch {
	if b := l.nextBatch.Swap(nil); b != nil {
		return b
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := len(l.batches) - 1; k >= 0 {
		b := l.batches[k]
		l.batches = l.batches[:k]
		return b
	}
	return new(batch)
}

// process takes events in the order of the rules of package flow: books first, then
// buffers are posted again, then handlers run, which is for the caller.
func (l *Lane) process(b *batch, n int, now time.Duration) {
	for i := range b.events[:n] {
		e := &b.events[i]
		switch e.Kind {
		case fabric.Arrived:
			l.arrived(b, e, now)
		case fabric.NoteArrived:
			l.noted(e, now)
		case fabric.Sent:
			l.written(e)
		case fabric.Down:
			l.down(l.known(e.Peer), e.Err, true)
		}
		// Up and Idle change nothing: credits outlive the network's connections.
	}
	if planted != spareLate {
		l.repost(b, now)
	}
	if b.n > 0 {
		l.mu.Lock()
		err := l.pool.BeforeHandlers()
		l.mu.Unlock()
		if err != nil {
			l.fail(err)
		}
	}
}

// repost gives back the buffers that nobody needs. The others have spares in their place.
func (l *Lane) repost(b *batch, now time.Duration) {
	if b.taken == 0 {
		return
	}
	if b.nslots > 0 {
		if err := l.port.Post(b.slots[:b.nslots]...); err != nil {
			l.fail(err)
			return
		}
		l.stats.posted.Add(uint64(b.nslots))
	}
	l.mu.Lock()
	err := l.pool.Reposted(b.taken, now)
	if b.freed {
		l.replyless.wake(l)
	}
	l.mu.Unlock()
	if err != nil {
		l.fail(err)
	}
	b.taken, b.nslots, b.freed = 0, 0, false
}

// arrived takes one message.
func (l *Lane) arrived(b *batch, e *fabric.Event, now time.Duration) {
	p := l.known(e.Peer)
	w := &b.work[b.n]
	w.rank, w.slot[0] = e.Peer, -1
	payload, err := w.head.decode(e.Data, l.hash)
	b.taken++
	p.mu.Lock()
	closed := p.down != nil
	p.quiet = 0
	var call *waiter
	if err == nil && w.head.kind == control {
		err = broken("is a note and takes a buffer", int(control), 0)
	}
	if call, err = l.account(p, w, payload, err, now); err == nil {
		l.credited(p)
	}
	p.mu.Unlock()
	if call != nil {
		call.wake(l)
	}
	keep := false
	switch {
	case closed:
		l.stats.ignored.Add(1)
	case err != nil:
		l.stats.broken.Add(1)
		l.cut(p, err)
	case w.head.kind == request:
		l.stats.requests.Add(1)
		keep = l.accept(w, payload, e.Slot)
		b.n++
	case w.head.kind == ping:
		l.stats.pinged.Add(1)
	default:
		l.stats.replies.Add(1)
		b.freed = true
	}
	if !keep {
		b.slots[b.nslots] = e.Slot
		b.nslots++
	}
}

// account enters a message into the books, and a reply into its call. The error is one of
// the message: whatever it says, its buffer is gone and must be accounted for. The peer's lock is held.
func (l *Lane) account(p *peer, w *work, payload []byte, bad error, now time.Duration) (*waiter, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if bad == nil && (w.head.kind == reply || w.head.kind == failure) {
		err = l.pool.ReplyArrived(p.rank, connection)
	} else {
		err = l.pool.Arrived(p.rank, connection, now)
	}
	if bad != nil {
		return nil, bad
	}
	if err == nil {
		err = l.pool.Apply(p.rank, &w.head.credit, now)
	}
	if err == nil { // before a call ends: a message that breaks the protocol ends none
		err = p.purse.Apply(&w.head.credit, now)
	}
	if err != nil || w.head.kind == request || w.head.kind == ping {
		return nil, err
	}
	return l.answered(p.rank, &w.head, payload)
}

// answered ends a call, with the lane's lock.
func (l *Lane) answered(rank int, h *head, payload []byte) (*waiter, error) {
	e := l.calls.find(h.token, rank)
	if e == nil || e.needs&needReply == 0 {
		return nil, &MessageError{Rule: "replies to no call", Got: h.token}
	}
	if h.cat == long {
		if h.off > uint64(len(l.cfg.Segment)) || uint64(h.length) > uint64(len(l.cfg.Segment))-h.off {
			return nil, &MessageError{Rule: "writes beyond the segment", Got: h.off + uint64(h.length), Limit: uint64(len(l.cfg.Segment))}
		}
		payload = l.cfg.Segment[h.off : h.off+uint64(h.length)]
	}
	if h.kind == failure {
		l.stats.failed.Add(1)
	} else {
		l.stats.replied.Add(1)
	}
	if w := e.w; w == nil {
		l.stats.late.Add(1)
	} else if h.kind == failure {
		w.err = &RemoteError{Rank: rank, Handler: w.h.name, Reason: Reason(h.args[0]), Text: string(payload)}
	} else {
		w.reply.set(h, payload)
	}
	return l.calls.settle(index(h.token), needReply), nil
}

// credited tells who waits for a credit that there is one.
func (l *Lane) credited(p *peer) {
	if k := p.purse.Balance(); k > 0 {
		p.heard = true
		p.waiting.wakeSome(l, atPeer, k)
	}
	l.lookAfter(p)
}

// accept decides where a request's payload is while its handler runs, and whether its buffer is kept.
func (l *Lane) accept(w *work, payload []byte, slot int32) (keep bool) {
	if w.head.wants {
		l.stats.wanted.Add(1)
	}
	switch {
	case len(payload) == 0:
		w.payload = nil
	case int(l.lent.Add(1)) <= l.cfg.Spares:
		w.payload, w.slot[0] = payload, slot
		return true
	default:
		l.lent.Add(-1)
		l.stats.copies.Add(1)
		w.copied = append(w.copied[:0], payload...)
		w.payload = w.copied
	}
	return false
}

// noted takes a control message.
func (l *Lane) noted(e *fabric.Event, now time.Duration) {
	p := l.known(e.Peer)
	l.stats.notes.Add(1)
	var h head
	if _, err := h.decode(e.Data, l.hash); err != nil || h.kind != control {
		if err == nil {
			err = broken("is no control message and came as a note", int(h.kind), int(control))
		}
		l.stats.badNotes.Add(1) // anybody may have sent it: it is not held against the peer
		l.report(e.Peer, of(e.Peer, err))
		return
	}
	p.mu.Lock()
	if p.down != nil || e.Peer == l.cfg.Rank {
		p.mu.Unlock()
		return
	}
	p.quiet = 0
	err := l.open(p, now)
	if err == nil {
		l.mu.Lock()
		err = l.pool.Apply(p.rank, &h.credit, now)
		l.mu.Unlock()
	}
	if err == nil {
		err = p.purse.Apply(&h.credit, now)
		l.credited(p)
	}
	p.mu.Unlock()
	if err != nil {
		l.stats.badNotes.Add(1)
		l.cut(p, err)
	}
}

// written ends what the network had to do with a payload.
func (l *Lane) written(e *fabric.Event) {
	l.mu.Lock()
	x := l.calls.find(e.Cookie, e.Peer)
	if x == nil || x.needs&needSent == 0 {
		l.mu.Unlock()
		return
	}
	l.stats.written.Add(1)
	if e.Err != nil && x.w != nil && x.w.err == nil {
		x.w.err = e.Err
	}
	w := l.calls.settle(index(e.Cookie), needSent)
	l.mu.Unlock()
	if w != nil {
		w.wake(l)
	}
}
