package conduit

import (
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/shm"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/owner"
)

// Word is what atomics work on: an integer of 32 or 64 bits, at an offset that is a multiple of its
// size.
//
// All atomics of a job on one word are atomic to each other, whichever ranks they come from: Join
// decides by what they are carried out, the same for all. Where a rank reaches any other over
// verbs, it is the device of the rank that owns the word, also for ranks of its host. A device has
// FetchAdd and CompareSwap of 64 bits (IBTA vol 1 §9.4.5); there all else is a loop of
// compare-swaps, one round trip each, of which one suffices mostly where the worker knows the word
// from its last loop and nobody else changes it. [Worker.SetContext] bounds the loop of a call that
// waits. It pauses for random times of up to a millisecond while others change the word.
//
// Atomics of a device are atomic only to each other. To puts, and to loads and stores of the owner,
// they are not unless [Job.CPUAtomics]. That concerns the neighbour too: an atomic on 32 bits is
// then a compare-swap of the aligned 64 bits around them, and a put, or a store of the owner, to
// the other 32 bits at the same time may be lost. Atomics on the neighbour are not. Whoever keeps
// to atomics for a word, or has a barrier between, need not care.
type Word interface {
	~int64 | ~uint64 | ~int32 | ~uint32
}

// Number is what FetchAdd and Add work on: a Word, or a float64, whose sum is rounded as in Go.
type Number interface {
	Word | ~float64
}

// FetchAdd adds delta to the word at p, integers with wrap-around, and returns what it was.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func FetchAdd[T Number](w *Worker, p Ptr[T], delta T) (T, error) {
	return fetch(w, fabric.FetchAdd, p, delta, 0)
}

// CompareSwap stores new at p if old is there, and returns what was there: the swap took place if
// the result equals old.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func CompareSwap[T Word](w *Worker, p Ptr[T], old, new T) (T, error) {
	return fetch(w, fabric.CompareSwap, p, new, old)
}

// Swap stores v at p and returns what was there.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func Swap[T Word](w *Worker, p Ptr[T], v T) (T, error) { return fetch(w, fabric.Swap, p, v, 0) }

// FetchAnd stores the bitwise and of v and the word at p, and returns what the word was.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func FetchAnd[T Word](w *Worker, p Ptr[T], v T) (T, error) { return fetch(w, fabric.FetchAnd, p, v, 0) }

// FetchOr stores the bitwise or of v and the word at p, and returns what the word was.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func FetchOr[T Word](w *Worker, p Ptr[T], v T) (T, error) { return fetch(w, fabric.FetchOr, p, v, 0) }

// FetchXor stores the bitwise exclusive or of v and the word at p, and returns what the word was.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func FetchXor[T Word](w *Worker, p Ptr[T], v T) (T, error) { return fetch(w, fabric.FetchXor, p, v, 0) }

// FetchMin stores v at p if it is less than what is there, and returns what was there.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func FetchMin[T Word](w *Worker, p Ptr[T], v T) (T, error) { return fetch(w, fabric.FetchMin, p, v, 0) }

// FetchMax stores v at p if it is greater than what is there, and returns what was there.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func FetchMax[T Word](w *Worker, p Ptr[T], v T) (T, error) { return fetch(w, fabric.FetchMax, p, v, 0) }

// FetchAddAsync starts a [FetchAdd].
func FetchAddAsync[T Number](w *Worker, p Ptr[T], delta T) Promise[T] {
	return fetchAsync(w, fabric.FetchAdd, p, delta, 0)
}

// CompareSwapAsync starts a [CompareSwap].
func CompareSwapAsync[T Word](w *Worker, p Ptr[T], old, new T) Promise[T] {
	return fetchAsync(w, fabric.CompareSwap, p, new, old)
}

// SwapAsync starts a [Swap].
func SwapAsync[T Word](w *Worker, p Ptr[T], v T) Promise[T] {
	return fetchAsync(w, fabric.Swap, p, v, 0)
}

// FetchAndAsync starts a [FetchAnd].
func FetchAndAsync[T Word](w *Worker, p Ptr[T], v T) Promise[T] {
	return fetchAsync(w, fabric.FetchAnd, p, v, 0)
}

// FetchOrAsync starts a [FetchOr].
func FetchOrAsync[T Word](w *Worker, p Ptr[T], v T) Promise[T] {
	return fetchAsync(w, fabric.FetchOr, p, v, 0)
}

// FetchXorAsync starts a [FetchXor].
func FetchXorAsync[T Word](w *Worker, p Ptr[T], v T) Promise[T] {
	return fetchAsync(w, fabric.FetchXor, p, v, 0)
}

// FetchMinAsync starts a [FetchMin].
func FetchMinAsync[T Word](w *Worker, p Ptr[T], v T) Promise[T] {
	return fetchAsync(w, fabric.FetchMin, p, v, 0)
}

// FetchMaxAsync starts a [FetchMax].
func FetchMaxAsync[T Word](w *Worker, p Ptr[T], v T) Promise[T] {
	return fetchAsync(w, fabric.FetchMax, p, v, 0)
}

// Add adds delta to the word at p. It returns at once; [Worker.Flush] waits for it, and has its
// error. [Worker.Chain] posts many together.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func Add[T Number](w *Worker, p Ptr[T], delta T) error { return update(w, fabric.FetchAdd, p, delta) }

// And stores the bitwise and of v and the word at p. It returns at once, as [Add] does.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func And[T Word](w *Worker, p Ptr[T], v T) error { return update(w, fabric.FetchAnd, p, v) }

