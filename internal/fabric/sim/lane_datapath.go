package sim

import (
	"context"

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

// Get requests len(dst) bytes.
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

// ring posts the operations that are held: the doorbell.
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

// source makes src, perhaps in registered memory, what a put sends.
func (l *lane) source(o *op, src []byte, m *fabric.Memory) {
	if m == nil && len(src) <= copyMax {
		l.count.Inline++
		o.buf = o.inline[:copy(o.inline[:], src)]
	} else {
		l.count.Direct++
		o.buf = src
	}
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
