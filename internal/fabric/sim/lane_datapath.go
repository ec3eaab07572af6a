package sim

import (
	"context"
	"encoding/binary"

	"github.com/ibconduit/conduit/internal/fabric"
)

const (
	headerBytes = 64 // of a request or an answer without payload
	tearBytes   = 64 // puts above it may land in two pieces
	spinBudget  = 10_000
)

// Put sends src.
func (l *lane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	if err := l.check("put", peer, off, uint64(len(src))); err != nil {
		return fabric.Done, err
	}
	l.count.Start(fabric.KindPut, uint64(len(src)))
	o, err := l.start(fabric.KindPut, peer, off, f)
	if err != nil {
		return fabric.Done, err
	}
	l.source(o, src, nil)
	return l.post(o, f)
}

// Get asks for len(dst) bytes.
func (l *lane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	if err := l.check("get", peer, off, uint64(len(dst))); err != nil {
		return fabric.Done, err
	}
	l.count.Start(fabric.KindGet, uint64(len(dst)))
	l.count.Direct++
	o, err := l.start(fabric.KindGet, peer, off, f)
	if err != nil {
		return fabric.Done, err
	}
	o.buf = dst
	scribble(dst)
	return l.post(o, f)
}

// check refuses what must not reach the wire.
func (l *lane) check(op string, peer int, off, n uint64) error {
	if err := l.usable(op); err != nil {
		return err
	}
	if err := l.n.refuse(op, peer); err != nil {
		return err
	}
	return fabric.CheckTarget(l.n, op, peer, off, n)
}

// start makes an operation, when there is room for it.
func (l *lane) start(kind fabric.Kind, peer int, off uint64, flags fabric.Flag) (*op, error) {
	f := l.flows[int32(peer)]
	if f == nil {
		f = &flow{l: l, peer: int32(peer)}
		f.timer.owner = f
		l.flows[int32(peer)] = f
	}
	if f.flight >= l.n.r.w.cfg.Depth {
		l.count.Stalls++
		var unbounded context.Context // room comes, or the peer is found down
		if err := l.until(unbounded, reason{"waits for room in the queue to rank", peer}, want{flow: f}); err != nil {
			switch kind { // it could not even wait
			case fabric.KindPut:
				l.count.Puts--
			case fabric.KindGet:
				l.count.Gets--
			case fabric.KindAtomic:
				l.count.Atomics--
			}
			return nil, err
		}
	}
	// The peer may have been found dead meanwhile; then it counts as posted and fails.
	o := l.take()
	o.f, o.kind, o.off, o.phase = f, kind, off, held
	o.implicit = flags&fabric.Implicit != 0
	f.flight++
	l.flight++
	return o, nil
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

// post sends an operation.
func (l *lane) post(o *op, flags fabric.Flag) (fabric.Handle, error) {
	implicit, h := o.implicit, o.handle()
	l.held = append(l.held, o)
	l.ring()
	if implicit {
		return fabric.Done, nil
	}
	if flags&fabric.Blocking != 0 {
		l.spin(want{op: o}, reason{"polls for an operation on rank", int(o.f.peer)})
	}
	if o.phase == complete && o.err == nil {
		l.recycle(o)
		return fabric.Done, nil
	}
	return h, nil
}

// spin waits for something within a budget. That ends early half of the time.
func (l *lane) spin(x want, why reason) {
	w := l.n.r.w
	budget := w.rng.below(2 * spinBudget)
	t, err := w.task("blocking operation")
	for until := w.now + budget; err == nil && !l.fulfils(x) && w.now < until; {
		l.waiter, l.want = t, x
		err = t.park(why, nil, until)
		l.waiter = nil
	}
}

// ring posts what is held: the doorbell.
func (l *lane) ring() {
	if len(l.held) == 0 {
		return
	}
	l.count.Doorbells++
	for i := 0; i < len(l.held); i++ {
		l.held[i].send()
	}
	l.held = l.held[:0]
}

// send puts an operation on its way.
func (o *op) send() {
	o.l.count.Requests++
	if o.l.n.deaths.Cause(int(o.f.peer)) != nil {
		o.fail()
		return
	}
	w, a, b := o.l.n.r.w, o.l.n.r.id, o.f.peer
	w.emit(markPut+mark(o.kind), a, b, o.off, uint64(len(o.buf)))
	o.phase = outward
	if o.kind != fabric.KindPut {
		w.arm(&o.timer, w.paths.transit(a, b, headerBytes))
		return
	}
	o.f.last = max(o.f.last, w.paths.transit(a, b, headerBytes+len(o.buf)))
	o.at = o.f.last
	o.f.puts.Push(o)
	if o.f.puts.Len() == 1 {
		w.arm(&o.f.timer, o.at)
	}
}

// fire of a flow: its first put arrives.
func (f *flow) fire(t *timer) {
	n := f.l.n
	w, o := n.r.w, *f.puts.Item(0)
	switch w.paths.passes(t, n.r.id, f.peer, w.paths.blocked(n.r.id, f.peer)) {
	case hold:
		return
	case lost:
		n.reportDown(f.peer, errSilent)
		return
	}
	target := &w.ranks[f.peer]
	rest := o.buf[o.done:]
	if o.done == 0 && len(rest) > tearBytes && w.rng.below(4) == 0 {
		o.done = int(w.rng.below(int64(len(rest)))) &^ 7
		copy(target.segment[o.off:], rest[:o.done])
		w.touch(target)
		w.arm(t, w.now+1+w.rng.below(2000))
		return
	}
	copy(target.segment[o.off+uint64(o.done):], rest)
	w.touch(target)
	f.puts.Pop()
	if f.puts.Len() > 0 {
		w.arm(t, (*f.puts.Item(0)).at)
	}
	o.back(0)
}

// fire of an operation: it arrives, if it is no put, or its answer does.
func (o *op) fire(t *timer) {
	n := o.l.n
	w, peer := n.r.w, o.f.peer
	blocked := w.paths.blocked(n.r.id, peer)
	if o.phase == homeward {
		blocked = w.paths.blockedBack(t, n.r.id, peer)
	}
	switch w.paths.passes(t, n.r.id, peer, blocked) {
	case hold:
		return
	case lost:
		n.reportDown(peer, errSilent)
		return
	}
	if o.phase == homeward {
		o.finish(nil)
		return
	}
	if o.kind == fabric.KindAtomic {
		o.apply(&w.ranks[peer])
		o.back(0)
		return
	}
	copy(o.buf, w.ranks[peer].segment[o.off:])
	o.back(len(o.buf))
}

// back sends the answer.
func (o *op) back(bytes int) {
	n := o.l.n
	w := n.r.w
	w.emit(markApply, o.f.peer, n.r.id, o.off, uint64(len(o.buf)))
	if n.r.dead {
		return
	}
	o.phase = homeward
	w.arm(&o.timer, w.paths.transit(o.f.peer, n.r.id, headerBytes+bytes))
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
