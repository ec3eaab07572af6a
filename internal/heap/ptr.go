package heap

import "fmt"

// Ptr is a place in the shared heaps: a rank and an offset. The zero Ptr is null. A block of the
// global heap has rank 0, and lies at the same offset at all ranks.
type Ptr struct {
	node uint32 // rank + 1; 0: null
	off  uint64
}

// At is the place at an offset in bytes of a rank's heap. The rank is not negative.
func At(rank int, off uint64) Ptr { return Ptr{node: uint32(rank) + 1, off: off} }

// IsNull reports whether p is the zero Ptr.
func (p Ptr) IsNull() bool { return p.node == 0 }

// Rank is the owner of the memory that p points to, -1 for null.
func (p Ptr) Rank() int { return int(p.node) - 1 }

// Offset is where in the rank's heap, in bytes.
func (p Ptr) Offset() uint64 { return p.off }

func (p Ptr) String() string {
	if p.IsNull() {
		return "null"
	}
	return fmt.Sprintf("%d:%#x", p.Rank(), p.off)
}
