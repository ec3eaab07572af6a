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
	if at := w.mappedWord(p.node, p.off); at != nil {
		return T(atomic.AddUint64(at, uint64(delta))) - delta, nil
	}
	return atomicValue(w, fabric.FetchAdd, p, uint64(delta), 0)
}

// CompareSwap stores new at p if old is there, and returns what was there: the swap took place if
// the result equals old.
func CompareSwap[T Word](w *Worker, p Ptr[T], old, new T) (T, error) {
	if at := w.mappedWord(p.node, p.off); at != nil {
		for {
			if atomic.CompareAndSwapUint64(at, uint64(old), uint64(new)) {
				return old, nil
			}
			if now := atomic.LoadUint64(at); now != uint64(old) {
				return T(now), nil
			}
		}
	}
	return atomicValue(w, fabric.CompareSwap, p, uint64(new), uint64(old))
}

// Swap stores v at p and returns what was there. Verbs has no such operation: over ibv it is a loop
// of compare-and-swaps.
func Swap[T Word](w *Worker, p Ptr[T], v T) (T, error) {
	if at := w.mappedWord(p.node, p.off); at != nil {
		return T(atomic.SwapUint64(at, uint64(v))), nil
	}
	return atomicValue(w, fabric.Swap, p, uint64(v), 0)
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

// mappedWord is mapped for an atomic, which it counts: the aligned word, if the processor's own
// atomics are the right ones for it, and no fences are to be told.
func (w *Worker) mappedWord(node uint32, off uint64) *uint64 {
	at := w.mapped(node, off, 8)
	if at == nil || off&7 != 0 || !w.peers[node-1].cpuAtomics || w.fences != nil {
		return nil
	}
	w.direct.atomics++
	return (*uint64)(at)
}

func atomicValue[T Word](w *Worker, op fabric.AtomicOp, p Ptr[T], operand, compare uint64) (T, error) {
	if err := w.beforeAtomic(op.String(), p.node, p.off); err != nil {
		return 0, err
	}
	old, l, h, err := w.atomic(op, p.node, p.off, operand, compare, fabric.Blocking)
	if h != fabric.Done {
		old, err = w.await(l, h)
	}
	w.acquire()
	return T(old), err
}

func atomicAsync[T Word](w *Worker, op fabric.AtomicOp, p Ptr[T], operand, compare uint64) Promise[T] {
	if err := w.beforeAtomic(op.String(), p.node, p.off); err != nil {
		return Promise[T]{Pending: Pending{err: err}}
	}
	old, l, h, err := w.atomic(op, p.node, p.off, operand, compare, 0)
	if h == fabric.Done && err == nil {
		w.acquire()
	}
	return Promise[T]{Pending: Pending{w: w, lane: l, h: h, err: err}, value: T(old), word: true}
}

// atomic starts an atomic through the peer's lane.
func (w *Worker) atomic(op fabric.AtomicOp, node uint32, off, operand, compare uint64, f fabric.Flag) (old uint64, l fabric.Lane, h fabric.Handle, err error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return 0, nil, fabric.Done, err
		}
		defer w.guard.Exit()
	}
	p, _ := w.valid(node, off, 8)
	if p == nil {
		if p, err = w.check(op.String(), node, off, 8); err != nil {
			return 0, nil, fabric.Done, err
		}
	}
	old, h, err = p.amo.Atomic(op, int(node)-1, w.begin+off, operand, compare, f)
	return old, p.amo, h, err
}