// Or stores the bitwise or of v and the word at p. It returns at once, as [Add] does.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func Or[T Word](w *Worker, p Ptr[T], v T) error { return update(w, fabric.FetchOr, p, v) }

// Xor stores the bitwise exclusive or of v and the word at p. It returns at once, as [Add] does.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func Xor[T Word](w *Worker, p Ptr[T], v T) error { return update(w, fabric.FetchXor, p, v) }

// Min stores v at p if it is less than what is there. It returns at once, as [Add] does.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func Min[T Word](w *Worker, p Ptr[T], v T) error { return update(w, fabric.FetchMin, p, v) }

// Max stores v at p if it is greater than what is there. It returns at once, as [Add] does.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func Max[T Word](w *Worker, p Ptr[T], v T) error { return update(w, fabric.FetchMax, p, v) }

// Set stores v at p, atomically to the other atomics, which a put is not. It returns at once, as
// [Add] does.
// On a word of 32 bits it may undo a put to the neighbouring 32 bits, see [Word].
func Set[T Word](w *Worker, p Ptr[T], v T) error { return update(w, fabric.Swap, p, v) }

// fetch does an atomic and waits for the old value.
func fetch[T Number](w *Worker, op fabric.AtomicOp, p Ptr[T], operand, compare T) (T, error) {
	old, err := fetchWord(w, global.Node(p), p.Offset(), atomicOf(op, operand, compare))
	return fromBits[T](old), err
}

func fetchAsync[T Number](w *Worker, op fabric.AtomicOp, p Ptr[T], operand, compare T) Promise[T] {
	old, l, h, err := w.atomic(global.Node(p), p.Offset(), atomicOf(op, operand, compare), 0)
	return Promise[T]{Pending: Pending{w: w, lane: l, h: h, err: err, word: true}, value: fromBits[T](old)}
}

// update does an atomic whose old value is not wanted.
func update[T Number](w *Worker, op fabric.AtomicOp, p Ptr[T], operand T) error {
	_, _, _, err := w.atomic(global.Node(p), p.Offset(), atomicOf(op, operand, 0), fabric.Implicit)
	return err
}

// atomicOf describes an atomic on a word of type T.
func atomicOf[T Number](op fabric.AtomicOp, operand, compare T) fabric.Atomic {
	return fabric.Atomic{Op: op, Type: wordType[T](), Operand: toBits(operand), Compare: toBits(compare)}
}

// wordType is constant for each T.
func wordType[T Number]() fabric.WordType {
	var zero T
	switch one := T(1); {
	case one/2 != 0:
		return fabric.Float64
	case unsafe.Sizeof(zero) == 4 && zero-1 < zero:
		return fabric.Int32
	case unsafe.Sizeof(zero) == 4:
		return fabric.Uint32
	case zero-1 < zero:
		return fabric.Int64
	}
	return fabric.Uint64
}

// toBits and fromBits convert words to the integers that networks carry.

func toBits[T Number](v T) uint64 {
	if unsafe.Sizeof(v) == 4 {
		return uint64(*(*uint32)(unsafe.Pointer(&v)))
	}
	return *(*uint64)(unsafe.Pointer(&v))
}

func fromBits[T Number](bits uint64) (v T) {
	wordFromBits(&v, bits)
	return v
}

// wordFromBits is for a T of 4 or 8 bytes.
func wordFromBits[T any](v *T, bits uint64) {
	if unsafe.Sizeof(*v) == 4 {
		*(*uint32)(unsafe.Pointer(v)) = uint32(bits)
	} else {
		*(*uint64)(unsafe.Pointer(v)) = bits
	}
}

func fetchWord(w *Worker, node uint32, off uint64, a fabric.Atomic) (uint64, error) {
	old, l, h, err := w.atomic(node, off, a, fabric.Blocking)
	if h != fabric.Done {
		old, err = w.await(l, h)
	}
	return old, err
}

// atomic does an atomic on mapped memory, if the processor's own are the right ones for it, or
// starts it through the peer's lane.
func (w *Worker) atomic(node uint32, off uint64, a fabric.Atomic, f fabric.Flag) (old uint64, l fabric.Lane, h fabric.Handle, err error) {
	if owner.Checked {
		if err := w.guard.Enter(); err != nil {
			return 0, nil, fabric.Done, err
		}
		defer w.guard.Exit()
	}
	n := a.Type.Size()
	rt, rank := w.valid(node, off, n)
	if rt == nil || off&(n-1) != 0 {
		if rt, rank, err = w.check(a.Op.String(), node, off, n); err == nil && off&(n-1) != 0 {
			err = &AlignError{Op: a.Op.String(), Rank: rank, Off: off, Align: n}
		}
		if err != nil {
			return 0, nil, fabric.Done, err
		}
	}
	if base := w.peers[rank].base; base != nil && rt.cpuAtomics && w.fence == nil {
		w.direct.Atomics++
		return applyAtomic(unsafe.Add(base, off), a), nil, fabric.Done, nil
	}
	l = w.byNet[rt.amoNet&(maxNetworks-1)]
	if old, h, err = l.Atomic(rank, w.begin+off, a, f); err != nil {
		err = w.failed(err)
	}
	return old, l, h, err
}

// applyAtomic is shm.Apply, with the most frequent operation inline.
func applyAtomic(at unsafe.Pointer, a fabric.Atomic) uint64 {
	if a.Op == fabric.FetchAdd && a.Type <= fabric.Int64 {
		return atomic.AddUint64((*uint64)(at), a.Operand) - a.Operand
	}
	return shm.Apply(at, &a)
}
