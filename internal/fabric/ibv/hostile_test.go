//go:build linux && cgo

package ibv

import (
	"bytes"
	"errors"
	"testing"

	"github.com/ibconduit/conduit/verbs"
)

// raw sends bytes from one rank's datagram queue pair to another's endpoint.
func (m *messageRig) raw(from, to int, b []byte) {
	m.Helper()
	p := m.ends[from].p
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.datagrams.send(datagram{kind: dgReady, to: uint32(to), epoch: 1}) {
		m.Fatal("no room for a datagram")
	}
	sge := &p.out.tx.chain.SGEs(p.out.tx.slots - 1)[0]
	if len(b) > datagramMax { // than a place to send from; what is in it is of no matter
		sge.Addr = addrOf(p.memory.mem)
	} else {
		copy(p.memory.mem[sge.Addr-addrOf(p.memory.mem):][:datagramMax], b)
	}
	sge.Length = uint32(len(b))
	m.must("flush", p.flushLocked())
}

func TestHostileDatagramsAreCountedAndDropped(t *testing.T) {
	m := newMessageRig(t, 3, Config{Lanes: 1}, endpointConfig)
	m.connectAll()
	ok := datagram{kind: dgNote, from: 2, to: 0, note: []byte("hello")}
	change := func(f func(*datagram)) []byte {
		d := ok
		f(&d)
		return encoded(d)
	}
	bad := [][]byte{
		{}, {datagramVersion}, bytes.Repeat([]byte{0xFF}, 200), make([]byte, datagramMax+1), make([]byte, 1024), make([]byte, packetMax), encoded(ok)[:datagramHeader-1],
		change(func(d *datagram) { d.from = 1 }), // from another rank's queue pair
		change(func(d *datagram) { d.from = 0 }),
		change(func(d *datagram) { d.from = 3 }),
		change(func(d *datagram) { d.from = 1<<32 - 1 }),
		change(func(d *datagram) { d.to = 1 }),
		change(func(d *datagram) { d.endpoint = 1 }),
		change(func(d *datagram) { *d = datagram{kind: dgClose, from: 1, epoch: 1, attempt: 9, sent: 1, arrived: 1} }),
	}
	for _, b := range bad {
		m.raw(2, 0, b)
	}
	m.raw(2, 0, encoded(ok))
	m.work(func(o *end) (bool, error) {
		s := m.ends[0].p.Stats()
		return s.NotesArrived == 1 && s.NotesDropped == uint64(len(bad)), nil
	})
	// What is well made and makes no sense is ignored.
	for kind := dgRequest; kind < dgEnd; kind++ {
		for _, epoch := range []uint32{1, 2, 3, 1<<32 - 1} {
			if kind == dgClose && epoch == 1 {
				continue // that is a question, which is answered
			}
			if kind == dgRequest && epoch == 2 {
				continue
			}
			m.raw(2, 0, encoded(datagram{kind: kind, from: 2, to: 0, epoch: epoch, qpn: 5, psn: 6, slotSize: 512, attempt: 3, sent: 77, arrived: 88}))
		}
		m.work(func(o *end) (bool, error) { return true, nil })
	}
	m.exchange(20)
	m.agree()
	for _, o := range m.ends {
		for peer, e := range o.epoch {
			if peer != o.rank && (e != 1 || !o.open[peer]) {
				t.Errorf("rank %d is at epoch %d with rank %d, open: %v", o.rank, e, peer, o.open[peer])
			}
		}
	}
}

// writeWithImmediate has a rank write to another's segment over the connection of their ports,
// which takes a receive buffer there and puts nothing into it.
func (m *messageRig) writeWithImmediate(from, to, n int) {
	m.Helper()
	p := m.ends[from].p
	p.mu.Lock()
	defer p.mu.Unlock()
	m.must("flush", p.flushLocked())
	c, tx := p.conns.peers[to].conn, &p.out.tx
	slot, w := tx.slot(&c.q, uint64(len(tx.requests))) // of no message
	w.Opcode, w.Flags = verbs.OpWriteImm, verbs.Signaled
	w.SetRemote(c.q.base, c.q.rkey)
	tx.chain.SetLocal(slot, addrOf(p.datagrams.outBytes(0)), uint32(n), p.memory.mr.LKey())
	m.must("flush", p.flushLocked())
}

// What lies in the receive buffer is what another rank sent before.
func TestAWriteWithImmediateDataIsNoMessage(t *testing.T) {
	for _, n := range []int{8, 100, 1000} {
		m := newMessageRig(t, 3, Config{Lanes: 1}, endpointConfig)
		m.connectAll()
		m.exchange(50) // so that each buffer has had a message
		m.writeWithImmediate(2, 0, n)
		m.work(func(o *end) (bool, error) { return o.rank != 0 || o.down[2] != nil, nil }) // take complains of a message
		if err := m.ends[0].down[2]; !errors.Is(err, errImmediate) || m.ends[0].down[1] != nil {
			t.Errorf("a write of %d bytes: rank 2 is down because of %v, rank 1 of %v", n, err, m.ends[0].down[1])
		}
	}
}
