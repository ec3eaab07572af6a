package shm

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/ibconduit/conduit/segment"
)

// region is an endpoint's receive side in shared memory: a ring for messages and a small one
// for notes. doc.go has the layout and the rules. The owner and each sender have a region of
// their own, over their own mapping of the same memory.
//
// Everything that is read from the memory is checked. Sizes, masks and addresses are those
// that were agreed on when the region was mapped.
type region struct {
	mem  *segment.Mapping
	head *regionHead
	ring // of messages
	note ring
}

// regionHead is the first part of the memory.
type regionHead struct {
	magic    [4]byte
	version  uint32
	slots    uint32
	size     uint32
	_        [48]byte
	tail     uint64 // ticket of the next cell to claim; senders advance it
	_        [56]byte
	armed    uint32 // the owner sleeps; clearing it goes with a wake-up
	closed   uint32 // the owner takes no more
	_        [56]byte
	noteTail uint64
	_        [56]byte
}

// ring is cells, in which the owner posts slots and senders write messages, and the slots.
type ring struct {
	tail  *uint64
	cells unsafe.Pointer
	slots unsafe.Pointer
	mask  uint64 // cells - 1
	count uint32 // slots
	size  uint32 // bytes of a slot that a message may use
	pitch uint64 // bytes from slot to slot
}

// cell carries one message, or points to the slot that does.
type cell struct {
	word   uint64
	slot   uint32 // written by the owner
	n      uint32 // the rest is written by the sender: bytes of the message
	epoch  uint32 // of its connection
	seq    uint32 // number within the connection, from 0
	inline [inlineMax]byte
}

const (
	regionMagic   = "ibcR"
	regionVersion = 1
	noteSlots     = 64
	headSize      = 256
	cellSize      = 128 // two lines that processors fetch together
	inlineMax     = cellSize - 24
	lineSize      = 64
)

var (
	_ [headSize - unsafe.Sizeof(regionHead{})]byte
	_ [unsafe.Sizeof(regionHead{}) - headSize]byte
	_ [cellSize - unsafe.Sizeof(cell{})]byte
	_ [unsafe.Sizeof(cell{}) - cellSize]byte
)

// States of a cell.
const (
	posted  = iota // a slot waits for a message
	claimed        // a sender writes
	full           // the message is there
	taken          // given up: the owner posts the slot anew
)

// maxRank fits the rank's part of a word.
const maxRank = 1<<30 - 1

// wordOf is a cell's word: ticket modulo 2^32, state, rank of the sender.
func wordOf(ticket uint64, state, rank uint32) uint64 {
	return ticket<<32 | uint64(state)<<30 | uint64(rank)
}

func wordTicket(w uint64) uint32 { return uint32(w >> 32) }
func wordState(w uint64) uint32  { return uint32(w) >> 30 }
func wordRank(w uint64) uint32   { return uint32(w) & maxRank }

// plan is the geometry of a region and its length in bytes.
func (b *region) plan(slots, size int) (length int64) {
	return headSize + b.ring.plan(slots, size) + b.note.plan(noteSlots, maxNote)
}

func (r *ring) plan(slots, size int) (length int64) {
	cells := uint64(1) << bits.Len64(uint64(slots-1))
	r.mask, r.count, r.size = cells-1, uint32(slots), uint32(size)
	r.pitch = (uint64(size) + lineSize - 1) &^ (lineSize - 1)
	return int64(cells*cellSize + uint64(slots)*r.pitch)
}

// place finds the parts of the mapped memory.
func (b *region) place(m *segment.Mapping) {
	base := unsafe.Pointer(unsafe.SliceData(m.Bytes()))
	b.mem, b.head = m, (*regionHead)(base)
	b.ring.place(unsafe.Add(base, headSize), &b.head.tail)
	b.note.place(unsafe.Add(b.ring.slots, uint64(b.ring.count)*b.ring.pitch), &b.head.noteTail)
}

func (r *ring) place(at unsafe.Pointer, tail *uint64) {
	r.tail, r.cells, r.slots = tail, at, unsafe.Add(at, (r.mask+1)*cellSize)
}

// newRegion makes the owner's.
func newRegion(slots, size int) (*region, error) {
	b := new(region)
	m, err := segment.Map(segment.Config{Size: b.plan(slots, size), Shared: true, HugePages: segment.Off})
	if err != nil {
		return nil, fmt.Errorf("shm: memory of an endpoint with %d slots of %d bytes: %w", slots, size, err)
	}
	b.place(m)
	h := b.head
	copy(h.magic[:], regionMagic)
	h.version, h.slots, h.size = regionVersion, uint32(slots), uint32(size)
	for _, r := range []*ring{&b.ring, &b.note} {
		for t := range r.mask + 1 { // a cell that was never posted is one of the lap before
			r.cell(t).word = wordOf(t-(r.mask+1), taken, 0)
		}
	}
	return b, nil
}

// mapRegion maps a peer's.
func mapRegion(fd, slots, size int) (*region, error) {
	b := new(region)
	m, err := segment.MapFD(fd, b.plan(slots, size))
	if err != nil {
		return nil, err
	}
	b.place(m)
	h := b.head
	if string(h.magic[:]) != regionMagic || h.version != regionVersion || h.slots != uint32(slots) ||
		h.size != uint32(size) {
		_ = m.Close()
		return nil, fmt.Errorf("shm: what a peer handed over is no region of an endpoint with %d slots of %d bytes",
			slots, size)
	}
	return b, nil
}

func (b *region) close() error { return b.mem.Close() }

// cell is the one of a ticket.
func (r *ring) cell(ticket uint64) *cell {
	return (*cell)(unsafe.Add(r.cells, (ticket&r.mask)*cellSize))
}

// slot is the memory of a slot that exists.
func (r *ring) slot(id, n uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(r.slots, uint64(id)*r.pitch)), n)
}
