package conduit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// chainMost is after how many operations on one lane a chain is posted before its end: what it
// collects is memory, some 80 bytes an operation.
const chainMost = 1024

// chain is what Worker.Chain collects, a batch for each lane, and its operations that are waited
// for. Each of these is a group of its own.
type chain struct {
	w      *Worker
	lanes  []chainLane // one for each of the worker's, in their place while fn runs
	values []byte      // sources that are laid here until they are posted
	told   fabric.Completions
	ops    []*chainOp // by number
	free   []uint32   // numbers
	lost   error      // the first of posting for a wait
}

// chainLane collects puts, gets and atomics for a lane while a chain is in progress, and waits for
// those. In a job with a cache it stays below that.
type chainLane struct {
	fabric.Lane
	chain *chain
	batch fabric.Batch
}

// chainOp is an operation with a handle: its number + 1, below its generation.
type chainOp struct {
	generation uint32
	done       bool
	abandoned  bool
	old        uint64
	err        error
}

// post posts what was collected.
func (c *chain) post() error {
	var first error
	for i := range c.lanes {
		l := &c.lanes[i]
		if l.batch.Len() == 0 {
			continue
		}
		if err := l.Lane.Post(&l.batch, &c.told, 0); err != nil {
			for _, g := range l.batch.Groups() {
				if g.Implicit {
					continue
				}
				c.end(fabric.Completion{Tag: g.Tag, Err: err})
			}
			if first == nil {
				first = err
			}
		}
		l.batch.Reset()
	}
	c.values = c.values[:0]
	return first
}

// Put collects a put. The worker's scratch buffer is the next operation's too.
func (l *chainLane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	if !l.chain.w.inChain {
		return l.Lane.Put(peer, off, src, f)
	}
	if err := l.begin(peer, f); err != nil {
		return fabric.Done, err
	}
	if f == fabric.Blocking {
		h, err := l.Lane.Put(peer, off, src, f)
		_, err = l.now(0, h, err)
		return fabric.Done, err
	}
	c := l.chain
	if n := len(src); n > 0 && n <= c.w.job.networks.copyMax && unsafe.SliceData(src) == unsafe.SliceData(c.w.scratch) {
		at := len(c.values)
		c.values = append(c.values, src...)
		src = c.values[at : at+n : at+n]
	}
	l.batch.Put(peer, off, src)
	return l.added(f), nil
}

// Get collects a get.
func (l *chainLane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	if !l.chain.w.inChain {
		return l.Lane.Get(peer, off, dst, f)
	}
	if err := l.begin(peer, f); err != nil {
		return fabric.Done, err
	}
	if f == fabric.Blocking {
		h, err := l.Lane.Get(peer, off, dst, f)
		_, err = l.now(0, h, err)
		return fabric.Done, err
	}
	l.batch.Get(peer, off, dst)
	return l.added(f), nil
}

// Atomic collects an atomic.
func (l *chainLane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	if !l.chain.w.inChain {
		return l.Lane.Atomic(peer, off, a, f)
	}
	if err := l.begin(peer, f); err != nil {
		return 0, fabric.Done, err
	}
	switch {
	case f == fabric.Blocking:
		old, h, err := l.Lane.Atomic(peer, off, a, f)
		old, err = l.now(old, h, err)
		return old, fabric.Done, err
	case f&fabric.Implicit != 0:
		l.batch.Atomic(peer, off, a, nil)
		return 0, fabric.Done, nil
	}
	i := l.chain.take()
	l.batch.Atomic(peer, off, a, &l.chain.ops[i].old)
	return 0, l.tag(i), nil
}

// begin makes ready for an operation. One that waits goes behind the chain so far, as does one that
// is too many; what is implicit in front of one with a handle is not of its group.
func (l *chainLane) begin(peer int, f fabric.Flag) error {
	if cause := l.chain.w.job.members.cause(peer); cause != nil { // the rest of the chain is posted
		return &PeerDownError{Rank: peer, Op: "chain", Cause: cause}
	}
	if f == fabric.Blocking || l.batch.Len() >= chainMost {
		if err := l.chain.post(); err != nil {
			return err
		}
	}
	if f&fabric.Implicit == 0 {
		l.batch.Untag()
	}
	return nil
}

// now waits for an operation that was not collected. old is its result if it is complete.
func (l *chainLane) now(old uint64, h fabric.Handle, err error) (uint64, error) {
	if err == nil && h != fabric.Done {
		if old, err = l.Lane.Wait(l.chain.w.ctx, h); err != nil {
			l.Lane.Abandon(h)
		}
	}
	return old, err
}

// added makes the handle of the operation that was added last, unless it is implicit.
func (l *chainLane) added(f fabric.Flag) fabric.Handle {
	if f&fabric.Implicit != 0 {
		return fabric.Done
	}
	return l.tag(l.chain.take())
}

// tag ends the group of an operation.
func (l *chainLane) tag(i uint32) fabric.Handle {
	h := uint64(l.chain.ops[i].generation)<<32 | uint64(i+1)
	l.batch.Tag(fabric.Tag(h))
	return fabric.Handle(h) | fabric.MarkChain
}

