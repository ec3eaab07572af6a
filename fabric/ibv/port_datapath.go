//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// message is one that is queued or on its way, or a touch: a write of nothing that asks for a
// completion.
type message struct {
	generation uint32
	next       int32
	conn       *conn
	buf        int32 // send buffer; none once the device has copied it, and for a touch
	n          int32
	wrs        int32 // work requests
	touch      bool
	solicited  bool
	urgent     bool
	cookie     uint64
	off        uint64 // of the write
	lent       lent   // the write's source
}

// unconfirmed reports whether a message needs no send buffer any more, and may not have arrived. It answers if it is urgent: who waits
// for the answer sees to that, and who does not may be gone, and would be found dead.
func (m *message) unconfirmed() bool { return m.conn != nil && m.buf == none && !m.touch && !m.urgent }

// What a work request identifier names, in its highest bits. A message's carries the record's generation too: the
// completion of a request whose connection is gone must not end another's.
const (
	idMessage = iota
	idSlot
	idIn
	idOut

	idShift         = 62
	generationShift = 32
	generationMask  = 1<<30 - 1
)

// run is what one sub-chain of the ring in preparation posts.
type run struct {
	kind  runKind
	conn  *conn // of runMessages
	first int
	n     int
}

type runKind uint8

const (
	runMessages  runKind = iota // to a peer's queue pair
	runDatagrams                // to the one for datagrams
	runSlots                    // to the shared receive queue
	runIn                       // datagram buffers
)

// These are told often, hence not made anew.
var (
	errNoBuffer  = fmt.Errorf("ibv: reserve: %w", fabric.ErrNoBuffer)
	errQueueFull = fmt.Errorf("ibv: send: the queue to the rank is full: %w", fabric.ErrAgain)
)

func (p *port) slotBytes(i int32) []byte {
	at := int(i) * p.layout.stride
	return p.mem[at : at+p.cfg.SlotSize : at+p.cfg.SlotSize]
}

func (p *port) sendBytes(i int32) []byte {
	at := p.layout.send + int(i)*p.layout.stride
	return p.mem[at : at+p.cfg.SlotSize : at+p.cfg.SlotSize]
}

func (p *port) inBytes(i int32) []byte {
	at := p.layout.in + int(i)*inStride
	return p.mem[at : at+inStride : at+inStride]
}

func (p *port) outBytes(i int32) []byte {
	at := p.layout.out + int(i)*datagramMax
	return p.mem[at : at+datagramMax : at+datagramMax]
}

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Post gives slots back. They are on the device before any message or note that is sent after it, and at the next Poll at the latest.
func (p *port) Post(slots ...int32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("post"); err != nil {
		return err
	}
	for _, i := range slots {
		if i < 0 || int(i) >= len(p.slotOurs) || p.slotOurs[i] {
			return fmt.Errorf("ibv: post: slot %d is not the caller's", i)
		}
		p.slotOurs[i] = true
		p.bare = append(p.bare, i)
		p.count.posted++
	}
	if p.sleeping {
		return p.flush()
	}
	return nil
}

// room makes sure that the ring in preparation takes one more work request, in a run of its own.
func (p *port) room() bool {
	if p.slots == chainSlots || len(p.staged) == verbs.MaxBatch {
		p.ring(0)
	}
	return p.deaf == nil
}

// stage hands a run to the doorbell.
func (p *port) stage(r run) {
	var err error
	switch r.kind {
	case runMessages:
		err = p.tx.Send(r.conn.qp, p.chain, r.first, r.n)
	case runDatagrams:
		err = p.tx.Send(p.listener.qp, p.chain, r.first, r.n)
	case runSlots:
		err = p.tx.SRQRecv(p.srq, p.recvs, r.first, r.n)
	case runIn:
		err = p.tx.Recv(p.listener.qp, p.recvs, r.first, r.n)
	}
	if err != nil { // only of a closed queue or a full doorbell, neither of which can be
		panic(err)
	}
	p.staged = append(p.staged, r)
}

// flush posts all that can be: first slots, then messages. mu is held.
func (p *port) flush() error {
	p.prepare()
	if len(p.staged) > 0 {
		p.ring(0)
	}
	return p.deaf
}

// prepare stages all that can be posted; what does not fit into one ring is posted on the way.
func (p *port) prepare() {
	if p.sleeping && !p.armedAny && (len(p.ready) > 0 || len(p.staged) > 0) {
		p.armedAny = true // before the post: the completion must find it
		if err := p.listener.cq.Arm(false); err != nil {
			p.Wake()
		}
	}
	for len(p.bare)+len(p.bareRecv) > 0 && p.deaf == nil {
		p.stageRecvs()
	}
	ready := p.ready
	p.ready, p.readySpare = p.readySpare[:0], ready
	for _, c := range ready {
		c.ready = false
		p.stageMessages(c)
		p.markReady(c) // what found no room goes when something completes
	}
	clear(ready)
}

