//go:build linux && cgo

package ibv

import (
	"errors"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// What a work request identifier names, in its highest bits.
const (
	idMessage = iota
	idSlot
	idIn
	idOut

	idShift = 62
)

// Poll posts what waits and takes what there is, mostly in one call into C, and if that is nothing
// polls in another until the budget has passed.
func (p *endpoint) Poll(events []fabric.Event, budget time.Duration) (n int, err error) {
	if !p.poller.TryLock() {
		return 0, p.occupied("poll")
	}
	p.polled.Add(1)
	if p.events.begin(events); p.events.n == 0 {
		err = p.progress(budget)
	} else if p.look.Load() {
		p.mu.Lock()
		err = p.usableLocked("poll")
		p.mu.Unlock()
	}
	if n = p.events.end(); err != nil {
		n = 0
	} else if p.noted > 0 {
		p.lendNotes(events[:n])
	}
	p.poller.Unlock()
	return n, err
}

// lendNotes notes which buffers of datagrams events lend to Poll's caller.
func (p *endpoint) lendNotes(events []fabric.Event) {
	for i := range events {
		if e := &events[i]; e.Kind == fabric.NoteArrived {
			p.datagrams.lent = append(p.datagrams.lent, e.Slot)
			e.Slot = 0
			p.noted--
		}
	}
	p.look.Store(true) // the next turn takes them back
}

// progress is one turn of the poller, and further ones as long as completions come that are no
// events: when Poll returns nothing there was nothing.
func (p *endpoint) progress(budget time.Duration) error {
	n, more, err := p.turn(budget)
	if n > 0 && p.events.len() == 0 {
		// no longer than for completions that were there
		for left := p.listener.cq.Cap(); err == nil && n > 0 && left > 0 && p.events.len() == 0; left -= n {
			var also bool
			n, also, err = p.turn(budget) // mostly the end of a send came first
			more, budget = more || also, 0
		}
	}
	if err != nil {
		return err
	}
	if p.downSeen != p.n.deaths.N.Load() {
		p.noticeDowns()
		more = true
	}
	if p.polls++; n == 0 || p.polls%timersEvery == 0 {
		p.mu.Lock()
		p.conns.runTimers(p.Now())
		p.mu.Unlock()
		more = true
	}
	if more {
		p.settle()
	}
	return nil
}

// turn posts what waits for it, polls within the budget, and takes what came. The count is of
// completions; more says that there may be work for settle.
func (p *endpoint) turn(budget time.Duration) (n int, more bool, err error) {
	bell := p.bell
	if p.look.Load() {
		if n, err = p.postWaiting(); err != nil {
			return 0, false, err
		}
		if n > 0 {
			bell = p.out.tx.bell
		}
	}
	if n == 0 {
		if n, err = bell.PollFor(1, budget); n == 0 && err == nil {
			return 0, true, nil
		}
		p.mu.Lock()
	}
	wcs := bell.Completions()
	for i := range wcs {
		wc := &wcs[i]
		switch index := int32(uint32(wc.WRID)); wc.WRID >> idShift {
		case idSlot:
			p.arrivedLocked(index, wc)
		case idIn:
			p.receivedLocked(index, wc)
		case idOut:
			p.datagrams.sent(index, wc)
		default:
			p.out.tx.completed(wc)
		}
	}
	if err != nil {
		p.out.lose(err)
	}
	err, more = p.out.lost, p.unsettledLocked()
	p.mu.Unlock()
	return n, more, err
}

// postWaiting posts what waits for the poller, and takes completions with the same call, if
// something did and there are some: their count, and with them it keeps mu.
func (p *endpoint) postWaiting() (n int, err error) {
	p.mu.Lock()
	if err = p.usableLocked("poll"); err == nil {
		p.look.Store(false)
		p.datagrams.takeBack()
		p.prepareLocked(false)
		if p.out.tx.staged() {
			n = p.out.ring(1)
		}
		if n > 0 {
			return n, nil
		}
		err = p.out.lost
	}
	p.mu.Unlock()
	return 0, err
}

var errImmediate = errors.New("ibv: it took a receive buffer by a write with immediate data, which no rank does")

// arrivedLocked is the arrival of a message.
func (p *endpoint) arrivedLocked(slot int32, wc *verbs.WC) {
	c := p.conns.last
	if c == nil || c.qpn != wc.QPNum {
		c = p.conns.find(wc.QPNum)
	}
	if c == nil || c.state == connGone || wc.Status != verbs.StatusSuccess {
		p.slots.bare = append(p.slots.bare, slot)
		p.look.Store(true)
		if c != nil && wc.Status != verbs.StatusFlushed {
			p.out.tx.fail(&c.q, wc.Err())
		}
		return
	}
	if wc.Opcode != verbs.WCRecv || int(wc.ByteLen) > p.cfg.SlotSize { // the slot holds what came before
		p.slots.bare = append(p.slots.bare, slot)
		p.look.Store(true)
		p.out.tx.fail(&c.q, errImmediate)
		return
	}
	if c.state == connAnswering {
		p.conns.made(c) // it sends, hence our reply came
	}
	c.arrived++
	c.busy = true
	p.out.used(c)
	p.slots.posted[slot] = false
	p.slots.count--
	p.count.Arrivals++
	p.count.ArrivalBytes += uint64(wc.ByteLen)
	e := p.events.next()
	e.Kind, e.Peer, e.Slot, e.Epoch, e.Cookie, e.Err = fabric.Arrived, int(c.q.rank), slot, c.q.epoch, 0, nil
	e.Data = p.slots.bytes(slot, wc.ByteLen)
}

// receivedLocked is the arrival of a datagram. Whatever is wrong with it, it is dropped and
// counted.
func (p *endpoint) receivedLocked(i int32, wc *verbs.WC) {
	d, ok := p.datagrams.understand(i, wc)
	if !ok || p.conns.isDown(int(d.from)) {
		p.count.NotesDropped++
	} else if d.kind == dgNote {
		p.count.NotesArrived++
		p.noted++
		p.events.push(fabric.Event{Kind: fabric.NoteArrived, Peer: int(d.from), Slot: i, Data: d.note})
		return // Poll takes the buffer back
	} else {
		p.conns.control = append(p.conns.control, d) // it may need a queue pair: not under the lock
	}
	p.datagrams.in.bare = append(p.datagrams.in.bare, i)
	p.look.Store(true)
}

// unsettledLocked reports whether settle has something to do.
func (p *endpoint) unsettledLocked() bool {
	return len(p.out.tx.failed)+len(p.conns.control)+len(p.conns.wanted)+
		len(p.out.idle)+len(p.out.ready)+len(p.out.tx.probes) > 0 || p.out.tx.staged()
}

// settle does what reaping and other goroutines left to the poller: it makes connections and ends
// them, and posts.
func (p *endpoint) settle() {
	p.mu.Lock()
	for len(p.out.tx.failed)+len(p.conns.control)+len(p.conns.wanted)+len(p.out.idle) > 0 {
		failed, control, wanted, idle := p.out.tx.failed, p.conns.control, p.conns.wanted, p.out.idle
		p.out.tx.failed, p.conns.control, p.conns.wanted, p.out.idle = nil, nil, nil, nil
		p.mu.Unlock()
		for _, q := range failed {
			p.n.found(int(q.rank), q.err)
		}
		if len(failed) > 0 {
			p.noticeDowns()
		}
		p.mu.Lock()
		for i := range control {
			p.conns.answer(&control[i])
		}
		for _, c := range wanted {
			p.conns.ask(c)
		}
		for _, c := range idle {
			p.conns.closeIfIdle(c)
		}
	}
	_ = p.flushLocked() // the next turn has the error
	p.mu.Unlock()
}

// noticeDowns ends what there is with ranks that were found down. As a part of progress it would
// cost each poll.
//
//go:noinline
func (p *endpoint) noticeDowns() {
	p.downSeen = p.n.deaths.N.Load()
	p.n.deaths.Each(p.endPeer)
}

// endPeer ends what there is with a rank that is down. Every message has its one end before the
// rank has its own.
func (p *endpoint) endPeer(rank int, cause error) {
	if !p.n.peers[rank].served() || p.conns.isDown(rank) {
		return
	}
	p.mu.Lock()
	c := p.conns.to(rank)
	p.mu.Unlock()
	if c != nil && c.q.qp != nil { // only the poller makes and closes one
		// The slot of a message that was cut off comes back as flushed; what arrived whole is still
		// delivered.
		if err := c.q.qp.ToError(); err != nil {
			p.n.log.Warn("ibv: queue pair of a rank that is down cannot be stopped", "rank", rank, "err", err)
		}
		p.drain()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns.endPeer(rank, cause)
	p.events.push(fabric.Event{Kind: fabric.Down, Peer: rank, Err: cause})
}

// drain takes all that the completion queue holds, before a queue pair is closed: some devices drop
// the rest of it then, with the slots of its messages (mlx5_cq_clean, providers/mlx5/cq.c of
// rdma-core).
func (p *endpoint) drain() {
	for left := p.listener.cq.Cap(); left > 0; {
		n, _, _ := p.turn(pollBudget) // the next turn has the error
		if n == 0 {
			return
		}
		left -= n
	}
}
