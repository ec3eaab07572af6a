package shm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

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

// These are told often, hence not made anew.
var (
	errLongNote = fmt.Errorf("shm: a note of more than %d bytes", maxNote)
	errNoBuffer = fmt.Errorf("shm: reserve: %w", fabric.ErrNoBuffer)
)

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

// Reserve takes a send buffer.
func (p *port) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if !p.alive.Load() {
		return fabric.SendBuf{}, p.usable("reserve")
	}
	urgent := f&fabric.Urgent != 0
	s := &p.sends
	s.mu.Lock()
	k := len(s.free) - 1
	if k < 0 || !urgent && s.common == len(s.bufs)-p.cfg.Reserved {
		s.mu.Unlock()
		return fabric.SendBuf{}, errNoBuffer
	}
	id := s.free[k]
	s.free = s.free[:k]
	b := &s.bufs[id]
	if b.urgent = urgent; !urgent {
		s.common++
	}
	s.mu.Unlock()
	b.state.Store(bufOurs)
	return fabric.SendBuf{Data: b.data, ID: id}, nil
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (p *port) Release(b fabric.SendBuf) {
	if uint(b.ID) >= uint(len(p.sends.bufs)) || !p.sends.bufs[b.ID].state.CompareAndSwap(bufOurs, bufWired) {
		panic(fmt.Sprintf("shm: release: send buffer %d is not the caller's", b.ID))
	}
	p.sends.give(b.ID)
}

// Send leaves the message with the peer, or queues it.
func (p *port) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if err := p.checkSend(peer, b, n, w, cookie); err != nil {
		return err
	}
	l := p.link(peer)
	l.mu.Lock()
	if err := l.sendableLocked(); err != nil {
		l.mu.Unlock()
		return err
	}
	if b.ID == fabric.Copied {
		err := l.passLocked(b.Data[:n], f)
		l.mu.Unlock()
		return err
	}
	m := &p.sends.bufs[b.ID]
	if !m.state.CompareAndSwap(bufOurs, bufWired) {
		l.mu.Unlock()
		return fmt.Errorf("shm: send: send buffer %d is not the caller's", b.ID)
	}
	m.n, m.cookie, m.flags, m.missed, m.behind = int32(n), cookie, f, false, w != nil
	l.sends++
	l.sendBytes += uint64(n)
	if w != nil {
		m.w = *w
		l.writes++
		l.writeBytes += uint64(len(w.Src))
	}
	if l.waiting > 0 || !l.postLocked(b.ID, m) {
		l.queueLocked(b.ID, m)
	}
	l.mu.Unlock()
	return nil
}

// passLocked leaves a message that is in no send buffer with the peer, or queues it in one.
func (l *link) passLocked(data []byte, f fabric.SendFlag) error {
	p := l.p
	if l.waiting == 0 && l.state == linkUp && l.far != nil && l.far.put(p.rank, l.epoch, l.sent, data) {
		l.passedLocked(f)
	} else {
		b, err := p.Reserve(f)
		if err != nil {
			return err
		}
		m := &p.sends.bufs[b.ID]
		m.state.Store(bufWired)
		m.n, m.cookie, m.flags, m.missed, m.behind = int32(copy(b.Data, data)), 0, f, false, false
		l.queueLocked(b.ID, m)
	}
	l.sends++
	l.sendBytes += uint64(len(data))
	return nil
}

func (p *port) checkSend(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64) error {
	if !p.alive.Load() {
		return p.usable("send")
	}
	if uint(peer) >= uint(len(p.links)) || p.n.targets[peer].state.Load() != up {
		return p.refuse("send", peer)
	}
	if b.ID == fabric.Copied {
		if err := fabric.CheckCopied(peer, b, n, w, cookie); err != nil {
			return err
		}
	} else if uint(b.ID) >= uint(len(p.sends.bufs)) {
		return fmt.Errorf("shm: send: send buffer %d is not the caller's", b.ID)
	}
	if n < 0 || n > p.cfg.SlotSize {
		return &fabric.BoundsError{Op: "send", Rank: peer, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	if w == nil {
		return nil
	}
	return fabric.CheckRange("write", peer, w.Off, uint64(len(w.Src)), p.n.targets[peer].size)
}

// postLocked leaves a message with the peer. It is false when it cannot now.
func (l *link) postLocked(id int32, m *sendBuf) bool {
	if l.state != linkUp || l.far == nil {
		return false
	}
	if m.behind { // before a slot is claimed: it may be long
		m.behind = false
		t := &l.p.n.targets[l.peer]
		orderStores()
		store(unsafe.Add(t.base, m.w.Off), m.w.Src)
	}
	if !l.far.put(l.p.rank, l.epoch, l.sent, m.data[:m.n]) {
		return false
	}
	l.passedLocked(m.flags)
	l.p.finish(l.peer, id, m, nil)
	return true
}

// passedLocked counts a message that is with the peer, and wakes it if it sleeps.
func (l *link) passedLocked(f fabric.SendFlag) {
	l.sent++
	if f&fabric.Solicited != 0 && atomic.LoadUint32(&l.far.head.armed) != 0 {
		l.wakePeer()
	}
}

// wakePeer wakes a peer that sleeps, once.
func (l *link) wakePeer() {
	if atomic.CompareAndSwapUint32(&l.far.head.armed, 1, 0) {
		l.p.posts.doorbells.Add(1)
		l.p.sendWake(l.peer)
	}
}

// finish ends a message.
func (p *port) finish(peer int, id int32, m *sendBuf, err error) {
	if m.cookie == 0 {
		p.sends.give(id)
		return
	}
	p.push(entry{Event: fabric.Event{Kind: fabric.Sent, Peer: peer, Cookie: m.cookie, Err: err}, buf: id})
}

// Kick has little to do: nothing is held back for want of it.
func (p *port) Kick() error {
	if !p.alive.Load() {
		return p.usable("kick")
	}
	if p.stuck.Load() > 0 {
		p.retry()
	}
	return nil
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
