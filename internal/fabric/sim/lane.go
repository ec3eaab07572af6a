package sim

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// lane is a queue of one-sided operations. What happens to them underway is in
// lane_datapath.go.
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

// want is what the owner waits for.
type want struct {
	op   *op
	flow *flow // room for one more
	told *fabric.Completions
	all  bool
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

// group is operations of a batch whose completion is told as one.
type group struct {
	tag  fabric.Tag
	told *fabric.Completions
	left int // operations that are not complete
	err  error
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

// Test looks, and lets a little time pass if the operation is not complete.
func (l *lane) Test(h fabric.Handle) (uint64, bool, error) {
	if err := l.usable("test"); err != nil || h == fabric.Done {
		return 0, err == nil, err
	}
	o, err := l.find(h)
	if err != nil {
		return 0, false, err
	}
	l.ring()
	if o.phase != complete {
		if err := l.pause("test"); err != nil {
			return 0, false, err
		}
	}
	if o.phase != complete {
		return 0, false, nil
	}
	old, err := l.collect(o)
	return old, true, err
}

// Wait waits for one operation.
func (l *lane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	if err := l.usable("wait"); err != nil || h == fabric.Done {
		return 0, err
	}
	o, err := l.find(h)
	if err != nil {
		return 0, err
	}
	if err := l.until(ctx, reason{"waits for an operation on rank", int(o.f.peer)}, want{op: o}); err != nil {
		return 0, err
	}
	return l.collect(o)
}

// Flush waits for all.
func (l *lane) Flush(ctx context.Context) error {
	if err := l.usable("flush"); err != nil {
		return err
	}
	if err := l.until(ctx, reason{"flushes a lane", -1}, want{all: true}); err != nil {
		return err
	}
	return l.failed.Take()
}

// Quiet looks at what is in flight.
func (l *lane) Quiet(peer int) bool {
	if peer < 0 {
		return l.flight == 0
	}
	f := l.flows[int32(peer)] // nil also of a rank that another network serves
	return f == nil || f.flight == 0
}

// Await waits for a completion to be told.
func (l *lane) Await(ctx context.Context, q *fabric.Completions) error {
	if err := l.usable("await"); err != nil {
		return err
	}
	if q.Len() == 0 && (q.InFlight() == 0 || l.flight == 0) {
		return fmt.Errorf("sim: await: %w", fabric.ErrIdle)
	}
	return l.until(ctx, reason{"waits for a completion", -1}, want{told: q})
}

// Register has nothing to do: any memory will do.
func (l *lane) Register(mem []byte) (*fabric.Memory, error) {
	if err := l.usable("register"); err != nil {
		return nil, err
	}
	return fabric.NewMemory(l.n, mem, 0, nil), nil
}

// Poll lets a little time pass.
func (l *lane) Poll() error {
	if err := l.usable("poll"); err != nil {
		return err
	}
	l.ring()
	return l.pause("poll")
}

func (l *lane) pause(op string) error {
	l.count.Polls++
	return l.n.r.w.pause(op, l.n.r.w.cfg.PollCost)
}

// until waits until something is so.
func (l *lane) until(ctx context.Context, why reason, x want) error {
	l.ring()
	w := l.n.r.w
	for !l.fulfils(x) {
		t, err := w.task(why.what)
		if err != nil {
			return err
		}
		if ctx != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		l.waiter, l.want = t, x
		err = t.park(why, ctx, forever)
		l.waiter = nil
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lane) fulfils(x want) bool {
	switch {
	case x.op != nil:
		return x.op.phase == complete
	case x.flow != nil:
		return x.flow.flight < l.n.r.w.cfg.Depth
	case x.told != nil:
		return x.told.Len() > 0
	}
	return l.flight == 0
}

// notify wakes the owner if what it waits for is so.
func (l *lane) notify() {
	if l.waiter != nil && l.fulfils(l.want) {
		l.n.r.w.wake(l.waiter)
	}
}

// WaitWord parks until the word has changed. stop is asked in growing
// intervals.
func (l *lane) WaitWord(ctx context.Context, p *uint64, c fabric.Cond, value uint64, stop func() error) error {
	if err := l.usable("wait for a word"); err != nil {
		return err
	}
	l.ring()
	const first, most = 10_000, 10_000_000 // ns between questions to stop
	w, r := l.n.r.w, l.n.r
	x := word{p: p, c: c, value: value}
	for interval := int64(first); !x.holds(); interval = min(2*interval, most) {
		t, err := w.task("wait for a word")
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		until := int64(forever)
		if stop != nil {
			if err := stop(); err != nil {
				return err
			}
			until = w.now + interval
		}
		if err := t.parkWord(r, x, ctx, until); err != nil {
			return err
		}
	}
	return nil
}

// parkWord is park as one of the waiters for words of a rank's segment.
func (t *task) parkWord(r *Rank, x word, ctx context.Context, until int64) error {
	x.place = len(r.words)
	t.word, t.timer.periodic = x, true
	r.words = append(r.words, t)
	err := t.park(reason{"waits for a word of rank", int(r.id)}, ctx, until)
	t.timer.periodic = false
	last := len(r.words) - 1
	moved := r.words[last]
	moved.word.place = t.word.place
	r.words[t.word.place] = moved
	r.words[last] = nil
	r.words = r.words[:last]
	return err
}

// Mapped is nil: loads and stores do not reach other ranks, as over verbs.
func (l *lane) Mapped(int) []byte { return nil }

// Abandon leaves an operation to itself.
func (l *lane) Abandon(h fabric.Handle) {
	if h == fabric.Done || l.closed {
		return
	}
	if o, err := l.find(h); err == nil {
		o.orphan = true
		if o.phase == complete {
			l.recycle(o)
		}
	}
}

// Close leaves what is in flight to itself.
func (l *lane) Close() error {
	if l.closed {
		return nil
	}
	l.ring()
	l.closed = true
	l.n.lanes = slices.DeleteFunc(l.n.lanes, func(o *lane) bool { return o == l })
	return l.failed.Take()
}

// peerDown fails what is in flight to a rank.
func (l *lane) peerDown(rank int32) {
	f := l.flows[rank]
	if f == nil {
		return
	}
	f.clear()
	l.held = slices.DeleteFunc(l.held, func(o *op) bool { return o.f == f })
	for _, o := range l.ops {
		if o.f == f && o.phase != idle && o.phase != complete {
			l.n.r.w.disarm(&o.timer)
			o.fail()
		}
	}
}

func (f *flow) clear() {
	f.l.n.r.w.disarm(&f.timer)
	f.puts = queue.Ring[*op]{}
}

// fail completes an operation on a rank that is down.
func (o *op) fail() {
	o.finish(o.l.n.deaths.Err(o.piece().Op(), int(o.f.peer)))
}

// piece is the operation as one of a batch.
func (o *op) piece() *fabric.Piece {
	return &fabric.Piece{Kind: o.kind, Atomic: o.atomic, Peer: int(o.f.peer), Off: o.off, Buf: o.buf}
}

// die keeps a random part of the puts on their way, and no answer.
func (l *lane) die() {
	w := l.n.r.w
	for _, o := range l.ops {
		if o.phase == homeward || o.phase == outward && o.kind != fabric.KindPut && w.rng.chance(0.5) {
			w.disarm(&o.timer)
		}
	}
	for _, o := range l.ops { // in the order of the operations, not of a map
		if f := o.f; o.phase == outward && f.puts.Len() > 0 && *f.puts.Item(0) == o {
			n := int(w.rng.below(int64(f.puts.Len()) + 1))
			f.puts.Truncate(n)
			if n == 0 {
				w.disarm(&f.timer)
			}
		}
	}
}
