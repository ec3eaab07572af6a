package am

import (
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
)

// inbox takes what arrives, and runs the handlers of requests.
type inbox struct {
	*core
	replier   *replier
	unclaimed atomic.Int32          // requests of active whose handlers no goroutine has begun
	active    []*batch              // those with several handlers that run; under the lock
	batches   []*batch              // free ones; likewise
	nextBatch atomic.Pointer[batch] // a free one that can be had without the lock
	last      *peer                 // of the last event; the leader's
	bare      []int32               // receive buffers that are to be posted; under the lock
}

// postBatch is how many receive buffers are posted together: ibv_post_srq_recv(3) takes a list, and
// what surrounds it is done once for all.
const postBatch = 8

// batch is what one goroutine takes on at once: the events of a Poll, and the requests among them,
// with the handlers that it runs.
type batch struct {
	events            [eventsPerPoll]fabric.Event
	work              [eventsPerPoll]work
	n                 int          // of work
	taken             int          // receive buffers that messages took
	claimed, finished atomic.Int32 // of work
	freed             bool         // some were for replies
}

// work is a request for a handler.
type work struct {
	head    head
	rank    int
	from    *peer // that is the rank; nil: this one
	payload []byte
	slot    int32 // that the payload lies in, to be posted afterwards; -1: none
	call    Call
	copied  []byte // memory for a payload whose slot was needed
}

