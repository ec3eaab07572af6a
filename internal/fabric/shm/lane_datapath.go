package shm

import (
	"encoding/binary"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
)

// address is the address of n bytes at offset off of the peer's segment, or nil,
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

// Mapped is nil for a rank that is not served, is down, or after Close.
func (l *lane) Mapped(peer int) []byte {
	p := l.address(peer, 0, 0)
	if p == nil {
		return nil
	}
	return sliceAt(p, l.targets[peer].size)
}
