package shm

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

const (
	pollTurns   = 64  // looks between two looks at the clock
	repairEvery = 256 // Polls without a budget
)

// Poll returns events, or none after budget.
func (ep *endpoint) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	if owner.Checked {
		if err := ep.guard.Enter(); err != nil {
			return 0, fmt.Errorf("shm: poll: endpoint %w", err)
		}
		defer ep.guard.Exit()
	}
	ep.polling.Lock()
	defer ep.polling.Unlock()
	if !ep.alive.Load() {
		return 0, ep.usable("poll")
	}
	ep.count.polls++
	if len(ep.lent) > 0 {
		ep.returnNotesLocked()
	}
	if ep.stuck.Load() > 0 {
		ep.retry()
	}
	n, err := ep.pollLocked(events)
	if n == 0 && err == nil && budget > 0 {
		n, err = ep.pollForLocked(events, budget)
	}
	if n == 0 && ep.count.polls%repairEvery == 0 {
		ep.repairLocked()
	}
	return n, err
}

// pollForLocked polls until there is something or the time is over.
func (ep *endpoint) pollForLocked(events []fabric.Event, budget time.Duration) (int, error) {
	start := time.Now()
	for {
		for range pollTurns {
			if n, err := ep.pollLocked(events); n > 0 || err != nil {
				return n, err
			}
		}
		if time.Since(start) >= budget {
			ep.repairLocked()
			return 0, nil
		}
		if ep.stuck.Load() > 0 {
			ep.retry()
		}
	}
}

// pollLocked looks once. Queued events go first: they announce connections.
func (ep *endpoint) pollLocked(events []fabric.Event) (n int, err error) {
	if ep.attention.Load() != 0 {
		if n, err = ep.takeQueuedLocked(events); err != nil {
			return 0, err
		}
	}
	if ep.receive.changed() {
		n += ep.takeMessagesLocked(events[n:])
	}
	if ep.noted.changed() {
		ep.takeNotesLocked() // into the queue
	}
	return n, nil
}

// takeMessagesLocked takes messages out of the ring. It looks at each cell once: a process that
// writes into the ring all the time must not keep it.
func (ep *endpoint) takeMessagesLocked(events []fabric.Event) (n int) {
	r := &ep.receive
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes := uint64(0)
loop:
	for looks := r.count; n < len(events) && r.head != r.next && looks > 0; looks-- {
		c := r.cell(r.head)
		w := atomic.LoadUint64(&c.word)
		switch ep.n.inspect(w, r.head) {
		case cellEmpty:
			break loop
		case cellBroken:
			if r.skipLocked(w) {
				ep.posts.repairs.Add(1)
			}
		case cellFull:
			switch ep.acceptLocked(c, int(wordRank(w)), &events[n]) {
			case msgGood:
				bytes += uint64(len(events[n].Data))
				r.head++
				n++
			case msgEarly:
				break loop
			case msgBad:
				r.skipLocked(w)
			}
		}
	}
	ep.count.arrivals += uint64(n)
	ep.count.bytes += bytes
	return n
}

// repairLocked mends what would leave senders without a slot for ever, or a message behind a cell
// that will never be filled: a tail that is not among the posted cells, or has passed one that no
// sender has claimed. A sender that dies between its claim and the tail leaves the former, too.
func (ep *endpoint) repairLocked() {
	for _, r := range []*receiver{&ep.receive, &ep.noted} {
		r.mu.Lock()
		t := atomic.LoadUint64(r.tail) // before the cells, which are claimed first
		if t-r.head > r.next-r.head {
			atomic.CompareAndSwapUint64(r.tail, t, r.head)
		} else {
			for t != r.head && !r.changed() && r.skipLocked(wordOf(r.head, posted, 0)) {
				ep.posts.repairs.Add(1)
			}
		}
		r.mu.Unlock()
	}
}

// What a message is.
const (
	msgGood  = iota
	msgEarly // its connection is about to be announced
	msgBad   // to be dropped
)

// acceptLocked makes a message an event. It checks everything that the sender wrote.
func (ep *endpoint) acceptLocked(c *cell, from int, e *fabric.Event) int {
	n, epoch, seq := atomic.LoadUint32(&c.n), atomic.LoadUint32(&c.epoch), atomic.LoadUint32(&c.seq)
	l := ep.links[from].Load()
	if l == nil || !l.polled.open || epoch != l.polled.epoch {
		return ep.link(from).unannounced(epoch)
	}
	r := &ep.receive
	if seq != l.polled.next || n > r.size {
		ep.n.protocolError(from, fmt.Errorf("shm: message %d of %d bytes came where number %d should, of at most %d",
			seq, n, l.polled.next, r.size))
		return msgBad
	}
	id := r.slotOf[r.head&r.mask]
	data := r.slot(id, n)
	if n <= inlineMax {
		copy(data, c.inline[:n])
	}
	r.lent[id] = true
	l.polled.next++
	l.received.Store(uint64(epoch)<<32 | uint64(l.polled.next))
	*e = fabric.Event{Kind: fabric.Arrived, Peer: from, Slot: int32(id), Epoch: epoch, Data: data[:n:n]}
	return msgGood
}

// takeQueuedLocked takes queued events.
func (ep *endpoint) takeQueuedLocked(events []fabric.Event) (n int, err error) {
	if !ep.alive.Load() {
		return 0, ep.usable("poll")
	}
	for n < len(events) {
		ep.mu.Lock()
		if ep.queue.Len() == 0 {
			ep.mu.Unlock()
			break
		}
		e := ep.queue.Pop()
		ep.mu.Unlock()
		ep.attention.Add(-1)
		if ep.deliveredLocked(&e) {
			events[n] = e.Event
			n++
		}
	}
	return n, nil
}

// deliveredLocked updates the program's view for an event. It is false if the event may
// not come any more.
func (ep *endpoint) deliveredLocked(e *entry) bool {
	switch e.Kind {
	case fabric.Sent:
		ep.sends.free(e.buf)
		return true
	case fabric.NoteArrived:
		ep.lent = append(ep.lent, e.note)
		l := ep.links[e.Peer].Load()
		return l == nil || !l.polled.down
	}
	l := ep.links[e.Peer].Load()
	switch e.Kind {
	case fabric.Up:
		l.polled.open, l.polled.epoch, l.polled.next = true, e.Epoch, 0
		l.received.Store(uint64(e.Epoch) << 32)
	case fabric.Idle:
		l.polled.open = false
	case fabric.Down:
		l.polled.open, l.polled.down = false, true
	}
	return true
}

// Post gives slots back.
func (ep *endpoint) Post(slots ...int32) error {
	r := &ep.receive
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ep.alive.Load() {
		return ep.usable("post")
	}
	for _, id := range slots {
		if uint(id) >= uint(len(r.lent)) || !r.lent[id] {
			return fmt.Errorf("shm: post: slot %d is not the caller's", id)
		}
		r.postLocked(uint32(id))
	}
	return nil
}
