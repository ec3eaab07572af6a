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

// leaderBatch is batch for who leads.
func (l *Endpoint) leaderBatch() *batch {
	b := l.engine.spare
	l.engine.spare = nil
	if b == nil {
		b = l.batch()
	}
	return b
}

// batch returns a free one.
func (l *Endpoint) batch() *batch {
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

// process takes the events of a round in the order of the rules of package flow: books first, then buffers are
// posted again, then handlers run, which is for the caller. It reports whether serve has something to do.
func (l *Endpoint) process(b *batch, n int, now time.Duration) (due bool, err error) {
	for events := b.events[:n]; len(events) > 0; {
		if events[0].Kind != fabric.Arrived {
			l.happened(&events[0], now)
			events = events[1:]
			continue
		}
		events = events[l.arrivals(b, events, now):]
		if len(events) == 0 { // as it is mostly: the lock is held
			return l.settle(b, n, now)
		}
		l.mu.Unlock()
	}
	l.mu.Lock()
	return l.settle(b, n, now)
}

// happened takes an event that is no message.
func (l *Endpoint) happened(e *fabric.Event, now time.Duration) {
	switch e.Kind {
	case fabric.NoteArrived:
		l.noted(e, now)
	case fabric.Sent:
		l.written(e)
	case fabric.Down:
		l.down(l.known(e.Peer), e.Err, true)
	}
	// Up and Idle change nothing: credits outlive the network's connections.
}

// settle ends a round that brought n events, with the lane's lock, which it gives up.
func (l *Endpoint) settle(b *batch, n int, now time.Duration) (due bool, err error) {
	if planted != spareLate {
		err = l.repost(b, now)
	}
	if err == nil && b.n > 0 {
		err = l.pool.BeforeHandlers()
	}
	l.stats.polls++
	l.stats.waits += l.engine.waits
	l.engine.waits = 0
	if n == 0 {
		l.stats.empty++
	}
	due = !l.nothingDue(now)
	l.mu.Unlock()
	return due, err
}

// repost gives back the buffers that nobody needs, with the lane's lock. The others have spares in their place.
func (l *Endpoint) repost(b *batch, now time.Duration) error {
	if b.taken == 0 {
		return nil
	}
	if b.nslots > 0 {
		if err := l.port.Post(b.slots[:b.nslots]...); err != nil {
			return err
		}
		l.stats.posted += uint64(b.nslots)
	}
	err := l.pool.Reposted(b.taken, now)
	if b.freed {
		l.replyless.wake(l)
	}
	b.taken, b.nslots, b.freed = 0, 0, false
	return err
}

// arrivals takes the messages at the head of events that are of one peer, in one look at its books and the lane's. It
// returns how many, and holds the lane's lock then.
func (l *Endpoint) arrivals(b *batch, events []fabric.Event, now time.Duration) (n int) {
	p := l.known(events[0].Peer)
	var bad error
	p.mu.Lock()
	l.mu.Lock()
	for n < len(events) && bad == nil && events[n].Kind == fabric.Arrived && events[n].Peer == p.rank {
		bad = l.arrived(b, p, &events[n], now)
		n++
	}
	l.credited(p)
	p.mu.Unlock()
	if bad != nil {
		l.mu.Unlock()
		l.cut(p, bad)
		l.mu.Lock()
	}
	return n
}

// arrived takes one message, with the locks of its peer and the lane. The error is the peer's: it is to be cut off.
func (l *Endpoint) arrived(b *batch, p *peer, e *fabric.Event, now time.Duration) error {
	w := &b.work[b.n]
	w.rank, w.slot[0] = e.Peer, -1
	payload, err := w.head.decode(e.Data, l.hash)
	b.taken++
	p.quiet = 0
	if err == nil && w.head.kind == control {
		err = broken("is a note and takes a buffer", int(control), 0)
	}
	err = l.account(p, &w.head, payload, err, now)
	keep := false
	switch {
	case p.down != nil || err != nil && l.end != nil: // Close has ended the calls: a reply finds none
		l.stats.ignored++
		err = nil
	case err != nil:
		l.stats.broken++
		b.freed = true // it may be a reply
	case w.head.kind == request:
		l.stats.requests++
		keep = l.accept(w, payload, e.Slot)
		b.n++
	case w.head.kind == ping:
		l.stats.pinged++
	default:
		l.stats.replies++
		b.freed = true
	}
	if !keep {
		b.slots[b.nslots] = e.Slot
		b.nslots++
	}
	return err
}

// account enters a message into the books, and a reply into its call. The error is one of
// the message: whatever it says, its buffer is gone and must be accounted for. The locks of the peer and the lane are held.
func (l *Endpoint) account(p *peer, h *head, payload []byte, bad error, now time.Duration) (err error) {
	if bad == nil && (h.kind == reply || h.kind == failure) {
		err = l.pool.ReplyArrived(p.rank, connection)
	} else {
		err = l.pool.Arrived(p.rank, connection, now)
	}
	if bad != nil {
		return bad
	}
	if err == nil {
		err = l.pool.Apply(p.rank, &h.credit, now)
	}
	if err == nil { // before a call ends: a message that breaks the protocol ends none
		err = p.purse.Apply(&h.credit, now)
	}
	if err != nil || h.kind == request || h.kind == ping {
		return err
	}
	return l.answered(p.rank, h, payload)
}

// answered ends a call, with the lane's lock.
func (l *Endpoint) answered(rank int, h *head, payload []byte) error {
	e := l.calls.find(h.token, rank)
	if e == nil || e.needs&needReply == 0 {
		return &MessageError{Rule: "replies to no call", Got: h.token}
	}
	if h.cat == long {
		if h.off > uint64(len(l.cfg.Segment)) || uint64(h.length) > uint64(len(l.cfg.Segment))-h.off {
			return &MessageError{Rule: "writes beyond the segment", Got: h.off + uint64(h.length), Limit: uint64(len(l.cfg.Segment))}
		}
		payload = l.cfg.Segment[h.off : h.off+uint64(h.length) : h.off+uint64(h.length)]
	}
	if h.kind == failure {
		l.stats.failed++
	} else {
		l.stats.replied++
	}
	if w := e.w; w == nil {
		l.stats.late++
	} else if h.kind == failure {
		w.err = &RemoteError{Rank: rank, Handler: w.h.name, Reason: Reason(h.args[0]), Text: string(payload)}
	} else {
		w.reply.set(h, payload)
	}
	if w := l.calls.settle(index(h.token), needReply); w != nil {
		w.rouse(l)
	}
	return nil
}

// credited tells who waits for a credit that there is one, with the locks of the peer and the lane.
func (l *Endpoint) credited(p *peer) {
	if k := p.purse.Balance(); k > 0 {
		p.heard = true
		p.waiting.wakeSome(l, atPeer, k)
		p.wakePassing(l, k)
	}
	if p.wantsLook() {
		l.enlist(p)
	}
}

// accept decides where a request's payload is while its handler runs, and whether its buffer is kept. The lane's lock is held.
func (l *Endpoint) accept(w *work, payload []byte, slot int32) (keep bool) {
	if w.head.wants {
		l.stats.wanted++
	}
	switch {
	case len(payload) == 0:
		w.payload = nil
	case l.lent < l.cfg.Spares:
		l.lent++
		w.payload, w.slot[0] = payload, slot
		return true
	default:
		l.stats.copies++
		w.copied = append(w.copied[:0], payload...)
		w.payload = w.copied
	}
	return false
}

// noted takes a control message.
func (l *Endpoint) noted(e *fabric.Event, now time.Duration) {
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
		if err = l.pool.Apply(p.rank, &h.credit, now); err == nil {
			err = p.purse.Apply(&h.credit, now)
			l.credited(p)
		}
		l.mu.Unlock()
	}
	p.mu.Unlock()
	if err != nil {
		l.stats.badNotes.Add(1)
		l.cut(p, err)
	}
}

// written ends what the network had to do with a payload.
func (l *Endpoint) written(e *fabric.Event) {
	l.mu.Lock()
	x := l.calls.find(e.Cookie, e.Peer)
	if x == nil || x.needs&needSent == 0 {
		l.mu.Unlock()
		return
	}
	l.stats.written++
	if e.Err != nil && x.w != nil && x.w.err == nil {
		x.w.err = e.Err
	}
	w := l.calls.settle(index(e.Cookie), needSent)
	l.mu.Unlock()
	if w != nil {
		w.rouse(l)
	}
}
