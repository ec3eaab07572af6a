package shm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// receiver is the owner's view of its ring.
type receiver struct {
	*ring
	mu     sync.Mutex
	head   uint64 // ticket of the next message; written by who polls, with mu
	next   uint64 // ticket of the next slot that is posted
	slotOf []uint32
	lent   []bool // by slot: it is the program's
}

// This is told often, hence not made anew.
var errLongNote = fmt.Errorf("shm: a note of more than %d bytes", maxNote)

func (r *receiver) open(g *ring) {
	r.ring, r.slotOf, r.lent = g, make([]uint32, g.mask+1), make([]bool, g.count)
	for id := range g.count {
		r.postLocked(id)
	}
}

func (r *receiver) postLocked(id uint32) {
	r.lent[id] = false
	r.slotOf[r.next&r.mask] = id
	r.post(r.next, id)
	r.next++
}

const (
	pollTurns = 64                    // looks between two looks at the clock
	yieldFrom = 20 * time.Microsecond // of idling, over all Polls, before others run in between
	mendEvery = 256                   // Polls: those that bring nothing may all be too short to idle
)

// Poll returns events, or none after budget.
func (p *port) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	if owner.Checked {
		if err := p.guard.Enter(); err != nil {
			return 0, fmt.Errorf("shm: poll: port %w", err)
		}
		defer p.guard.Exit()
	}
	p.polling.Lock()
	defer p.polling.Unlock()
	if !p.alive.Load() {
		return 0, p.usable("poll")
	}
	p.count.polls++
	if len(p.lent) > 0 {
		p.returnNotes()
	}
	if p.stuck.Load() > 0 {
		p.retry()
	}
	n, err := p.look(events)
	if n == 0 && err == nil && budget > 0 {
		n, err = p.lookFor(events, budget)
	}
	if n > 0 {
		p.idle = 0
	} else if p.count.polls%mendEvery == 0 {
		p.mend()
	}
	return n, err
}

// lookFor looks until there is something or the time is over.
func (p *port) lookFor(events []fabric.Event, budget time.Duration) (int, error) {
	start := time.Now()
	before := p.idle
	for {
		for range pollTurns {
			if n, err := p.look(events); n > 0 || err != nil {
				return n, err
			}
		}
		spent := time.Since(start)
		if p.idle = before + spent; spent >= budget {
			return 0, nil
		}
		if p.stuck.Load() > 0 {
			p.retry()
		}
		if p.idle >= yieldFrom || p.n.crowded {
			p.mend()
			runtime.Gosched()
			yieldCore() // the peer may need this very core
		}
	}
}

// look is one look. Queued events go first: they announce connections.
func (p *port) look(events []fabric.Event) (n int, err error) {
	if p.attention.Load() != 0 {
		if n, err = p.drain(events); err != nil {
			return 0, err
		}
	}
	if p.receive.stirs() {
		n += p.harvest(events[n:])
	}
	if p.noted.stirs() {
		p.harvestNotes() // into the queue
	}
	return n, nil
}

// stirs is false while the slot at the head waits for a message.
func (r *receiver) stirs() bool {
	return atomic.LoadUint64(&r.cell(r.head).word) != wordOf(r.head, posted, 0)
}

