//go:build linux && cgo

package ibv

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// messages are an endpoint's messages that wait for their connections or are in flight. The
// endpoint's mu protects them.
type messages struct {
	*core
	tx     sender
	all    []message // by request of tx
	bufs   fabric.SendBuffers
	sends  []byte // their memory
	stride int    // from one to the next
	lkey   uint32 // of the buffers
	quick  quickSend
	inline int
	ready  []*conn // with messages that wait and may have room
	spare  []*conn
	idle   []*conn // to be closed, and with nothing in flight any more
	uses   uint64  // of connections, so far
	lost   error   // why the endpoint is of no more use
}

// quickSend is the work request of copied messages, of which only the length, the identifier and
// the flags change.
type quickSend struct {
	chain *verbs.SendChain
	wr    *verbs.SendWR
	sge   *verbs.SGE
	area  []byte
}

func (s *quickSend) init(inline int) (err error) {
	if s.chain, err = verbs.NewSendChain(verbs.ChainConfig{Inline: inline}); err != nil {
		return err
	}
	s.chain.SetInline(0, 0)
	s.wr, s.sge, s.area = s.chain.WR(0), &s.chain.SGEs(0)[0], s.chain.Area(0)
	s.wr.Opcode = verbs.OpSend
	return nil
}

// message is the state of one. It waits for its connection, or for room, then it is in flight.
// Copied messages in a row, of which nothing is left to do at their end, share a request.
type message struct {
	conn      *conn
	buf       int32 // send buffer; none once the device has copied it
	n         int32 // bytes
	wrs       int32 // work requests: those of the write, and the send; or of so many copied messages
	copied    bool
	solicited bool
	urgent    bool
	cookie    uint64
	off       uint64 // of the write
	src       source // of the write
}

// unconfirmed counts messages that need no send buffer any more, and may not have arrived. An
// urgent one is an answer: the rank that waits for it sees to that, and one that does not may be
// gone, and would be found dead.
func (m *message) unconfirmed() int {
	switch {
	case m.conn == nil || m.buf != none || m.urgent:
		return 0
	case m.copied:
		return int(m.wrs)
	}
	return 1
}

// reserve takes a free send buffer.
func (o *messages) reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	id, err := o.bufs.Reserve(f)
	if err != nil {
		return fabric.SendBuf{}, err
	}
	return fabric.SendBuf{Data: o.bytes(id), ID: id}, nil
}

// bytes are the memory of a send buffer.
func (o *messages) bytes(id int32) []byte {
	at := int(id) * o.stride
	return o.sends[at : at+o.cfg.SlotSize : at+o.cfg.SlotSize]
}

// makeTables sizes what there is of each, and returns how many work requests may be in flight.
func (o *messages) makeTables(cfg fabric.EndpointConfig) int32 {
	// A short message leaves its buffer at the post and its request later, hence more requests than
	// buffers.
	o.tx.makeRequests(2*cfg.Sends + endpointQueue)
	o.all = make([]message, len(o.tx.requests))
	o.tx.owner, o.tx.depth, o.tx.every = o, endpointDepth, endpointSignal
	o.tx.limit = int32(2*len(o.all) + endpointDepth) // silent ones leave endpointDepth, see crowded
	return o.tx.limit
}

// takesNow reports whether a connection has nothing that waits, and room for a message of one work
// request.
func (o *messages) takesNow(c *conn) bool {
	return c.state == connUp && c.waiting.n == 0 && c.q.err == nil && !o.full(c) && o.tx.room(&c.q, 1) && !o.tx.full()
}