// batch returns a free one.
func (x *inbox) batch() *batch {
	if b := x.nextBatch.Swap(nil); b != nil {
		return b
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if k := len(x.batches) - 1; k >= 0 {
		b := x.batches[k]
		x.batches = x.batches[:k]
		return b
	}
	return new(batch)
}

// processLocked takes the events of a round: counts first, then buffers are posted again; the
// caller runs the handlers. The lock is given up and taken where OnClosed is called.
func (x *inbox) processLocked(b *batch, n int, now time.Duration) {
	for i := range b.events[:n] {
		e := &b.events[i]
		p := x.last
		if p == nil || p.rank != e.Peer {
			p = x.known(e.Peer)
			x.last = p
		}
		var cause error
		switch e.Kind {
		case fabric.Arrived:
			cause = x.arrivedLocked(b, p, e, now)
		case fabric.NoteArrived:
			cause = x.notedLocked(p, e, now)
		case fabric.Sent:
			x.writtenLocked(e)
		case fabric.Up:
			x.acquirer.connect(p)
		case fabric.Idle: // credits outlive the network's connections
			x.acquirer.disconnect(p)
		}
		if cause != nil || e.Kind == fabric.Down {
			x.mu.Unlock()
			if cause != nil {
				x.cut(p, cause)
			} else {
				x.down(p, e.Err, true)
			}
			x.mu.Lock()
		}
	}
}

// settleLocked ends a round that brought n events: buffers that handlers need have spares in their
// place. It reports whether the pool's rules hold.
func (x *inbox) settleLocked(b *batch, n int, now time.Duration) error {
	c := x.core
	c.stats.polls++
	if n == 0 {
		c.stats.empty++
	}
	if b.taken == 0 {
		return nil
	}
	if !x.mayStayBare() {
		if err := x.postLocked(); err != nil {
			return err
		}
	}
	err := c.pool.Reposted(b.taken, now)
	if b.freed {
		c.acquirer.serve(&c.acquirer.replies)
	}
	b.taken, b.freed = 0, false
	if err == nil && b.n > 0 {
		err = c.pool.BeforeHandlers()
	}
	return err
}

// giveBackLocked takes back a buffer that is not needed any more.
func (x *inbox) giveBackLocked(slot int32) {
	x.stats.posted++
	x.bare = append(x.bare, slot)
}

// mayStayBare reports whether the buffers that have come back need not be posted yet: they are few,
// and spares stand in for them.
func (x *inbox) mayStayBare() bool {
	return len(x.bare) < postBatch && x.lent+len(x.bare) <= x.cfg.Spares
}

// postLocked posts them.
func (x *inbox) postLocked() error {
	slots := x.bare
	x.bare = x.bare[:0]
	return x.net.Post(slots...)
}

// arrivedLocked takes one message. The error is the peer's: it is to be cut off.
func (x *inbox) arrivedLocked(b *batch, p *peer, e *fabric.Event, now time.Duration) error {
	w := &b.work[b.n]
	w.rank, w.from, w.slot = e.Peer, p, -1
	b.taken++
	p.silentAt = 0
	if p.down == nil && x.end == nil && w.head.decodePlain(e.Data, x.hash, p.credits.Known(connection)) {
		x.giveBackLocked(e.Slot)
		return x.shortLocked(b, p, w, now)
	}
	payload, err := w.head.decode(e.Data, x.hash)
	if err == nil && w.head.kind == control {
		err = broken("is a note and takes a buffer", int(control), 0)
	}
	err = x.accountLocked(p, &w.head, payload, err, now)
	keep := false
	switch {
	case p.down != nil || err != nil && x.end != nil: // Close has ended the calls: a reply finds none
		x.stats.ignored++
		err = nil
	case err != nil:
		x.stats.broken++
		b.freed = true // it may be a reply
	case w.head.kind == request:
		x.stats.requests++
		keep = x.acceptLocked(w, payload, e.Slot)
		b.n++
	case w.head.kind >= ping:
		x.stats.countArrivedStep(w.head.kind)
	default:
		x.stats.replies++
		b.freed = true
	}
	if !keep {
		x.giveBackLocked(e.Slot)
	}
	return err
}

// shortLocked takes a Short that says nothing of credits: the straight path. It does what
// accountLocked and arrivedLocked do for any message.
func (x *inbox) shortLocked(b *batch, p *peer, w *work, now time.Duration) (err error) {
	c := x.core
	if w.head.kind == request {
		if err = c.pool.Arrived(p.rank, connection, now); err == nil {
			c.stats.requests++
			if w.head.wants {
				c.stats.wanted++
			}
			w.payload = nil
			b.n++
			return nil
		}
	} else if err = c.pool.ReplyArrived(p.rank, connection); err == nil {
		err = x.answeredLocked(p, p.rank, &w.head, nil)
	}
	b.freed = true
	if err != nil {
		c.stats.broken++
		return err
	}
	c.stats.replies++
	return nil
}

// accountLocked enters a message into the accounts, and a reply into its call. The error is one of
// the message: whatever it says, its buffer is gone and must be accounted for.
func (x *inbox) accountLocked(p *peer, h *head, payload []byte, bad error, now time.Duration) (err error) {
	if bad == nil && h.kind.answers() {
		err = x.pool.ReplyArrived(p.rank, connection)
	} else {
		err = x.pool.Arrived(p.rank, connection, now)
	}
	if bad != nil {
		return bad
	}
	// Before a call ends: a message that breaks the protocol ends none. Most have nothing new.
	if err == nil && (h.credit.Asks() || !p.credits.Knows(&h.credit)) {
		err = x.applyLocked(p, &h.credit, now)
	}
	switch {
	case err != nil:
		return err
	case h.kind.answers():
		return x.answeredLocked(p, p.rank, h, payload)
	case h.kind >= announce:
		return x.stepLocked(p, h, payload)
	}
	return nil
}

// applyLocked takes what a peer says of credits, and serves the requests that wait for them.
func (x *inbox) applyLocked(p *peer, h *credit.Header, now time.Duration) error {
	if err := x.pool.Apply(p.rank, h, now); err != nil {
		return err
	}
	if err := p.credits.Apply(h, now); err != nil {
		return err
	}
	if p.credits.Balance() > 0 {
		p.granted = true
		x.acquirer.credited(p)
	}
	x.enlistLocked(p)
	return nil
}

// acceptLocked decides where a request's payload is while its handler runs, and whether its buffer
// is kept.
func (x *inbox) acceptLocked(w *work, payload []byte, slot int32) (keep bool) {
	if w.head.wants {
		x.stats.wanted++
	}
	switch {
	case len(payload) == 0:
		w.payload = nil
	case x.lent < x.cfg.Spares:
		x.lent++
		w.payload, w.slot = payload, slot
		return true
	default:
		x.stats.copies++
		w.copied = append(w.copied[:0], payload...)
		w.payload = w.copied
	}
	return false
}

// notedLocked takes a control message. The error is the peer's: it is to be cut off.
func (x *inbox) notedLocked(p *peer, e *fabric.Event, now time.Duration) error {
	x.stats.notes.Add(1)
	var h head
	if _, err := h.decode(e.Data, x.hash); err != nil || h.kind != control {
		if err == nil {
			err = broken("is no control message and came as a note", int(h.kind), int(control))
		}
		x.stats.badNotes.Add(1) // anybody may have sent it: it is not held against the peer
		x.report(e.Peer, of(e.Peer, err))
		return nil
	}
	if p.down != nil || e.Peer == x.cfg.Rank {
		return nil
	}
	p.silentAt = 0
	err := x.openLocked(p, now)
	if err == nil {
		err = x.applyLocked(p, &h.credit, now)
	}
	if err != nil {
		x.stats.badNotes.Add(1)
	}
	return err
}

// writtenLocked ends the network's use of a payload.
func (x *inbox) writtenLocked(e *fabric.Event) {
	c := x.calls.find(e.Cookie, e.Peer)
	if c == nil || c.needs&needSent == 0 {
		return
	}
	x.stats.written++
	if e.Err != nil && c.w != nil && c.w.err == nil {
		c.w.err = e.Err
	}
	if w := x.calls.settle(index(e.Cookie), needSent); w != nil {
		w.resume()
	}
}
