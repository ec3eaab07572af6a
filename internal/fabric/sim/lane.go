package sim

import (
	"encoding/binary"
	"fmt"
	"os"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// lane is a queue of one-sided operations. They are sent in lane_datapath.go, arrive in
// arrive_lane.go, and are awaited in lane_wait.go.
type lane struct {
	n      *Network
	count  fabric.Counters
	ops    []*op // by number
	free   []int32
	flows  map[int32]*flow
	held   []*op           // of a batch, until it is rung
	spare  []*group        // for the next ones
	flight int             // operations that are not complete
	failed fabric.Failures // of implicit operations, since the last flush
	closed bool

	waiter *task // the owner, in a call that waits
	want   want
}

// want is the owner's condition for its wait to end.
type want struct {
	op      *op
	flow    *flow // room for one more
	reports *fabric.Completions
	all     bool
}

// flow is what a lane has on the way to one peer.
type flow struct {
	l      *lane
	peer   int32
	puts   queue.Ring[*op] // in order
	timer  timer           // of the first
	last   int64           // when the latest put arrives
	flight int             // operations that are not complete
}

// group is operations of a batch whose completion is reported as one.
type group struct {
	tag     fabric.Tag
	reports *fabric.Completions
	left    int // operations that are not complete
	err     error
}

// op is one operation.
type op struct {
	l        *lane
	f        *flow
	timer    timer
	id       int32
	gen      uint32
	kind     fabric.Kind
	phase    phase
	implicit bool
	orphan   bool   // its result is not wanted
	group    *group // of a batch
	memory   *fabric.Memory
	result   []byte // where an atomic's old value goes, or nil
	off      uint64
	atomic   fabric.Atomic
	old      uint64
	at       int64  // when it arrives
	buf      []byte // source or destination
	done     int    // bytes of a put that have landed
	err      error
	inline   [copyMax]byte
}

type phase uint8

const (
	idle     phase = iota
	held           // in a batch
	outward        // to the peer
	homeward       // and back
	complete
)

var _ fabric.Lane = (*lane)(nil)

func newLane(n *Network) *lane { return &lane{n: n, flows: make(map[int32]*flow)} }

// Counters are the lane's.
func (l *lane) Counters() *fabric.Counters { return &l.count }

// usable is nil while the lane is open.
func (l *lane) usable(op string) error {
	if l.closed {
		return fmt.Errorf("sim: %s: lane: %w", op, os.ErrClosed)
	}
	if l.n.r.dead {
		return errKilled
	}
	return nil
}

// find is the operation of a handle.
func (l *lane) find(h fabric.Handle) (*op, error) {
	if id := int64(uint32(h)) - 1; id >= 0 && id < int64(len(l.ops)) {
		if o := l.ops[id]; o.gen == uint32(h>>32) && o.phase != idle && !o.implicit && !o.orphan && o.group == nil {
			return o, nil
		}
	}
	return nil, fmt.Errorf("sim: no operation has the handle %#x", uint64(h))
}

func (o *op) handle() fabric.Handle { return fabric.Handle(o.gen)<<32 | fabric.Handle(o.id+1) }

func (l *lane) fulfils(x want) bool {
	switch {
	case x.op != nil:
		return x.op.phase == complete
	case x.flow != nil:
		return x.flow.flight < l.n.r.w.cfg.Depth
	case x.reports != nil:
		return x.reports.Len() > 0
	}
	return l.flight == 0
}

// notify wakes the owner if what it waits for is so.
func (l *lane) notify() {
	if l.waiter != nil && l.fulfils(l.want) {
		l.n.r.w.wake(l.waiter)
	}
}

// fail completes an operation on a rank that is down.
func (o *op) fail() {
	o.finish(o.l.n.deaths.Err(o.piece().Op(), int(o.f.peer)))
}

// piece is the operation as one of a batch.
func (o *op) piece() *fabric.Piece {
	return &fabric.Piece{Kind: o.kind, Atomic: o.atomic, Peer: int(o.f.peer), Off: o.off, Buf: o.buf}
}

func (l *lane) take() *op {
	if k := len(l.free); k > 0 {
		o := l.ops[l.free[k-1]]
		l.free = l.free[:k-1]
		return o
	}
	o := &op{l: l, id: int32(len(l.ops)), gen: 1}
	o.timer.owner = o
	l.ops = append(l.ops, o)
	return o
}

// recycle makes the handle void.
func (l *lane) recycle(o *op) {
	o.gen++
	o.phase, o.buf, o.err, o.done, o.orphan, o.f, o.group, o.memory, o.result = idle, nil, nil, 0,
		false, nil, nil, nil, nil
	l.free = append(l.free, o.id)
}

// collect spends a handle.
func (l *lane) collect(o *op) (uint64, error) {
	old, err := o.old, o.err
	l.recycle(o)
	return old, err
}

// finish completes an operation.
func (o *op) finish(err error) {
	l := o.l
	w := l.n.r.w
	w.emit(markComplete, l.n.r.id, o.f.peer, o.off, uint64(len(o.buf)))
	o.phase, o.err = complete, err
	o.f.flight--
	l.flight--
	if o.memory != nil {
		o.memory.Unuse()
	}
	if o.result != nil && err == nil {
		binary.NativeEndian.PutUint64(o.result, o.old)
	}
	l.count.End(1, err)
	switch g := o.group; {
	case g != nil && err != nil:
		g.end(l, o.piece().Failed(err))
	case g != nil:
		g.end(l, nil)
	case o.implicit && err != nil:
		l.failed.Add(o.piece().Failed(err))
	}
	l.notify()
	if o.implicit || o.orphan || o.group != nil {
		l.recycle(o)
	}
}

// scribble makes it plain that the memory is not the program's.
func scribble(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}

// end ends one operation of a group, or the posting of it.
func (g *group) end(l *lane, err error) {
	if g.err == nil {
		g.err = err
	}
	if g.left--; g.left > 0 {
		return
	}
	if !l.closed {
		g.reports.Tell(g.tag, g.err)
	}
	*g = group{}
	l.spare = append(l.spare, g)
}

// group is a new one, with an operation more than it has: the posting of it.
func (l *lane) group(tag fabric.Tag, reports *fabric.Completions) *group {
	var g *group
	if k := len(l.spare); k > 0 {
		g, l.spare = l.spare[k-1], l.spare[:k-1]
	} else {
		g = new(group)
	}
	g.tag, g.reports, g.left = tag, reports, 1
	return g
}