// take returns the number of a new operation.
func (c *chain) take() uint32 {
	if k := len(c.free); k > 0 {
		i := c.free[k-1]
		c.free = c.free[:k-1]
		return i
	}
	c.ops = append(c.ops, &chainOp{generation: 1})
	return uint32(len(c.ops) - 1)
}

// release spends the handle of an operation.
func (c *chain) release(i uint32) {
	o := c.ops[i]
	o.generation++
	o.done, o.abandoned, o.old, o.err = false, false, 0, nil
	c.free = append(c.free, i)
}

// end notes the end of an operation.
func (c *chain) end(x fabric.Completion) {
	i := uint32(x.Tag) - 1
	o := c.ops[i]
	if o.done, o.err = true, x.Err; o.abandoned {
		c.release(i)
		return
	}
	if failed, ok := x.Err.(*fabric.OpError); ok {
		o.err = failed.Err // the caller knows which operation it is
	}
}

// harvest notes what lanes told.
func (c *chain) harvest() {
	var told [16]fabric.Completion
	for c.told.Len() > 0 {
		for _, x := range told[:c.told.Take(told[:])] {
			c.end(x)
		}
	}
}

// find returns the operation of a handle, and makes sure that it is posted.
func (l *chainLane) find(h fabric.Handle) (uint32, *chainOp, error) {
	c := l.chain
	h &^= fabric.MarkChain
	i := uint32(h) - 1
	if uint64(i) >= uint64(len(c.ops)) || c.ops[i].generation != uint32(h>>32) || c.ops[i].abandoned {
		return 0, nil, fmt.Errorf("conduit: no operation of a chain has the handle %#x", uint64(h))
	}
	if err := c.post(); err != nil && c.lost == nil {
		c.lost = err // of implicit operations; others have it
	}
	c.harvest()
	return i, c.ops[i], nil
}

// Wait waits for an operation of a chain.
func (l *chainLane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	if h&fabric.MarkChain == 0 {
		return l.Lane.Wait(ctx, h)
	}
	i, o, err := l.find(h)
	if err != nil {
		return 0, err
	}
	for !o.done {
		if err := l.Lane.Await(ctx, &l.chain.told); err != nil {
			return 0, err
		}
		l.chain.harvest()
	}
	return l.chain.collect(i)
}

// Test looks for one.
func (l *chainLane) Test(h fabric.Handle) (uint64, bool, error) {
	if h&fabric.MarkChain == 0 {
		return l.Lane.Test(h)
	}
	i, o, err := l.find(h)
	if err != nil {
		return 0, false, err
	}
	if !o.done {
		if err := l.Poll(); err != nil {
			return 0, false, err
		}
		l.chain.harvest()
	}
	if !o.done {
		return 0, false, nil
	}
	old, err := l.chain.collect(i)
	return old, true, err
}

// collect takes an operation's outcome.
func (c *chain) collect(i uint32) (uint64, error) {
	old, err := c.ops[i].old, c.ops[i].err
	c.release(i)
	return old, err
}

// Abandon leaves an operation to itself.
func (l *chainLane) Abandon(h fabric.Handle) {
	if h&fabric.MarkChain == 0 {
		l.Lane.Abandon(h)
	} else if i, o, err := l.find(h); err == nil {
		if o.abandoned = true; o.done {
			l.chain.release(i)
		}
	}
}

// Chain collects the operations that fn starts on w and posts them together: one doorbell, one call
// into the driver. The puts to one rank keep their order. Values that are put are copied at once;
// slices are read at the end. fn should not wait for any of the operations: a wait, and an
// operation that waits by itself, posts what was collected before. When fn fails, or panics, what
// it collected before is posted all the same.
func (w *Worker) Chain(fn func() error) (err error) {
	if w.peers == nil {
		return errClosed("chain", "worker")
	}
	if w.inChain {
		return errors.New("conduit: chains do not nest")
	}
	if w.chain == nil {
		w.chain = &chain{w: w, lanes: make([]chainLane, len(w.lanes))}
		for i, l := range w.lanes {
			w.chain.lanes[i] = chainLane{Lane: l, chain: w.chain}
		}
	}
	w.chain.place(true)
	defer func() {
		w.chain.place(false)
		if w.peers == nil {
			return // closed in the midst
		}
		c := w.chain
		if e := cmp.Or(c.lost, c.post()); e != nil && err == nil {
			err = e
		}
		c.lost = nil
	}()
	return fn()
}

// place puts the chain's lanes above those of the networks, or takes them out. Below a cache, which
// lets all pass meanwhile, they stay, for operations that are waited for later.
func (c *chain) place(begin bool) {
	w := c.w
	w.inChain = begin
	for i := range w.lanes {
		switch {
		case w.kept.lanes != nil:
			w.kept.lanes[i].Lane, w.kept.lanes[i].Passed = &c.lanes[i], begin
		case begin:
			w.byNet[i] = &c.lanes[i]
		default:
			w.byNet[i] = w.lanes[i]
		}
	}
}

// postOpen posts what a chain in progress has collected, if there is one.
func (c *chain) postOpen() error {
	if c == nil || !c.w.inChain {
		return nil
	}
	return c.post()
}
