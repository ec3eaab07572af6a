package conduit

import (
	"sync/atomic"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// Word is what atomics work on: an aligned 64-bit integer.
type Word interface{ ~int64 | ~uint64 }

// FetchAdd adds delta to the word at p and returns what it was.
func FetchAdd[T Word](w *Worker, p Ptr[T], delta T) (T, error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return 0, err
		}
		defer w.guard.Exit()
	}
	if q := w.word(p.node, p.off); q != nil {
		w.mapped.atomics++
		return T(atomic.AddUint64(q, uint64(delta))) - delta, nil
	}
	v, err := w.atomic(fabric.FetchAdd, p.node, p.off, uint64(delta), 0)
	return T(v), err
}

// CompareSwap stores new at p if old is there, and returns what was there: the
// swap took place if the result equals old.
func CompareSwap[T Word](w *Worker, p Ptr[T], old, new T) (T, error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return 0, err
		}
		defer w.guard.Exit()
	}
	if q := w.word(p.node, p.off); q != nil {
		w.mapped.atomics++
		for {
			if atomic.CompareAndSwapUint64(q, uint64(old), uint64(new)) {
				return old, nil
			}
			if now := atomic.LoadUint64(q); now != uint64(old) {
				return T(now), nil
			}
		}
	}
	v, err := w.atomic(fabric.CompareSwap, p.node, p.off, uint64(new), uint64(old))
	return T(v), err
}

// Swap stores v at p and returns what was there. Verbs has no such operation:
// over ibv it is a loop of compare-and-swaps.
func Swap[T Word](w *Worker, p Ptr[T], v T) (T, error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return 0, err
		}
		defer w.guard.Exit()
	}
	if q := w.word(p.node, p.off); q != nil {
		w.mapped.atomics++
		return T(atomic.SwapUint64(q, uint64(v))), nil
	}
	old, err := w.atomic(fabric.Swap, p.node, p.off, uint64(v), 0)
	return T(old), err
}

// word is at for an atomic: the aligned word, if the processor's own atomics
// are the right ones for it.
func (w *Worker) word(node uint32, off uint64) *uint64 {
	q := w.at(node, off, 8)
	if q == nil || off&7 != 0 || !w.peers[node-1].cpuAtomics {
		return nil
	}
	return (*uint64)(q)
}

func (w *Worker) atomic(op fabric.AtomicOp, node uint32, off, operand, compare uint64) (uint64, error) {
	pe, rank := w.near(node, off, 8), int(node)-1
	if pe == nil {
		var err error
		if pe, rank, err = w.reach(op.String(), node, off, 8); err != nil {
			return 0, err
		}
	}
	old, h, err := pe.amo.Atomic(op, rank, off, operand, compare, fabric.Blocking)
	if err != nil || h == fabric.Done {
		return old, err
	}
	return w.await(pe.amo, h)
}

func (w *Worker) atomicStart(op fabric.AtomicOp, node uint32, off, operand, compare uint64, f fabric.Flag) (uint64, fabric.Lane, fabric.Handle, error) {
	pe, rank, err := w.reach(op.String(), node, off, 8)
	if err != nil {
		return 0, nil, fabric.Done, err
	}
	old, h, err := pe.amo.Atomic(op, rank, off, operand, compare, f)
	return old, pe.amo, h, err
}

// FetchAddAsync starts a FetchAdd.
func FetchAddAsync[T Word](w *Worker, p Ptr[T], delta T) Promise[T] {
	return atomicAsync(w, fabric.FetchAdd, p, uint64(delta), 0)
}

// CompareSwapAsync starts a CompareSwap.
func CompareSwapAsync[T Word](w *Worker, p Ptr[T], old, new T) Promise[T] {
	return atomicAsync(w, fabric.CompareSwap, p, uint64(new), uint64(old))
}

// SwapAsync starts a Swap.
func SwapAsync[T Word](w *Worker, p Ptr[T], v T) Promise[T] {
	return atomicAsync(w, fabric.Swap, p, uint64(v), 0)
}

func atomicAsync[T Word](w *Worker, op fabric.AtomicOp, p Ptr[T], operand, compare uint64) Promise[T] {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return Promise[T]{Pending: Pending{err: err}}
		}
		defer w.guard.Exit()
	}
	old, l, h, err := w.atomicStart(op, p.node, p.off, operand, compare, 0)
	return Promise[T]{
		Pending: Pending{w: w, lane: l, h: h, err: err},
		value:   T(old),
		word:    true,
	}
}