// stageRecvs stages as many receives of one kind as one chain takes.
func (p *port) stageRecvs() {
	if p.recvUsed == chainSlots || len(p.staged) == verbs.MaxBatch {
		p.ring(0)
	}
	list, id, kind := &p.bare, uint64(idSlot), runSlots
	if len(*list) == 0 {
		list, id, kind = &p.bareRecv, idIn, runIn
	}
	first := p.recvUsed
	k := min(chainSlots-first, len(*list))
	from := len(*list) - k
	for j, i := range (*list)[from:] {
		b := p.inBytesOr(id, i)
		p.recvs.WR(first + j).WRID = id<<idShift | uint64(i)
		p.recvs.SetLocal(first+j, addrOf(b), uint32(len(b)), p.mr.LKey())
	}
	*list = (*list)[:from]
	p.recvUsed += k
	p.stage(run{kind: kind, first: first, n: k})
}

func (p *port) inBytesOr(id uint64, i int32) []byte {
	if id == idSlot {
		return p.slotBytes(i)
	}
	return p.inBytes(i)
}

// stageMessages stages what is queued for a peer, as far as there is room.
func (p *port) stageMessages(c *conn) {
	if c.queued == 0 || c.state != connUp || c.refused != nil || !p.room() {
		return
	}
	first := p.slots
	for c.queued > 0 {
		m := &p.msgs[c.first]
		if c.wrs+m.wrs > portDepth || p.out+m.wrs > p.limit && p.out > 0 {
			break
		}
		for piece := range m.wrs {
			if p.slots == chainSlots {
				p.stage(run{conn: c, first: first, n: p.slots - first})
				p.ring(0)
				first = 0
			}
			p.fillSlot(c, m, piece)
			p.slots++
		}
		p.posted(c, m)
	}
	if p.slots > first {
		p.stage(run{conn: c, first: first, n: p.slots - first})
	}
}

// posted enters a message into the books as on its way.
func (p *port) posted(c *conn, m *message) {
	c.first = m.next
	c.queued--
	c.wrs += m.wrs
	p.out += m.wrs
	if !m.touch {
		c.sent++
	}
	c.busy = true
}

// fillSlot writes one work request of a message: a piece of its write, or the last, which sends.
func (p *port) fillSlot(c *conn, m *message, piece int32) {
	slot := p.slots
	w := p.chain.WR(slot)
	w.WRID = uint64(idMessage)<<idShift | uint64(m.generation)<<generationShift | uint64(c.first)
	w.Flags = 0
	if piece < m.wrs-1 {
		p.fillWrite(c, m, slot, int(piece))
		return
	}
	if m.touch {
		w.Opcode, w.Flags = verbs.OpWrite, verbs.Signaled
		w.SetNumSGE(0)
		w.SetRemote(c.base, c.rkey)
		c.silent, c.holding = 0, false
		return
	}
	w.Opcode = verbs.OpSend
	if m.solicited {
		w.Flags |= verbs.Solicited
	}
	inline := int(m.n) <= p.inline
	b := p.sendBytes(m.buf)[:m.n]
	switch {
	case m.n == 0:
		w.SetNumSGE(0)
	case inline:
		copy(p.chain.Area(slot), b)
		p.chain.SetInline(slot, len(b))
	default:
		p.chain.SetLocal(slot, addrOf(b), uint32(len(b)), p.mr.LKey())
	}
	if inline && !p.bufs[m.buf].write { // the device needs it no more
		p.freeBuf(m.buf)
		m.buf = none
	}
	c.silent++
	c.holding = c.holding || m.buf != none
	// Nobody may ever send to this peer again: the last message of several tells when their buffers are free.
	last := c.holding && c.queued == 1
	scarce := m.buf != none && len(p.freeBufs) <= len(p.bufs)/2 || c.count > portQueue/2 || p.freeMsgs <= len(p.msgs)/2
	if m.cookie != 0 || m.lent.how != lentNothing || c.silent >= portSignal || last || scarce {
		w.Flags |= verbs.Signaled
		c.silent, c.holding = 0, false
	}
}

// ring posts what is staged and, with want 1, takes completions that there are already.
func (p *port) ring(want int) {
	p.count.doorbells++
	n, err := p.tx.Ring(want, 0)
	if n > 0 {
		p.taken = append(p.taken, p.tx.Completions()...)
	}
	for err != nil {
		var refused *verbs.PostError
		if !errors.As(err, &refused) || p.staged[refused.Batch].kind != runMessages {
			p.goDeaf(err)
			break
		}
		err = p.ringAgain(refused)
	}
	p.staged, p.slots, p.recvUsed = p.staged[:0], 0, 0
}

// ringAgain gives up the connection whose queue pair refused work, and posts the runs that stood behind it.
func (p *port) ringAgain(why *verbs.PostError) error {
	c := p.staged[why.Batch].conn
	if c.refused == nil {
		c.refused = why
		p.broken = append(p.broken, c)
	}
	rest := p.staged[why.Batch+1:]
	p.staged = p.staged[:0]
	for _, r := range rest {
		if r.kind != runMessages || r.conn.refused == nil {
			p.stage(r)
		}
	}
	if len(p.staged) == 0 {
		return nil
	}
	_, err := p.tx.Ring(0, 0)
	return err
}

// goDeaf gives the port up: its completion queue, or a queue that all need, is of no more use.
func (p *port) goDeaf(err error) {
	if p.deaf == nil {
		p.deaf = fmt.Errorf("ibv: port %d is lost: %w", p.num, err)
		p.n.log.Warn("ibv: a port is lost", "port", p.num, "err", err)
	}
}
