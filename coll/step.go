package coll

import (
	"context"
	"encoding/binary"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// call is an operation that was begun.
type call struct {
	kind  Kind
	root  int
	name  string
	lanes env.Lanes // to wait with; nil: without
	do    func(*op) error
	buf   []byte   // of a broadcast
	data  *payload // of an operation on typed data; nil else
}

// step is what an operation is, how it waits, and how it finds that members do different things.
type step struct {
	call
	t       *membership
	health  *health
	ctx     context.Context
	number  uint64
	sign    uint64       // the low bits of its messages' words
	mute    bool         // acknowledges nothing; see meet
	verdict error        // of an operation that ended well: what this member gets, and breaks nothing
	looks   func() error // whether a wait cannot come to its end, now and then
	word    [8]byte
	flights []flight
}

// flight is a put that is on its way from memory that may not change.
type flight struct {
	lane fabric.Lane
	h    fabric.Handle
}

// forget lets go of the caller's memory.
func (o *step) forget() { o.ctx, o.lanes, o.buf, o.data = nil, nil, nil, nil }

// wait waits until a word of the slot is another than it was.
func (o *step) wait(w *uint64, was uint64) error {
	if o.lanes != nil {
		return o.lanes.Waiter().WaitWord(o.ctx, w, fabric.NotEqual, was, o.looks)
	}
	return o.t.shared.env.WaitWord(o.ctx, w, fabric.NotEqual, was, o.looks)
}

// acquire waits for n bytes of the job's budget as for a message, by a word: so the wait ends when
// the team breaks, and makes progress.
func (o *step) acquire(b env.Budget, n int64) error {
	m, w := o.t.shared, word(o.t.mem, memoryWord)
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
	m := o.t.shared
	if err := m.turns.lock(ctx); err != nil {
		return err
	}
	defer m.turns.unlock()
	_, err := f.lane.Wait(ctx, f.h)
	return err
}

// numberBits are the bits of an operation's number in a message. A member is ahead of another by at
// most depth operations for each rail, hence far less.
const numberBits = 1<<12 - 1

// signature is the part that the words of an operation's messages have in common, in 32 bits: the
// kind (4 bits), the number's low bits (12), and a hash (16) of number, root and name.
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

// check compares the operation of a message with this one.
func (o *step) check(rail int, w uint64) error {
	if w&(1<<32-1) == o.sign {
		return nil
	}
	return o.mismatch(o.t.before(rail), Kind(w>>28&15))
}

// putWith puts data into a rank's segment, and then a word, which says that it is there. Both go
// through the lanes that all teams share, whatever the operation waits with: a flush of these ends
// all that a team has sent.
func (o *step) putWith(rank int, at uint64, data []byte, wordAt, w uint64) error {
	m := o.t.shared
	if err := m.turns.lock(o.ctx); err != nil {
		return err
	}
	defer m.turns.unlock()
	lane := m.lanes.To(rank)
	switch n := len(data); {
	case n > m.copyMax:
		h, err := lane.Put(rank, at, data, 0)
		if err != nil {
			return err
		}
		if h != fabric.Done {
			o.flights = append(o.flights, flight{lane: lane, h: h})
		}
	case n > 0:
		if _, err := lane.Put(rank, at, data, fabric.Implicit); err != nil {
			return err
		}
	}
	binary.NativeEndian.PutUint64(o.word[:], w)
	_, err := lane.Put(rank, wordAt, o.word[:], fabric.Implicit)
	return err
}

// maxFlights is how many puts an operation has on its way before it waits for them.
const maxFlights = 64

// collect bounds how many puts are on their way.
func (o *step) collect() error {
	if len(o.flights) < maxFlights {
		return nil
	}
	return o.settle(o.ctx)
}
