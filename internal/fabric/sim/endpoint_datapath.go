package sim

import (
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// message is one message that is not complete.
type message struct {
	buf       int32 // send buffer
	n         int32
	solicited bool
	written   bool // w was
	cookie    uint64
	w         fabric.Write
	at        int64 // when it arrives; then when that is known
}

// Reserve takes a send buffer.
func (p *endpoint) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if err := p.usable("reserve"); err != nil {
		return fabric.SendBuf{}, err
	}
	id, err := p.out.Reserve(f)
	if err != nil {
		p.starved = true
		return fabric.SendBuf{}, err
	}
	return fabric.SendBuf{Data: p.memory(&p.sends[id]), ID: id}, nil
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (p *endpoint) Release(b fabric.SendBuf) {
	if p.closed {
		return
	}
	if err := p.out.Take("release", b.ID); err != nil {
		panic(fmt.Errorf("sim: %w", err))
	}
	p.sends[b.ID].used = int32(len(p.sends[b.ID].data))
	p.give(b.ID)
}

// Send queues a message, and posts it unless More follows.
func (p *endpoint) Send(peer int, b fabric.SendBuf, n int, wr *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if b.ID != fabric.Copied {
		return p.send(peer, b, n, wr, cookie, f)
	}
	if err := fabric.CheckCopied(peer, b, n, wr, cookie); err != nil {
		return err
	}
	own, err := p.Reserve(f)
	if err != nil {
		return err
	}
	copy(own.Data, b.Data[:n])
	if err = p.send(peer, own, n, nil, 0, f); err != nil {
		starved := p.starved
		p.starved = false // no room has come by giving back a buffer that was free before
		p.Release(own)
		p.starved = starved
	}
	return err
}

func (p *endpoint) send(peer int, b fabric.SendBuf, n int, wr *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if err := p.checkSend(peer, b, n, wr); err != nil {
		return err
	}
	c := p.conns[int32(peer)]
	if c == nil {
		c = p.connect(int32(peer))
	}
	if c.out.Len() >= p.n.r.w.cfg.Queue {
		p.full = true
		return fabric.ErrQueueFull
	}
	m := message{buf: b.ID, n: int32(n), cookie: cookie, solicited: f&fabric.Solicited != 0}
	p.stats.Sends++
	p.stats.SendBytes += uint64(n)
	if wr != nil {
		m.w = *wr
		p.stats.Writes++
		p.stats.WriteBytes += uint64(len(wr.Src))
	}
	_ = p.out.Take("send", b.ID) // checkSend found it the caller's
	p.sends[b.ID].used = int32(n)
	c.out.Push(m)
	p.used(c)
	p.n.r.w.emit(markSend, p.n.r.id, int32(peer), uint64(p.num), uint64(n))
	if f&fabric.More != 0 {
		p.held = append(p.held, c)
		return nil
	}
	c.post()
	return p.Kick()
}

func (p *endpoint) checkSend(peer int, b fabric.SendBuf, n int, wr *fabric.Write) error {
	if err := p.usable("send"); err != nil {
		return err
	}
	if err := p.out.Check("send", b.ID); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	if err := p.n.refuse("send", peer); err != nil {
		return err
	}
	if n < 0 || n > p.cfg.SlotSize {
		return &fabric.BoundsError{Op: "send", Rank: peer, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	if wr == nil {
		return nil
	}
	return fabric.CheckTarget(p.n, "write", peer, wr.Off, uint64(len(wr.Src)))
}

// Kick posts what More held back.
func (p *endpoint) Kick() error {
	for _, c := range p.held {
		c.post()
	}
	clear(p.held)
	p.held = p.held[:0]
	return p.usable("kick")
}

// Poll returns events, or none after budget.
func (p *endpoint) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	if err := p.usable("poll"); err != nil {
		return 0, err
	}
	p.stats.Polls++
	p.returnNotes()
	w := p.n.r.w
	if slow := p.n.r.slow; slow > 0 {
		if err := w.pause("polls slowly", slow); err != nil {
			return 0, err
		}
	}
	if p.q.Len() == 0 {
		t, err := w.task("poll")
		if err != nil {
			return 0, err
		}
		if err := p.sleep(t, true, reason{"polls endpoint", p.num}, nil,
			w.now+int64(max(budget, w.cfg.PollCost))); err != nil {
			return 0, err
		}
		if err := p.usable("poll"); err != nil {
			return 0, err
		}
	}
	n := min(len(events), p.q.Len())
	for i := range n {
		events[i] = p.q.Pop()
		if events[i].Kind == fabric.NoteArrived {
			p.lent = append(p.lent, p.notes.Pop())
		}
	}
	return n, nil
}

// Post gives slots back.
func (p *endpoint) Post(slots ...int32) error {
	if err := p.usable("post"); err != nil {
		return err
	}
	for _, id := range slots {
		if id < 0 || int(id) >= len(p.slots) || !p.slots[id].lent {
			return fmt.Errorf("sim: post: slot %d is not the caller's", id)
		}
		s := &p.slots[id]
		scribble(s.data[:s.used])
		s.lent = false
		p.posted = append(p.posted, id)
	}
	return nil
}

// Note sends a datagram.
func (p *endpoint) Note(peer int, data []byte) error {
	if err := p.usable("note"); err != nil {
		return err
	}
	if err := p.n.refuse("note", peer); err != nil {
		return err
	}
	if len(data) > maxNote {
		return fmt.Errorf("sim: note: %w", &fabric.BoundsError{Op: "note", Rank: peer, Len: uint64(len(data)), Size: maxNote})
	}
	p.stats.Notes++
	p.n.r.w.emit(markNote, p.n.r.id, int32(peer), uint64(p.num), uint64(len(data)))
	p.datagram(note, int32(peer), 0, data)
	return nil
}