// harvest takes messages out of the ring.
func (p *port) harvest(events []fabric.Event) (n int) {
	r := &p.receive
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes := uint64(0)
loop:
	for looks := r.count; n < len(events) && r.head != r.next && looks > 0; looks-- { // else who scribbles all the time keeps it for ever
		c := r.cell(r.head)
		w := atomic.LoadUint64(&c.word)
		switch p.judge(w, r.head) {
		case cellEmpty:
			break loop
		case cellBroken:
			if r.skipLocked(w) {
				p.posts.repairs.Add(1)
			}
		case cellFull:
			switch p.take(c, int(wordRank(w)), &events[n]) {
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
	p.count.arrivals += uint64(n)
	p.count.bytes += bytes
	return n
}

// mend puts right what would leave senders without a slot for ever, or a message behind a cell that nobody fills: a tail
// that is not among the posted cells, or has passed one that nobody has claimed. Who dies between a claim and the tail leaves
// the former, too.
func (p *port) mend() {
	for _, r := range []*receiver{&p.receive, &p.noted} {
		r.mu.Lock()
		t := atomic.LoadUint64(r.tail) // before the cells, which are claimed first
		if t-r.head > r.next-r.head {
			atomic.CompareAndSwapUint64(r.tail, t, r.head)
		} else {
			for t != r.head && !r.stirs() && r.skipLocked(wordOf(r.head, posted, 0)) {
				p.posts.repairs.Add(1)
			}
		}
		r.mu.Unlock()
	}
}

// harvestNotes queues the notes in their ring.
func (p *port) harvestNotes() {
	r := &p.noted
	r.mu.Lock()
	defer r.mu.Unlock()
	for range noteSlots { // likewise
		c := r.cell(r.head)
		w := atomic.LoadUint64(&c.word)
		switch p.judge(w, r.head) {
		case cellEmpty:
			return
		case cellBroken:
			if r.skipLocked(w) {
				p.posts.repairs.Add(1)
			}
		case cellFull:
			var b [maxNote]byte
			n, id := atomic.LoadUint32(&c.n), r.slotOf[r.head&r.mask]
			if n > maxNote {
				n = 0
				p.violated(int(wordRank(w)), errLongNote)
			} else if n <= inlineMax {
				copy(b[:n], c.inline[:])
			} else {
				copy(b[:n], r.slot(id, n))
			}
			r.head++
			r.postLocked(id)
			p.noteArrives(int(wordRank(w)), b[:n])
		}
	}
}

// What a cell is to the owner.
const (
	cellEmpty = iota
	cellFull
	cellBroken
)

// judge looks at the word of the cell at the head, in which a slot was posted.
func (p *port) judge(w, head uint64) int {
	r := wordRank(w)
	if wordTicket(w) != uint32(head) || r >= uint32(len(p.links)) || wordState(w) != posted && p.n.targets[r].state.Load() == absent {
		return cellBroken
	}
	switch wordState(w) {
	case full:
		return cellFull
	case posted:
		if r == 0 {
			return cellEmpty
		}
	case claimed:
		if !p.n.peers[r].gone.Load() {
			return cellEmpty // it is being written
		}
	}
	return cellBroken
}

// skipLocked gives up the cell at the head and posts its slot again, behind the others.
// It is false if the cell changed meanwhile.
func (r *receiver) skipLocked(w uint64) bool {
	if !r.giveUp(r.head, w) {
		return false
	}
	id := r.slotOf[r.head&r.mask]
	r.head++
	r.postLocked(id)
	return true
}

// What a message is.
const (
	msgGood  = iota
	msgEarly // its connection is about to be announced
	msgBad   // to be dropped
)

// take makes a message an event. Nothing that it says of itself is believed.
func (p *port) take(c *cell, from int, e *fabric.Event) int {
	n, epoch, seq := atomic.LoadUint32(&c.n), atomic.LoadUint32(&c.epoch), atomic.LoadUint32(&c.seq)
	l := p.links[from].Load()
	if l == nil || !l.open || epoch != l.told {
		return p.strange(from, epoch)
	}
	r := &p.receive
	if seq != l.next || n > r.size {
		p.violated(from, fmt.Errorf("shm: message %d of %d bytes came where number %d should, of at most %d", seq, n, l.next, r.size))
		return msgBad
	}
	id := r.slotOf[r.head&r.mask]
	data := r.slot(id, n)
	if n <= inlineMax {
		copy(data, c.inline[:n])
	}
	r.lent[id] = true
	l.next++
	l.received.Store(uint64(epoch)<<32 | uint64(l.next))
	*e = fabric.Event{Kind: fabric.Arrived, Peer: from, Slot: int32(id), Epoch: epoch, Data: data[:n:n]}
	return msgGood
}

// drain takes queued events.
func (p *port) drain(events []fabric.Event) (n int, err error) {
	if !p.alive.Load() {
		return 0, p.usable("poll")
	}
	for n < len(events) {
		p.mu.Lock()
		if p.queue.n == 0 {
			p.mu.Unlock()
			break
		}
		e := p.queue.pop()
		p.mu.Unlock()
		p.attention.Add(-1)
		if p.tell(&e) {
			events[n] = e.Event
			n++
		}
	}
	return n, nil
}

// tell notes what the program learns by an event. It is false if the program must not.
func (p *port) tell(e *entry) bool {
	switch e.Kind {
	case fabric.Sent:
		p.sends.give(e.buf)
		return true
	case fabric.NoteArrived:
		p.lent = append(p.lent, e.note)
		l := p.links[e.Peer].Load()
		return l == nil || !l.gone
	}
	l := p.links[e.Peer].Load()
	switch e.Kind {
	case fabric.Up:
		l.open, l.told, l.next = true, e.Epoch, 0
		l.received.Store(uint64(e.Epoch) << 32)
	case fabric.Idle:
		l.open = false
	case fabric.Down:
		l.open, l.gone = false, true
	}
	return true
}

// Post gives slots back.
func (p *port) Post(slots ...int32) error {
	r := &p.receive
	r.mu.Lock()
	defer r.mu.Unlock()
	if !p.alive.Load() {
		return p.usable("post")
	}
	for _, id := range slots {
		if uint(id) >= uint(len(r.lent)) || !r.lent[id] {
			return fmt.Errorf("shm: post: slot %d is not the caller's", id)
		}
		r.postLocked(uint32(id))
	}
	return nil
}
