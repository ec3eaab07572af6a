package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Note sends a datagram. It is lost when there is no room.
func (ep *endpoint) Note(peer int, data []byte) error {
	if err := ep.sendable("note", peer); err != nil {
		return err
	}
	if len(data) > maxNote {
		return fmt.Errorf("shm: note: %w", &fabric.BoundsError{Op: "note", Rank: peer, Len: uint64(len(data)), Size: maxNote})
	}
	sent, err := ep.sendNote(peer, data)
	if err != nil {
		return err
	}
	ep.posts.notes.Add(1)
	if !sent {
		ep.posts.notesDropped.Add(1)
	}
	return nil
}

// sendNote writes a note into the peer's region, or sends it over the socket to a peer that
// has not handed over one.
func (ep *endpoint) sendNote(peer int, data []byte) (sent bool, err error) {
	if peer == ep.n.cfg.Rank {
		ep.queueNote(peer, data)
		return true, nil
	}
	l := ep.links[peer].Load()
	if l == nil {
		return ep.n.peers[peer].sendNote(ep.num, data), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == linkDown:
		return false, &fabric.PeerDownError{Rank: peer, Op: "note", Cause: *l.cause.Load()}
	case !ep.alive.Load():
		return false, ep.usable("note")
	case l.remote == nil:
		return ep.n.peers[peer].sendNote(ep.num, data), nil
	case !l.remote.note.put(ep.rank, 0, 0, data):
		return false, nil
	}
	if atomic.LoadUint32(&l.remote.head.armed) != 0 {
		l.wakePeer()
	}
	return true, nil
}

// sendNote sends a note over the socket if there is room.
func (p *peer) sendNote(endpoint int, data []byte) (sent bool) {
	var b [noteHead + maxNote]byte
	b[0] = kindNote
	binary.LittleEndian.PutUint32(b[4:], uint32(endpoint))
	n := noteHead + copy(b[noteHead:], data)
	err := p.raw.Write(func(fd uintptr) bool {
		sent = unix.Send(int(fd), b[:n], unix.MSG_DONTWAIT) == nil
		return true
	})
	return sent && err == nil
}

// noteArrived takes a note from the socket. One to an endpoint that is not open is lost.
func (n *Network) noteArrived(from int, b []byte, fds []int) error {
	i := binary.LittleEndian.Uint32(b[4:])
	if len(fds) > 0 || len(b) > noteHead+maxNote || b[1]|b[2]|b[3] != 0 || i >= maxEndpoints {
		return fmt.Errorf("shm: malformed note of %d bytes to endpoint %d", len(b)-noteHead, i)
	}
	if ep := n.endpointOf(i); ep != nil {
		ep.queueNote(from, b[noteHead:])
	}
	return nil
}

// queueNote keeps a note for the next Poll, if there is room.
func (ep *endpoint) queueNote(from int, data []byte) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.memory == nil {
		ep.memory = make([][maxNote]byte, noteRoom)
		for i := range ep.memory {
			ep.notes = append(ep.notes, int32(i))
		}
	}
	k := len(ep.notes) - 1
	if k < 0 || !ep.alive.Load() {
		ep.posts.notesDropped.Add(1)
		return
	}
	id := ep.notes[k]
	ep.notes = ep.notes[:k]
	m := copy(ep.memory[id][:], data)
	ep.posts.notesArrived.Add(1)
	ep.pushLocked(entry{Event: fabric.Event{Kind: fabric.NoteArrived, Peer: from, Data: ep.memory[id][:m:m]},
		buf: -1, note: id})
}

// returnNotesLocked takes back buffers that the last Poll lent.
func (ep *endpoint) returnNotesLocked() {
	ep.mu.Lock()
	ep.notes = append(ep.notes, ep.lent...)
	ep.mu.Unlock()
	ep.lent = ep.lent[:0]
}

// takeNotesLocked queues the notes in their ring.
func (ep *endpoint) takeNotesLocked() {
	r := &ep.noted
	r.mu.Lock()
	defer r.mu.Unlock()
	for range noteSlots { // a bound, as in takeMessagesLocked
		c := r.cell(r.head)
		w := atomic.LoadUint64(&c.word)
		switch ep.n.inspect(w, r.head) {
		case cellEmpty:
			return
		case cellBroken:
			if r.skipLocked(w) {
				ep.posts.repairs.Add(1)
			}
		case cellFull:
			var b [maxNote]byte
			n, id := atomic.LoadUint32(&c.n), r.slotOf[r.head&r.mask]
			if n > maxNote {
				n = 0
				ep.n.protocolError(int(wordRank(w)), errLongNote)
			} else if n <= inlineMax {
				copy(b[:n], c.inline[:])
			} else {
				copy(b[:n], r.slot(id, n))
			}
			r.head++
			r.postLocked(id)
			ep.queueNote(int(wordRank(w)), b[:n])
		}
	}
}

// This is returned often, hence not made anew.
var errLongNote = fmt.Errorf("shm: a note of more than %d bytes", maxNote)
