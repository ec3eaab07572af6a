package coll

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/racesync"
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
	lanes env.Lanes // to wait with; nil: without
	do    func(*op) error
	buf   []byte   // of a broadcast
	data  *payload // of an operation on typed data; nil else
}

// op is an operation that runs. A team has one at a time. Each part of it has those before it and
// calls nothing of those after it.
type op struct{ railing }

// railing sends to neighbours by numbered words and slots in their memory, see rail.
type railing struct{ pairing }

// pairing sends to any member, which says before where, see pairs.
type pairing struct{ step }

// step is what an operation is, how it waits, and how it finds that members do different things.
type step struct {
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
	since   time.Duration // when it was found to wait; 0: not yet
	knocked bool
}

// flight is a put that is on its way from memory that may not change.
type flight struct {
	lane fabric.Lane
	h    fabric.Handle
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
	racesync.Release()
	t.number++
	o := &t.op
	o.call, o.ctx, o.number, o.mute, o.verdict, o.since, o.knocked = *c, ctx, t.number, false, nil, 0, false
	o.sign = signature(c.kind, o.number, c.root, c.name)
	atomic.StoreUint64(word(t.mem, whereWord), whereabouts(t.generation, c.kind, o.number))
	var ended func()
	if watch := t.teams.watch; watch != nil {
		ended = watch(Operation{Kind: c.kind, Root: c.root, Me: t.me, Size: t.n, First: t.Member(0), Slot: t.slot, Generation: t.generation, Number: t.number})
	}
	err := c.do(o)
	if err == nil && len(o.flights) > 0 {
		err = o.settle(ctx)
	}
	racesync.Acquire()
	if err == nil {
		if o.knocked {
			o.ctx = context.Background() // what is not taken back counts when numbers come round
			_ = o.knock(0)               // what fails goes to a rank that is down
		}
		o.forget()
		if ended != nil {
			ended()
		}
		if learned := t.teams.learned; learned != nil {
			learned()
		}
		return o.verdict
	}
	broken := t.fail(c.kind, o.number, err)
	err = fmt.Errorf("coll: %v: %w", c.kind, broken)
	if broken.Reason == Abandoned && broken.Rank == t.Member(t.me) {
		err = fmt.Errorf("%w%s", err, o.awaited(ctx))
	}
	// What is on its way ends by itself: the network's tries are finite.
	_ = o.land(context.WithoutCancel(ctx))
	o.forget()
	return err
}

// forget lets go of what is the caller's.
func (o *step) forget() { o.ctx, o.lanes, o.buf, o.data = nil, nil, nil, nil }

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
func (o *step) wait(w *uint64, was uint64) error {
	if o.lanes != nil {
		return o.lanes.Waiter().WaitWord(o.ctx, w, fabric.NotEqual, was, o.looks)
	}
	return o.t.teams.env.WaitWord(o.ctx, w, fabric.NotEqual, was, o.looks)
}

// acquire waits for n bytes of the job's budget as for a message, by a word: so the wait ends when
// the team breaks, and makes progress.
func (o *step) acquire(b env.Budget, n int64) error {
	m, w := o.t.teams, word(o.t.mem, memoryWord)
	ctx, cancel := context.WithCancelCause(o.ctx)
	defer cancel(nil)
	got := make(chan error, 1) // nobody waits for it: when the word is written it is there
	atomic.StoreUint64(w, 0)
	m.env.Host().Go("memory of a collective operation", func() {
		got <- b.Acquire(ctx, n)
		atomic.StoreUint64(w, 1)
	})
	broken := o.wait(w, 0)
	if broken == nil {
		return <-got
	}
	cancel(broken)
	if gone := m.env.WaitWord(context.Background(), w, fabric.NotEqual, 0, nil); gone != nil {
		return gone // a simulation has ended
	}
	if err := <-got; err != nil {
		return err
	}
	b.Release(n) // the memory was faster
	return broken
}

// look ends a wait that cannot come to its end. It is asked now and then.
func (o *step) look() error {
	if e := o.t.known(); e != nil {
		return e
	}
	select {
	case <-o.t.teams.env.Context().Done():
		return errClosing
	default:
	}
	if err := o.compare(); err != nil {
		return err
	}
	switch now := o.t.teams.env.Host().Now(); {
	case o.since == 0:
		o.since = max(now, 1)
	case !o.knocked && now-o.since > knockAfter:
		o.knocked = true
		if err := o.knock(o.knockWord()); err != nil {
			return err
		}
	}
	return o.t.teams.poll()
}

// knockAfter is how long a member waits before it tells others what it is in: members in different
// operations may all wait for a message, and send none.
const knockAfter = 10 * time.Millisecond

// knock writes what this member is in into the slots of those that it sends to on rails; 0: it is
// not any more. What arrives late, in the slot of another team even, says nothing there.
func (o *step) knock(w uint64) error {
	t := o.t
	binary.NativeEndian.PutUint64(o.word[:], w)
	for r := range t.rails {
		if err := t.teams.post(o.ctx, t.Member(t.after(r)), t.off+t.teams.shape.knocks+8*uint64(r), o.word[:]); err != nil {
			return err
		}
	}
	return nil
}

// knockWord is what a knock says: generation (24 bits), kind (4), number of the operation (20), and
// hash (16) as in messages.
func (o *step) knockWord() uint64 {
	return uint64(o.t.generation)<<40 | uint64(o.kind)<<36 | o.number&(1<<20-1)<<16 | o.sign&0xffff
}

// compare finds a message, or a knock, of another operation with this one's number, on whatever
// rail.
func (o *step) compare() error {
	const which = generations<<40 | (1<<20-1)<<16
	mine := o.knockWord()
	for r := range o.t.rails {
		k := atomic.LoadUint64(word(o.t.mem, o.t.teams.shape.knocks+8*uint64(r)))
		if k != mine && k&which == mine&which {
			return o.mismatch(o.t.before(r), Kind(k>>36&15))
		}
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
func (o *step) check(rail int, w uint64) error {
	if w&(1<<32-1) == o.sign {
		return nil
	}
	return o.mismatch(o.t.before(rail), Kind(w>>28&15))
}

// mismatch says that a member is in another operation.
func (o *step) mismatch(with int, in Kind) error {
	t := o.t
	return &MismatchError{Rank: t.Member(t.me), Op: o.kind, Number: o.number, Peer: t.Member(with), PeerOp: in}
}

// settle waits until the sources of puts may change.
func (o *step) settle(ctx context.Context) error {
	for len(o.flights) > 0 {
		if err := o.await(ctx, o.flights[0]); err != nil {
			return err
		}
		o.flights = o.flights[1:]
	}
	return nil
}

// land waits until all puts have ended, somehow.
func (o *step) land(ctx context.Context) (first error) {
	for _, f := range o.flights {
		if err := o.await(ctx, f); err != nil && first == nil {
			first = err
		}
	}
	o.flights = nil
	return first
}

func (o *step) await(ctx context.Context, f flight) error {
	m := o.t.teams
	if err := m.shared.lock(ctx); err != nil {
		return err
	}
	defer m.shared.unlock()
	_, err := f.lane.Wait(ctx, f.h)
	return err
}
