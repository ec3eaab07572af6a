//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"time"
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
	cookie     uint64
	off        uint64 // of the write
	lent       lent   // the write's source
}

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
	errNoBuffer  = fmt.Errorf("ibv: reserve: no send buffer is free: %w", fabric.ErrAgain)
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

// Reserve takes a send buffer.
func (p *port) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	least := p.cfg.Reserved
	if f&fabric.Urgent != 0 {
		least = 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("reserve"); err != nil {
		return fabric.SendBuf{}, err
	}
	k := len(p.freeBufs) - 1
	if k < least {
		return fabric.SendBuf{}, errNoBuffer
	}
	id := p.freeBufs[k]
	p.freeBufs = p.freeBufs[:k]
	p.bufs[id] = bufState{state: bufOurs}
	p.count.freeSends.Add(-1)
	return fabric.SendBuf{Data: p.sendBytes(id), ID: id}, nil
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (p *port) Release(b fabric.SendBuf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if err := p.mine("release", b); err != nil {
		panic(err)
	}
	p.freeBuf(b.ID)
}

func (p *port) mine(op string, b fabric.SendBuf) error {
	if b.ID < 0 || int(b.ID) >= len(p.bufs) || p.bufs[b.ID].state != bufOurs {
		return fmt.Errorf("ibv: %s: send buffer %d is not the caller's", op, b.ID)
	}
	return nil
}

func (p *port) freeBuf(id int32) {
	p.bufs[id] = bufState{}
	p.freeBufs = append(p.freeBufs, id)
	p.count.freeSends.Add(1)
}

// Send queues a message and, unless More follows, posts it.
func (p *port) Send(rank int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	var l lent
	if w != nil {
		if err := p.checkWrite(rank, n, w); err != nil {
			return err
		}
		l = p.lend(w.Src, n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c, err := p.admit(rank, b, n, &l)
	if err != nil {
		p.giveBack(&l)
		return err
	}
	i := p.newMessage(c)
	m := &p.msgs[i]
	m.buf, m.n, m.wrs, m.cookie, m.solicited = b.ID, int32(n), 1, cookie, f&fabric.Solicited != 0
	p.bufs[b.ID] = bufState{state: bufSent, write: l.how == lentBuffer}
	if w != nil {
		if l.how == lentBuffer {
			copy(p.sendBytes(b.ID)[n:], w.Src)
		}
		m.off, m.lent = w.Off, l
		m.wrs += p.pieces(len(w.Src))
		p.count.writes.Add(1)
		p.count.writeBytes.Add(uint64(len(w.Src)))
	}
	p.count.sends.Add(1)
	p.count.sendBytes.Add(uint64(n))
	c.parting = false
	if f&fabric.More == 0 {
		_ = p.flush() // the message is taken; Poll tells of a port that is lost
	}
	return nil
}

// admit checks everything that Send is given; the error changes nothing. The connection is begun if there is none.
func (p *port) admit(rank int, b fabric.SendBuf, n int, l *lent) (*conn, error) {
	if err := p.usable("send"); err != nil {
		return nil, err
	}
	if err := p.mine("send", b); err != nil {
		return nil, err
	}
	if err := p.reach("send", rank); err != nil {
		return nil, err
	}
	if err := l.check(); err != nil {
		return nil, err
	}
	if n < 0 || n > p.cfg.SlotSize {
		return nil, &fabric.BoundsError{Op: "send", Rank: rank, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	if p.pieces(len(l.src))+1 > portDepth {
		return nil, &fabric.BoundsError{Op: "write", Rank: rank, Len: uint64(len(l.src)), Size: uint64(p.n.piece) * (portDepth - 1)}
	}
	c := p.peers[rank].conn
	if c != nil && c.count >= portQueue || p.freeMsg == none {
		return nil, errQueueFull
	}
	if c == nil {
		c = p.newConn(int32(rank), connWanted)
		if p.sleeping {
			p.Wake() // the poller makes it
		}
	}
	return c, nil
}

// reach says why a rank cannot be talked to; mu is held, so that nothing is queued behind the end of a peer.
func (p *port) reach(op string, rank int) error {
	if err := p.served(rank); err != nil {
		return err
	}
	if p.n.downSeq.Load() == 0 {
		return nil
	}
	if cause, down := p.n.downs.Load(rank); down {
		return &fabric.PeerDownError{Rank: rank, Op: op, Cause: cause.(error)}
	}
	return nil
}

// newMessage takes a record and puts it at the end of a connection's queue. There is one.
func (p *port) newMessage(c *conn) int32 {
	i := p.freeMsg
	m := &p.msgs[i]
	p.freeMsg = m.next
	p.freeMsgs--
	*m = message{generation: (m.generation + 1) & generationMask, next: none, conn: c, buf: none}
	if c.queued == 0 {
		c.first = i
	}
	if c.tail == none {
		c.head = i
	} else {
		p.msgs[c.tail].next = i
	}
	c.tail = i
	c.count++
	c.queued++
	p.clock++
	c.used = p.clock
	p.markReady(c)
	return i
}

func (p *port) markReady(c *conn) {
	if !c.ready && c.state == connUp && c.queued > 0 {
		c.ready = true
		p.ready = append(p.ready, c)
	}
}

// touch queues a write of nothing that asks for a completion, which tells of all before it and of the peer's life.
func (p *port) touch(c *conn) {
	if c.state != connUp || c.touched || p.freeMsg == none {
		return
	}
	c.touched = true
	used := c.used
	m := &p.msgs[p.newMessage(c)]
	c.used = used
	m.touch, m.wrs = true, 1
}

// Kick posts what More held back.
func (p *port) Kick() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("kick"); err != nil {
		return err
	}
	return p.flush()
}

// Post gives slots back. They are on the device before any message that is sent after it, and at the next Poll at the latest.
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
		p.count.posted.Add(1)
	}
	if p.sleeping {
		return p.flush()
	}
	return nil
}

// Note sends a datagram.
func (p *port) Note(rank int, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable("note"); err != nil {
		return err
	}
	if err := p.reach("note", rank); err != nil {
		return err
	}
	if len(data) > maxNote {
		return &fabric.BoundsError{Op: "note", Rank: rank, Len: uint64(len(data)), Size: maxNote}
	}
	p.count.notes.Add(1)
	if !p.say(datagram{kind: sayNote, to: uint32(rank), note: data}) {
		p.count.notesDropped.Add(1)
	}
	return p.flush()
}

// say stages a datagram. It reports whether there was room for it.
func (p *port) say(d datagram) bool {
	rank := int(d.to)
	n := p.n
	qpn := n.portQPNs[rank*n.cfg.Messages.Ports+p.num]
	if qpn == 0 || len(p.freeOut) == 0 || !p.room() {
		return false
	}
	path, err := verbs.ComputePath(n.path, n.peers[rank].end)
	if err != nil {
		return false // Reach said so
	}
	h, err := p.handles.get(path.AV)
	if err != nil {
		n.log.Warn("ibv: datagrams do not reach a rank", "rank", rank, "err", err)
		return false
	}
	i := p.freeOut[len(p.freeOut)-1]
	p.freeOut = p.freeOut[:len(p.freeOut)-1]
	p.outAH[i] = h
	d.port, d.from = uint16(p.num), uint32(n.cfg.Rank)
	b := p.outBytes(i)
	size := d.encode(b)
	slot := p.slots
	p.slots++
	w := p.chain.WR(slot)
	w.WRID, w.Opcode, w.Flags = idOut<<idShift|uint64(i), verbs.OpSend, verbs.Signaled|verbs.Solicited
	p.chain.SetLocal(slot, addrOf(b), uint32(size), p.mr.LKey())
	w.SetUD(h.ah, qpn, n.qkeys[rank])
	p.stage(run{kind: runDatagrams, first: slot, n: 1})
	return true
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
	p.count.doorbells.Add(1)
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

// Poll posts what waits and takes what there is, in one call into C, and if that is nothing polls in another
// until the budget has passed.
func (p *port) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	if err := p.enter("poll"); err != nil {
		return 0, err
	}
	defer p.poller.Unlock()
	p.count.polls.Add(1)
	p.returnNotes()
	if p.events.len() == 0 {
		if err := p.progress(budget); err != nil {
			return 0, err
		}
	}
	n := min(len(events), p.events.len())
	for i := range n {
		events[i] = p.events.pop()
		if events[i].Kind == fabric.NoteArrived {
			p.lent = append(p.lent, events[i].Slot)
			events[i].Slot = 0
		}
	}
	return n, nil
}

// returnNotes takes back the buffers of the notes that the last Poll returned.
func (p *port) returnNotes() {
	if len(p.lent) > 0 {
		p.mu.Lock()
		p.bareRecv = append(p.bareRecv, p.lent...)
		p.mu.Unlock()
		p.lent = p.lent[:0]
	}
}

// progress is one turn of the poller.
func (p *port) progress(budget time.Duration) error {
	n, err := p.turn(budget)
	if err != nil {
		return err
	}
	if p.downSeen != p.n.downSeq.Load() {
		p.noticeDowns()
	}
	if p.polls++; n == 0 || p.polls%timersEvery == 0 {
		p.timers(p.Now())
	}
	p.makeAndPart()
	return nil
}

// turn posts, polls within the budget, and takes what came. The count is of completions.
func (p *port) turn(budget time.Duration) (int, error) {
	p.mu.Lock()
	p.prepare()
	if len(p.staged) > 0 {
		p.ring(1)
	}
	err := p.deaf
	n := len(p.taken)
	if n > 0 {
		p.reap(p.taken)
		p.taken = p.taken[:0]
	}
	p.mu.Unlock()
	if n > 0 || err != nil {
		return n, err
	}
	if n, err = p.bell.Ring(1, budget); n > 0 {
		p.mu.Lock()
		p.reap(p.bell.Completions())
		p.mu.Unlock()
	}
	if err != nil {
		p.mu.Lock()
		p.goDeaf(err)
		err = p.deaf
		p.mu.Unlock()
	}
	return n, err
}

// reap deals with completions. mu is held.
func (p *port) reap(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		index := int32(uint32(wc.WRID))
		switch wc.WRID >> idShift {
		case idSlot:
			p.landed(index, wc)
		case idIn:
			p.heard(index, wc)
		case idOut:
			p.said(index, wc)
		default:
			p.completed(index, uint32(wc.WRID>>generationShift)&generationMask, wc)
		}
	}
}

// landed is the arrival of a message.
func (p *port) landed(slot int32, wc *verbs.WC) {
	c := p.byQPN[wc.QPNum]
	if c == nil || c.state == connGone || wc.Status != verbs.StatusSuccess || int(wc.ByteLen) > p.cfg.SlotSize {
		p.bare = append(p.bare, slot)
		if c != nil && wc.Status != verbs.StatusFlushed {
			p.lose(c, wc.Err())
		}
		return
	}
	if c.state == connAnswering {
		p.made(c) // it sends, hence our reply came
	}
	c.arrived++
	c.busy = true
	p.clock++
	c.used = p.clock
	p.slotOurs[slot] = false
	p.count.posted.Add(-1)
	p.count.arrivals.Add(1)
	p.count.arrivalBytes.Add(uint64(wc.ByteLen))
	p.events.push(fabric.Event{Kind: fabric.Arrived, Peer: int(c.rank), Slot: slot, Epoch: c.epoch, Data: p.slotBytes(slot)[:wc.ByteLen:wc.ByteLen]})
}

// completed ends a message, and those before it on the same connection: their success is implied.
func (p *port) completed(index int32, generation uint32, wc *verbs.WC) {
	if int(index) >= len(p.msgs) {
		return
	}
	m := &p.msgs[index]
	c := m.conn
	if m.generation != generation || c == nil || c.state == connGone {
		return // of a connection that is gone
	}
	if wc.Status != verbs.StatusSuccess {
		p.lose(c, wc.Err())
		return // all that is out ends with the connection
	}
	for c.head != none {
		i := c.head
		p.endMessage(c, nil)
		if i == index {
			break
		}
	}
	p.markReady(c)
	c.busy = true
	if c.parting && c.count == 0 {
		c.proven = true
		p.parting = append(p.parting, c)
	}
}

// endMessage ends the oldest message of a connection. One that was not posted is at the head only when the
// connection ends.
func (p *port) endMessage(c *conn, err error) {
	i := c.head
	m := &p.msgs[i]
	if c.head = m.next; c.head == none {
		c.tail = none
	}
	if c.count == c.queued {
		c.queued--
		c.first = m.next
	} else {
		c.wrs -= m.wrs
		p.out -= m.wrs
	}
	if c.count--; c.count == c.queued {
		c.silent, c.holding = 0, false
	}
	if m.touch {
		c.touched = false
	}
	if m.buf != none {
		p.freeBuf(m.buf)
	}
	p.giveBack(&m.lent)
	if m.cookie != 0 {
		p.events.push(fabric.Event{Kind: fabric.Sent, Peer: int(c.rank), Cookie: m.cookie, Err: err})
	}
	m.conn = nil
	m.next, p.freeMsg = p.freeMsg, i
	p.freeMsgs++
}

// lose notes that a connection's queue pair is of no more use; the peer is taken for dead.
func (p *port) lose(c *conn, cause error) {
	if c.refused == nil {
		c.refused = cause
		p.broken = append(p.broken, c)
	}
}

// said is the end of a datagram that went out.
func (p *port) said(i int32, wc *verbs.WC) {
	p.outAH[i].uses--
	p.outAH[i] = nil
	p.freeOut = append(p.freeOut, i)
	if wc.Status != verbs.StatusSuccess && wc.Status != verbs.StatusFlushed {
		// The send queue stops at an error (IBTA 1.4 vol. 1 §10.3.1.6); what is lost is lost.
		p.n.log.Warn("ibv: a datagram was not sent", "port", p.num, "err", wc.Err())
		_ = p.listener.qp.Modify(verbs.QPAttr{State: verbs.StateRTS, CurState: verbs.StateSQE}, verbs.AttrState|verbs.AttrCurState)
	}
}

// heard is the arrival of a datagram. Whatever is wrong with it, it is dropped and counted.
func (p *port) heard(i int32, wc *verbs.WC) {
	d, ok := p.understand(p.inBytes(i), wc)
	if !ok {
		p.count.notesDropped.Add(1)
	} else if d.kind == sayNote {
		p.count.notesArrived.Add(1)
		p.events.push(fabric.Event{Kind: fabric.NoteArrived, Peer: int(d.from), Slot: i, Data: d.note})
		return // Poll takes it back
	} else {
		p.control = append(p.control, d) // it may need a queue pair: not under the lock
	}
	p.bareRecv = append(p.bareRecv, i)
}

// understand checks that a datagram is from whom it says, and for this port.
func (p *port) understand(b []byte, wc *verbs.WC) (d datagram, ok bool) {
	if wc.Status != verbs.StatusSuccess || wc.ByteLen < grhBytes || int(wc.ByteLen) > len(b) {
		return d, false
	}
	d, err := decodeDatagram(b[grhBytes:wc.ByteLen])
	if err != nil || d.to != uint32(p.n.cfg.Rank) || int(d.port) != p.num || d.from >= uint32(p.n.cfg.Size) || p.served(int(d.from)) != nil {
		return d, false
	}
	n := p.n
	if wc.SrcQP != n.portQPNs[int(d.from)*n.cfg.Messages.Ports+p.num] ||
		!sentFrom(&n.peers[d.from].end, b, wc.SLID, wc.Flags&verbs.WCWithGRH != 0) {
		return d, false
	}
	return d, !p.peers[d.from].down
}

// eventRing is a queue of events.
type eventRing struct {
	buf  []fabric.Event
	head int
	n    int
}

func (r *eventRing) len() int { return r.n }

func (r *eventRing) push(e fabric.Event) {
	if r.n == len(r.buf) {
		bigger := make([]fabric.Event, max(64, 2*len(r.buf)))
		for i := range r.n {
			bigger[i] = r.buf[(r.head+i)%len(r.buf)]
		}
		r.buf, r.head = bigger, 0
	}
	r.buf[(r.head+r.n)%len(r.buf)] = e
	r.n++
}

func (r *eventRing) pop() fabric.Event {
	e := r.buf[r.head]
	r.buf[r.head] = fabric.Event{}
	r.head = (r.head + 1) % len(r.buf)
	r.n--
	return e
}
