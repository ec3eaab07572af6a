package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// Atomic is the processor's, atomic to everything on the host. It is complete when it returns.
func (l *lane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	if owner.Checked {
		if err := l.enter("atomic"); err != nil {
			return 0, fabric.Done, err
		}
		defer l.guard.Exit()
	}
	p := l.address(peer, off, a.Type.Size())
	if p == nil {
		return 0, fabric.Done, l.refuse(a.Op.String(), peer, off, a.Type.Size())
	}
	if err := a.Check(peer, off, l.targets[peer].size); err != nil {
		return 0, fabric.Done, err
	}
	old := Apply(p, &a)
	l.count.Atomics++
	l.count.Completed++
	if f&fabric.Implicit != 0 {
		old = 0
	}
	return old, fabric.Done, nil
}

// Apply carries out a valid operation on the word at an address, wherever it lies, by the
// processor's atomics. It returns the old value; one that changes nothing only reads it.
func Apply(at unsafe.Pointer, a *fabric.Atomic) (old uint64) {
	if a.Type.Size() == 4 {
		return uint64(apply32((*uint32)(at), a))
	}
	word := (*uint64)(at)
	switch {
	case a.Op == fabric.FetchAdd && a.Type != fabric.Float64:
		return atomic.AddUint64(word, a.Operand) - a.Operand
	case a.Op == fabric.Swap:
		return atomic.SwapUint64(word, a.Operand)
	case a.Op == fabric.FetchAnd:
		return atomic.AndUint64(word, a.Operand)
	case a.Op == fabric.FetchOr:
		return atomic.OrUint64(word, a.Operand)
	}
	for {
		old := atomic.LoadUint64(word)
		if v := a.Apply(old); v == old || atomic.CompareAndSwapUint64(word, old, v) {
			return old
		}
	}
}

func apply32(word *uint32, a *fabric.Atomic) (old uint32) {
	operand := uint32(a.Operand)
	switch a.Op {
	case fabric.FetchAdd:
		return atomic.AddUint32(word, operand) - operand
	case fabric.Swap:
		return atomic.SwapUint32(word, operand)
	case fabric.FetchAnd:
		return atomic.AndUint32(word, operand)
	case fabric.FetchOr:
		return atomic.OrUint32(word, operand)
	}
	for {
		old := atomic.LoadUint32(word)
		if v := uint32(a.Apply(uint64(old))); v == old || atomic.CompareAndSwapUint32(word, old, v) {
			return old
		}
	}
}
