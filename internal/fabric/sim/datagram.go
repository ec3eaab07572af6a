package sim

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
)

// datagram is a note, or a part of a handshake, on its way.
type datagram struct {
	w        *World
	timer    timer
	kind     datagramKind
	from, to int32
	endpoint int32
	n        int32
	ticket   uint64
	data     [maxNote]byte
}

type datagramKind uint8

const (
	note    datagramKind = iota
	request              // connect with me
	reply                // I will
	rtu                  // ready to use: your reply came
	later                // that endpoint is not open yet
)

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

// datagram sends one, perhaps two, perhaps none.
func (p *endpoint) datagram(kind datagramKind, to int32, ticket uint64, data []byte) {
	w := p.n.r.w
	d := w.newDatagram()
	d.kind, d.from, d.to, d.endpoint, d.ticket = kind, p.n.r.id, to, int32(p.num), ticket
	d.n = int32(copy(d.data[:], data))
	d.launch()
}

// launch sends copies of d, as the configuration has it.
func (d *datagram) launch() {
	w := d.w
	notes := &w.cfg.Notes
	copies := 1
	if w.rng.chance(notes.Dup) {
		copies = 2
	}
	at := w.paths.transit(d.from, d.to, headerBytes+int(d.n))
	for range copies {
		if w.rng.chance(notes.Loss) {
			w.emit(markNoteLost, d.from, d.to, uint64(d.endpoint), uint64(d.kind))
			continue
		}
		c := w.newDatagram()
		c.kind, c.from, c.to, c.endpoint, c.ticket, c.n = d.kind, d.from, d.to, d.endpoint, d.ticket, d.n
		copy(c.data[:], d.data[:d.n])
		w.arm(&c.timer, at+w.rng.upTo(notes.Jitter))
	}
	d.recycle()
}

func (w *World) newDatagram() *datagram {
	if k := len(w.spare); k > 0 {
		d := w.spare[k-1]
		w.spare = w.spare[:k-1]
		return d
	}
	d := &datagram{w: w}
	d.timer.owner = d
	return d
}

func (d *datagram) recycle() {
	scribble(d.data[:d.n])
	d.n = 0
	d.w.spare = append(d.w.spare, d)
}

// fire is its arrival.
func (d *datagram) fire(*timer) {
	w := d.w
	n := &w.ranks[d.to].net
	if w.paths.blocked(d.from, d.to) {
		w.emit(markNoteLost, d.from, d.to, uint64(d.endpoint), uint64(d.kind))
		d.recycle()
		return
	}
	p, known := n.endpoint(int(d.endpoint))
	switch {
	case p == nil && !known && d.kind == request && n.state != closed:
		// The rank lives and has not got so far.
		answer := w.newDatagram()
		answer.kind, answer.from, answer.to, answer.endpoint, answer.ticket = later, d.to, d.from, d.endpoint, d.ticket
		answer.launch()
		d.recycle()
	case p == nil || p.closed:
		d.recycle()
	case d.kind == note:
		p.noteArrived(d)
	default:
		p.handshake(d)
		d.recycle()
	}
}

// noteArrived keeps a note for the next Poll, if there is room.
func (p *endpoint) noteArrived(d *datagram) {
	w := p.n.r.w
	if p.notes.Len() >= w.cfg.Notes.Room {
		p.stats.NotesDropped++
		w.emit(markNoteDropped, d.to, d.from, uint64(d.endpoint), uint64(d.n))
		d.recycle()
		return
	}
	if p.n.deaths.Cause(int(d.from)) != nil { // Down was its last event
		d.recycle()
		return
	}
	p.stats.NotesArrived++
	w.emit(markNoteArrived, d.to, d.from, uint64(d.endpoint), uint64(d.n))
	p.notes.Push(d)
	p.push(fabric.Event{Kind: fabric.NoteArrived, Peer: int(d.from), Data: d.data[:d.n:d.n]}, true)
}

// returnNotes takes back what the last Poll lent.
func (p *endpoint) returnNotes() {
	for _, d := range p.lent {
		d.recycle()
	}
	clear(p.lent)
	p.lent = p.lent[:0]
}

// handshake gives a datagram to the end that it is for.
func (p *endpoint) handshake(d *datagram) {
	if d.kind == request {
		p.requested(d.from, d.ticket)
		return
	}
	c := p.conns[d.from]
	switch {
	case c == nil:
	case d.kind == reply:
		c.replied(d.ticket)
	case d.kind == rtu:
		if c.ticket == d.ticket && c.state == accepting {
			c.made(false)
		}
	case d.kind == later:
		c.wait(d.ticket)
	}
}