// postCopied posts a message that takesNow and that travels in its work request: it needs no send
// buffer.
func (o *messages) postCopied(c *conn, data []byte, f fabric.SendFlag) {
	o.quick.sge.Length = uint32(copy(o.quick.area, data)) // first: little is at hand yet that would have to be put aside
	tx, q := &o.tx, &c.q
	i, urgent := q.flight.tail, f&fabric.Urgent != 0
	m := &o.all[i]
	if q.silent > 0 && m.copied && m.urgent == urgent {
		tx.extend(q)
		m.wrs++ // see tuning.go for how many in a row are unsignaled
		c.joined++
	} else {
		i = tx.take()
		tx.add(q, i, 1)
		m = &o.all[i]
		m.conn, m.buf, m.wrs, m.cookie, m.urgent, m.copied = c, none, 1, 0, urgent, true // the rest is not looked at
	}
	w := o.quick.wr
	w.WRID, w.Flags = tx.id(i), verbs.Inline
	if f&fabric.Solicited != 0 {
		w.Flags = verbs.Inline | verbs.Solicited
	}
	if tx.sign(q, w, c.holding || m.wrs == endpointSignal || o.crowded()) {
		c.holding = false
	}
	c.closing = false
	o.used(c)
	o.sent(c)
	o.count.Sends++
	o.count.SendBytes += uint64(len(data))
	o.count.Doorbells++
	if err := tx.postOne(q, o.quick.chain); err != nil {
		o.lose(err)
	}
}

// stageNow stages a message that takesNow and is in its send buffer.
func (o *messages) stageNow(c *conn, m *message) {
	i, slot, w := o.tx.one(&c.q)
	at := &o.all[i]
	*at = *m
	at.conn = c
	o.fillSend(c, at, slot, w)
	c.closing = false
	o.used(c)
	o.sent(c)
}

// sent counts a message that is staged.
func (o *messages) sent(c *conn) {
	c.sent++
	c.busy = true
}

// full reports whether a message to a connection, if there is one, finds its queue full.
func (o *messages) full(c *conn) bool {
	return c != nil && c.q.flight.n+int32(c.joined)+c.waiting.n >= endpointQueue || o.tx.unused == 0
}

// crowded reports that work requests leave no room for the largest message: silent ones, which may
// keep theirs for ever, stay below.
func (o *messages) crowded() bool { return o.tx.out+endpointDepth > o.tx.limit }

// enqueue puts a message at the end of a connection's queue. It is not full.
func (o *messages) enqueue(c *conn, m message) {
	i := o.tx.take()
	m.conn = c
	o.all[i] = m
	o.tx.push(&c.waiting, i)
	c.closing = false
	o.used(c)
	o.markReady(c)
}

// used notes the use of a connection: those not used for longest are closed first.
func (o *messages) used(c *conn) {
	o.uses++
	c.used = o.uses
}

func (o *messages) markReady(c *conn) {
	if !c.ready && c.state == connUp && c.waiting.n > 0 {
		c.ready = true
		o.ready = append(o.ready, c)
	}
}

// stageReady stages what waits and has room. What does not fit into one ring is posted on the way.
func (o *messages) stageReady() {
	ready := o.ready
	o.ready, o.spare = o.spare[:0], ready
	for _, c := range ready {
		c.ready = false
		o.stageWaiting(c)
		o.markReady(c) // what found no room goes when something completes
	}
	clear(ready)
}

// stageWaiting stages what waits for a connection, as far as there is room.
func (o *messages) stageWaiting(c *conn) {
	for c.waiting.n > 0 && c.state == connUp && c.q.err == nil && o.lost == nil {
		m := &o.all[c.waiting.head]
		if !o.tx.room(&c.q, m.wrs) && o.tx.out > 0 {
			if c.q.silent > 0 { // which would keep their room
				o.ringIfFull()
				o.tx.probe(&c.q)
			}
			return
		}
		i := o.tx.pop(&c.waiting)
		o.tx.add(&c.q, i, m.wrs)
		for piece := range int(m.wrs) - 1 {
			slot, w := o.slot(c, i)
			o.fillWrite(c, m, slot, w, piece)
		}
		slot, w := o.slot(c, i)
		o.fillSend(c, m, slot, w)
		o.sent(c)
	}
}

// slot takes a slot of the chain, after a ring if that is full.
func (o *messages) slot(c *conn, i int32) (int, *verbs.SendWR) {
	o.ringIfFull()
	return o.tx.slot(&c.q, o.tx.id(i))
}

// fillWrite makes a work request of a piece of a message's write.
func (o *messages) fillWrite(c *conn, m *message, slot int, w *verbs.SendWR, piece int) {
	s := &m.src
	start := piece * o.n.piece
	n := min(o.n.piece, len(s.src)-start)
	w.Opcode = verbs.OpWrite
	w.SetRemote(c.q.base+m.off+uint64(start), c.q.rkey)
	switch s.how {
	case sourceInline:
		o.tx.chain.CopyInline(slot, s.src)
	case sourceBuffer:
		o.tx.chain.SetLocal(slot, addrOf(o.bytes(m.buf)[m.n:]), uint32(n), o.lkey)
	default:
		o.tx.chain.SetLocal(slot, s.addr+uint64(start), uint32(n), s.lkey)
	}
}

