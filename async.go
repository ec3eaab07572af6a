package conduit

import (
	"context"
	"errors"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/global"
)

// Pending is an operation in flight. Wait or Test collects it, once; both are
// calls on its worker. A copy is the same operation: collect it through one of
// them. The zero Pending is complete.
type Pending struct {
	w    *Worker
	lane fabric.Lane
	h    fabric.Handle
	err  error
	old  uint64 // an atomic's result, once collected
	word bool   // it is one
}

// Wait blocks until the operation is complete. When ctx ends first the
// operation goes on and may be waited for again.
func (p *Pending) Wait(ctx context.Context) error {
	if p.err != nil || p.h == fabric.Done {
		return p.err
	}
	if err := p.w.enter("wait"); err != nil {
		return err
	}
	defer p.w.exit()
	return p.wait(ctx)
}

// wait is Wait of what is in flight, inside a call of the worker.
func (p *Pending) wait(ctx context.Context) error {
	old, err := p.lane.Wait(ctx, p.h)
	if err != nil && ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return err
	}
	p.end(old, err)
	return p.err
}

func (p *Pending) end(old uint64, err error) {
	p.h, p.old, p.err = fabric.Done, old, inRegion(err, p.w.begin)
}

// Test makes progress and reports whether the operation is complete.
func (p *Pending) Test() (bool, error) {
	if p.err != nil || p.h == fabric.Done {
		return true, p.err
	}
	if err := p.w.enter("test"); err != nil {
		return false, err
	}
	defer p.w.exit()
	return p.test()
}

// test is Test of what is in flight, inside a call of the worker.
func (p *Pending) test() (bool, error) {
	old, done, err := p.lane.Test(p.h)
	if done || err != nil {
		p.end(old, err)
		return true, p.err
	}
	return false, nil
}

// Promise is an operation in flight that yields a value. Do not copy one: the
// value arrives in a place that belongs to the first that is waited for. go vet
// finds copies.
type Promise[T any] struct {
	_ noCopy
	Pending
	value T
	slot  *slot // where a get's bytes arrive
	large *T    // the same, for values that no slot holds
}

// noCopy is what go vet takes for a lock, see its analyser copylocks.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Wait blocks until the value is there.
func (p *Promise[T]) Wait(ctx context.Context) (T, error) {
	fetch := p.err == nil && p.h != fabric.Done
	if err := p.Pending.Wait(ctx); err != nil {
		if p.h == fabric.Done {
			p.abandon()
		}
		var zero T
		return zero, err
	}
	if fetch {
		p.collect()
	}
	return p.value, nil
}

// Test makes progress and reports whether the value is there; Wait returns it.
func (p *Promise[T]) Test() (bool, error) {
	fetch := p.err == nil && p.h != fabric.Done
	done, err := p.Pending.Test()
	switch {
	case done && err == nil && fetch:
		p.collect()
	case done && err != nil:
		p.abandon()
	}
	return done, err
}

func (p *Promise[T]) collect() {
	switch {
	case p.word:
		wordFromBits(&p.value, p.old)
	case p.slot != nil:
		p.value = *(*T)(unsafe.Pointer(&p.slot.bytes))
	case p.large != nil:
		p.value = *p.large
	}
	if p.slot != nil {
		p.w.slots.put(p.slot)
	}
	p.slot, p.large = nil, nil
}

// abandon forgets where a get that failed was to arrive. Pieces of it may still arrive: the place
// is not used again.
func (p *Promise[T]) abandon() { p.slot, p.large = nil, nil }

// GetAsync starts a get of the value at p. A T of up to 64 bytes costs no allocation.
func GetAsync[T any](w *Worker, p Ptr[T]) (r Promise[T]) {
	n := unsafe.Sizeof(r.value)
	if at := w.mapped(global.Node(p), p.Offset(), uint64(n)); at != nil {
		r.value = load[T](w, at)
		return
	}
	if global.Node(p)&badType != 0 {
		r.err = typeError[T]()
		return
	}
	var dst []byte
	if n <= slotBytes {
		r.slot = w.slots.get()
		dst = r.slot.bytes[:n]
	} else {
		r.large = new(T)
		dst = unsafe.Slice((*byte)(unsafe.Pointer(r.large)), n)
	}
	r.w = w
	r.lane, r.h, r.err = w.get(global.Node(p), p.Offset(), dst, 0)
	switch {
	case r.err != nil:
		r.abandon()
	case r.h == fabric.Done:
		r.collect()
	}
	return
}

// slotBytes is the largest value that GetAsync reads without an allocation.
const slotBytes = 64

// slot is where the bytes of one asynchronous get arrive.
type slot struct {
	bytes [slotBytes]byte
	next  *slot // its alignment is also that of bytes, enough for any type
}

// resultSlots is a worker's free list of slots.
type resultSlots struct{ free *slot }

func (s *resultSlots) get() *slot {
	if f := s.free; f != nil {
		s.free = f.next
		f.next = nil
		return f
	}
	return new(slot)
}

func (s *resultSlots) put(f *slot) {
	f.next = s.free
	s.free = f
}
