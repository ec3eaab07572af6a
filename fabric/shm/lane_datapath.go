package shm

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// address is that of n bytes at offset off of the peer's segment, or nil,
// and then refuse has the reason.
func (l *lane) address(peer int, off, n uint64) unsafe.Pointer {
	if uint(peer) >= uint(len(l.targets)) {
		return nil
	}
	t := &l.targets[peer]
	if t.state.Load() != up || off > t.size || n > t.size-off {
		return nil
	}
	return unsafe.Add(t.base, off)
}

// Put is complete when it returns.
func (l *lane) Put(peer int, off uint64, src []byte, _ fabric.Flag) (fabric.Handle, error) {
	if owner.Checked {
		if err := l.enter("put"); err != nil {
			return fabric.Done, err
		}
		defer l.guard.Exit()
	}
	p := l.address(peer, off, uint64(len(src)))
	if p == nil {
		return fabric.Done, l.refuse("put", peer, off, uint64(len(src)))
	}
	orderStores()
	store(p, src)
	l.count.Puts++
	l.count.PutBytes += uint64(len(src))
	l.count.Direct++
	l.count.Completed++
	return fabric.Done, nil
}

// Get is complete when it returns.
func (l *lane) Get(peer int, off uint64, dst []byte, _ fabric.Flag) (fabric.Handle, error) {
	if owner.Checked {
		if err := l.enter("get"); err != nil {
			return fabric.Done, err
		}
		defer l.guard.Exit()
	}
	p := l.address(peer, off, uint64(len(dst)))
	if p == nil {
		return fabric.Done, l.refuse("get", peer, off, uint64(len(dst)))
	}
	load(dst, p)
	orderLoads()
	l.count.Gets++
	l.count.GetBytes += uint64(len(dst))
	l.count.Direct++
	l.count.Completed++
	return fabric.Done, nil
}

// Atomic is the processor's, atomic to everything on the host.
func (l *lane) Atomic(op fabric.AtomicOp, peer int, off, operand, compare uint64, _ fabric.Flag) (uint64, fabric.Handle, error) {
	if owner.Checked {
		if err := l.enter("atomic"); err != nil {
			return 0, fabric.Done, err
		}
		defer l.guard.Exit()
	}
	p := l.address(peer, off, 8)
	if p == nil {
		return 0, fabric.Done, l.refuse(op.String(), peer, off, 8)
	}
	if off%8 != 0 {
		return 0, fabric.Done, &fabric.AlignError{Op: op.String(), Rank: peer, Off: off, Align: 8}
	}
	old, ok := amo((*uint64)(p), op, operand, compare)
	if !ok {
		return 0, fabric.Done, fmt.Errorf("shm: there is no atomic operation %d", op)
	}
	l.count.Atomics++
	l.count.Completed++
	return old, fabric.Done, nil
}

// amo applies an atomic; ok is false when there is no such.
func amo(word *uint64, op fabric.AtomicOp, operand, compare uint64) (old uint64, ok bool) {
	switch op {
	case fabric.FetchAdd:
		return atomic.AddUint64(word, operand) - operand, true
	case fabric.Swap:
		return atomic.SwapUint64(word, operand), true
	case fabric.CompareSwap:
		for {
			if atomic.CompareAndSwapUint64(word, compare, operand) {
				return compare, true
			}
			// It failed on another value; only that may be reported as the old one.
			if old := atomic.LoadUint64(word); old != compare {
				return old, true
			}
		}
	}
	return 0, false
}

// store copies src to segment memory; aligned words in one store.
func store(p unsafe.Pointer, src []byte) {
	switch n := len(src); {
	case n == 8 && uintptr(p)&7 == 0:
		*(*uint64)(p) = binary.NativeEndian.Uint64(src)
	case n == 4 && uintptr(p)&3 == 0:
		*(*uint32)(p) = binary.NativeEndian.Uint32(src)
	case n == 2 && uintptr(p)&1 == 0:
		*(*uint16)(p) = binary.NativeEndian.Uint16(src)
	case n == 1:
		*(*byte)(p) = src[0]
	case n > 0:
		copy(sliceAt(p, uint64(n)), src)
	}
}

// load copies segment memory to dst; aligned words in one load.
func load(dst []byte, p unsafe.Pointer) {
	switch n := len(dst); {
	case n == 8 && uintptr(p)&7 == 0:
		binary.NativeEndian.PutUint64(dst, *(*uint64)(p))
	case n == 4 && uintptr(p)&3 == 0:
		binary.NativeEndian.PutUint32(dst, *(*uint32)(p))
	case n == 2 && uintptr(p)&1 == 0:
		binary.NativeEndian.PutUint16(dst, *(*uint16)(p))
	case n == 1:
		dst[0] = *(*byte)(p)
	case n > 0:
		copy(dst, sliceAt(p, uint64(n)))
	}
}

func sliceAt(p unsafe.Pointer, n uint64) []byte { return unsafe.Slice((*byte)(p), n) }
