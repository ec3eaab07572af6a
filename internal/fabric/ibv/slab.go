package ibv

import (
	"encoding/binary"
	"unsafe"
)

// slab is a lane's bounce memory: registered once, cut into small and big
// blocks, each handed out by a free list.
type slab struct {
	mem   []byte
	base  uint64 // address of mem
	lkey  uint32
	small blockList
	big   blockList
	waste int32 // a block, in neither list, for old values that are not wanted
}

// blockList hands out blocks of one size.
type blockList struct {
	offset int     // of the first, in the slab
	free   []int32 // slab offsets
	total  int
}

// none is the absent block, work request or operation.
const none = int32(-1)

func newSlab(mem []byte, lkey uint32, smalls int) slab {
	s := slab{mem: mem, base: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))), lkey: lkey}
	s.small = newBlockList(0, smallBlock, smalls)
	s.big = newBlockList(smalls*smallBlock, bigBlock, bigBlocks)
	s.waste = int32(smalls*smallBlock + bigBlocks*bigBlock)
	return s
}

func slabBytes(smalls int) int { return smalls*smallBlock + bigBlocks*bigBlock + smallBlock }

func newBlockList(offset, size, n int) blockList {
	l := blockList{offset: offset, total: n, free: make([]int32, n)}
	for i := range l.free {
		l.free[i] = int32(offset + (n-1-i)*size)
	}
	return l
}

// list is the class of blocks for n bytes.
func (s *slab) list(n int) *blockList {
	if n <= smallBlock {
		return &s.small
	}
	return &s.big
}

func (l *blockList) empty() bool { return len(l.free) == 0 }

// scarce reports that what holds the blocks should complete soon.
func (l *blockList) scarce() bool { return len(l.free) <= l.total/2 }

// scarce reports that what holds blocks should complete soon.
func (s *slab) scarce() bool { return s.small.scarce() || s.big.scarce() }

// take returns the slab offset of a block; the list is not empty.
func (l *blockList) take() int32 {
	i := len(l.free) - 1
	b := l.free[i]
	l.free = l.free[:i]
	return b
}

// next is the block that take would return.
func (l *blockList) next() int32 { return l.free[len(l.free)-1] }

// listOf is the class of the block at a slab offset.
func (s *slab) listOf(off int32) *blockList {
	if int(off) >= s.big.offset {
		return &s.big
	}
	return &s.small
}

// give takes back the block at a slab offset.
func (s *slab) give(off int32) {
	l := s.listOf(off)
	l.free = append(l.free, off)
}

// bytes is a block's first n bytes.
func (s *slab) bytes(off int32, n int) []byte { return s.mem[off : int(off)+n : int(off)+n] }

// word reads an atomic's old value out of its block.
func (s *slab) word(block int32) uint64 { return binary.NativeEndian.Uint64(s.mem[block:]) }

// smallBlocks is how many small blocks the slab of a lane has.
func smallBlocks(depth int) int { return min(max(depth, 64), 1024) }