// fillSend makes the last work request of a message, which sends.
func (o *messages) fillSend(c *conn, m *message, slot int, w *verbs.SendWR) {
	w.Opcode = verbs.OpSend
	if m.solicited {
		w.Flags = verbs.Solicited
	}
	b := o.bytes(m.buf)[:m.n]
	switch {
	case len(b) == 0:
		w.SetNumSGE(0)
	case len(b) <= o.inline:
		o.tx.chain.CopyInline(slot, b)
	default:
		o.tx.chain.SetLocal(slot, addrOf(b), uint32(len(b)), o.lkey)
	}
	if len(b) <= o.inline && m.src.how != sourceBuffer { // the device needs it no more
		o.bufs.Free(m.buf)
		m.buf = none
	}
	c.holding = c.holding || m.buf != none
	// Perhaps nothing is sent to this peer again: the last message of several frees their buffers.
	last := c.holding && c.waiting.n == 0
	if o.tx.sign(&c.q, w, m.cookie != 0 || m.src.how != sourceNone || last ||
		m.buf != none && o.bufs.Scarce() || o.crowded()) {
		c.holding = false
	}
}

// ended deals with the end of a message, or of a probe, which has index none.
func (o *messages) ended(q *sendQueue, i int32, err error) {
	c := q.conn
	if i != none {
		m := &o.all[i]
		m.conn = nil
		if m.copied {
			c.joined -= uint8(m.wrs - 1)
		} else {
			o.release(m, q.rank, err)
		}
	}
	switch {
	case err != nil:
		return
	case c.waiting.n > 0:
		o.markReady(c)
	case c.closing && q.flight.n == 0:
		c.proven = true
		o.idle = append(o.idle, c)
	}
	c.busy = true
}

// release gives back a message's own memory, and reports its end if it has to.
func (o *messages) release(m *message, rank int32, err error) {
	if m.buf != none {
		o.bufs.Free(m.buf)
	}
	m.src.release(&o.n.mem)
	if m.cookie != 0 {
		o.events.push(fabric.Event{Kind: fabric.Sent, Peer: int(rank), Cookie: m.cookie, Err: err})
	}
}

// endConn ends everything of a connection that the device does not reach any more.
func (o *messages) endConn(c *conn, err error) {
	o.tx.endAll(&c.q, err)
	for c.waiting.n > 0 {
		i := o.tx.pop(&c.waiting)
		o.tx.giveBack(i)
		o.ended(&c.q, i, err)
	}
}

// probeUnconfirmed probes the connections with unconfirmed unsignaled messages.
func (o *messages) probeUnconfirmed() {
	for i := range o.all {
		if m := &o.all[i]; m.unconfirmed() > 0 {
			o.tx.probeLater(&m.conn.q)
		}
	}
}

// stageReceives stages bare receive buffers.
func (o *messages) stageReceives(r *receiveQueue) {
	for len(r.bare) > 0 && o.lost == nil {
		o.ringIfFull()
		first, n := r.next()
		o.tx.stage(run{receives: r, first: first, n: n})
	}
}

// ringIfFull makes sure that the ring in preparation takes one more work request, in a run of its
// own.
func (o *messages) ringIfFull() {
	if o.tx.full() {
		o.ring(0)
	}
}

// ring posts staged requests and, with want 1, takes completions that there are already: their
// count.
func (o *messages) ring(want int) int {
	o.count.Doorbells++
	n, err := o.tx.ring(want, 0)
	if err != nil {
		o.lose(err)
	}
	return n
}

// lose gives the endpoint up: its completion queue, or a queue that all need, is of no more use.
func (o *messages) lose(err error) {
	if o.lost == nil {
		o.look.Store(true)
		o.tx.wake()
		o.lost = fmt.Errorf("ibv: endpoint %d is lost: %w", o.num, err)
		o.n.log.Warn("ibv: an endpoint is lost", "endpoint", o.num, "err", err)
	}
}
