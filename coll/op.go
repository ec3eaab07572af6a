package coll

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/fabric"
)

// Kind is a kind of operation.
type Kind uint8

// The kinds. A message has 4 bits for it.
const (
	KindNone Kind = iota
	KindBarrier
	KindBroadcast
	KindAllGather
	KindSplit
	KindFree
	KindShrink
	KindReduce
	KindAllReduce
	KindScan
	KindExScan
	KindAllToAll
	KindScatter
	KindGather
)

func (k Kind) String() string {
	switch k {
	case KindNone:
		return "operation"
	case KindBarrier:
		return "barrier"
	case KindBroadcast:
		return "broadcast"
	case KindAllGather:
		return "all-gather"
	case KindSplit:
		return "split"
	case KindFree:
		return "free"
	case KindShrink:
		return "shrink"
	case KindReduce:
		return "reduce"
	case KindAllReduce:
		return "all-reduce"
	case KindScan:
		return "scan"
	case KindExScan:
		return "exclusive scan"
	case KindAllToAll:
		return "all-to-all"
	case KindScatter:
		return "scatter"
	case KindGather:
		return "gather"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// call is an operation that was asked for.
type call struct {
	kind  Kind
	root  int
	name  string
	lanes env.Lanes // nil: the shared ones
	do    func(*op) error
	buf   []byte   // of a broadcast
	data  *payload // of an operation on typed data; nil else
}

// op is an operation that runs. A team has one at a time.
type op struct {
	call
	t       *Team
	ctx     context.Context
	number  uint64
	sign    uint64 // the low bits of its messages' words
	mute    bool   // acknowledges nothing; see meet
	verdict error  // of an operation that ended well: what this member gets, and breaks nothing
	looks   func() error
	word    [8]byte
	flights []flight
}

// flight is a put that is on its way from memory that may not change, or through lanes of another
// owner.
type flight struct {
	lane fabric.Lane
	h    fabric.Handle
	data bool // not a word
}

// run does an operation in the caller's goroutine.
func (t *Team) run(ctx context.Context, c *call) error {
	if ctx.Err() != nil {
		return fmt.Errorf("coll: %v: %w", c.kind, context.Cause(ctx))
	}
	if err := t.teams.admit(c.kind); err != nil {
		return err
	}
	defer t.teams.leave()
	if err := t.turns.lock(ctx); err != nil {
		return fmt.Errorf("coll: %v did not begin: waiting for an earlier operation of the team in slot %d: %w", c.kind, t.slot, err)
	}
	defer t.turns.unlock()
	return t.perform(ctx, c)
}

// perform does an operation whose turn it is.
func (t *Team) perform(ctx context.Context, c *call) error {
	if err := t.usable(); err != nil {
		return fmt.Errorf("coll: %v: %w", c.kind, err)
	}
	t.number++
	o := &t.op
	o.call, o.ctx, o.number, o.mute, o.verdict = *c, ctx, t.number, false, nil
	o.sign = signature(c.kind, o.number, c.root, c.name)
	var ended func()
	if watch := t.teams.watch; watch != nil {
		ended = watch(Operation{Kind: c.kind, Root: c.root, Me: t.me, Size: t.n, First: t.Member(0), Slot: t.slot, Generation: t.generation, Number: t.number})
	}
	err := c.do(o)
	if err == nil && len(o.flights) > 0 {
		err = o.settle(ctx)
	}
	if err == nil {
		o.forget()
		if ended != nil {
			ended()
		}
		if learned := t.teams.learned; learned != nil {
			learned()
		}
		return o.verdict
	}
	err = fmt.Errorf("coll: %v: %w", c.kind, t.fail(c.kind, o.number, err))
	// What is on its way ends by itself: the network's tries are finite.
	_ = o.land(context.WithoutCancel(ctx))
	o.forget()
	return err
}

// forget lets go of what is the caller's.
func (o *op) forget() { o.ctx, o.lanes, o.buf, o.data = nil, nil, nil, nil }

// numberBits are those of an operation's number in a message. A member is ahead of another by at
// most depth operations for each rail, hence far less.
const numberBits = 1<<12 - 1

// signature is what the words of an operation's messages have in common, in 32 bits: the kind (4
// bits), the number's low bits (12), and a hash (16) of number, root and name.
func signature(k Kind, number uint64, root int, name string) uint64 {
	const (
		prime  = 1099511628211        // FNV-1a, 64 bits
		golden = 11400714819323198485 // 2^64 over the golden ratio (Knuth, TAOCP vol. 3, 6.4)
	)
	var h uint64
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * prime
	}
	h = (h^number)*golden ^ uint64(root)
	return uint64(k)<<28 | number&numberBits<<16 | h*golden>>48
}

// wait waits until a word of the slot is another than it was.
func (o *op) wait(w *uint64, was uint64) error {
	if o.lanes != nil {
		return o.lanes.Waiter().WaitWord(o.ctx, w, fabric.NotEqual, was, o.looks)
	}
	return o.t.teams.env.WaitWord(o.ctx, w, fabric.NotEqual, was, o.looks)
}

// look ends a wait that cannot come to its end. It is asked now and then.
func (o *op) look() error {
	if e := o.t.known(); e != nil {
		return e
	}
	select {
	case <-o.t.teams.env.Closing():
		return errClosing
	default:
	}
	if err := o.compare(); err != nil {
		return err
	}
	if o.lanes != nil {
		return nil
	}
	return o.t.teams.poll()
}

// compare finds a message of another operation with this one's number, on whatever rail.
func (o *op) compare() error {
	for r := range o.t.rails {
		rail := &o.t.rail[r]
		w := atomic.LoadUint64(word(o.t.mem, o.t.place(rail, rail.got)))
		if w>>32 != o.t.ticket(rail.got) || w>>16&numberBits != o.number&numberBits {
			continue
		}
		if err := o.check(r, w); err != nil {
			return err
		}
	}
	return o.comparePairs()
}

// check compares the operation of a message with this one.
func (o *op) check(rail int, w uint64) error {
	if w&(1<<32-1) == o.sign {
		return nil
	}
	return o.mismatch(o.t.before(rail), Kind(w>>28&15))
}

// mismatch says that a member is in another operation.
func (o *op) mismatch(with int, in Kind) error {
	t := o.t
	return &MismatchError{Rank: t.Member(t.me), Op: o.kind, Number: o.number, Peer: t.Member(with), PeerOp: in}
}

// settle waits until the sources of puts may change.
func (o *op) settle(ctx context.Context) error {
	for len(o.flights) > 0 {
		f := o.flights[0]
		if !f.data { // the receiver has read it, or will
			f.lane.Abandon(f.h)
		} else if err := o.await(ctx, f); err != nil {
			return err
		}
		o.flights = o.flights[1:]
	}
	return nil
}

// land waits until all puts have ended, somehow.
func (o *op) land(ctx context.Context) (first error) {
	for _, f := range o.flights {
		if err := o.await(ctx, f); err != nil && first == nil {
			first = err
		}
	}
	o.flights = nil
	return first
}

func (o *op) await(ctx context.Context, f flight) error {
	if o.lanes == nil {
		m := o.t.teams
		if err := m.shared.lock(ctx); err != nil {
			return err
		}
		defer m.shared.unlock()
	}
	_, err := f.lane.Wait(ctx, f.h)
	return err
}
