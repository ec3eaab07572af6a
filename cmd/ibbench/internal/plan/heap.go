package plan

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/errtext"
)

// Heap measures the shared heaps of a job.
const Heap = "heap"

// Operations of Heap.
const (
	HeapLocal  = "local"  // Alloc and Free of this rank's memory
	HeapRemote = "remote" // Free of another rank's
	HeapGlobal = "global" // GlobalAlloc by another rank than 0
	HeapAll    = "all"    // AllAlloc and AllFree
	HeapChurn  = "churn"  // as local, with random sizes, until the heap is a mixture of blocks and gaps
)

// Limits of Heap.
const (
	MaxHeap = 1 << 30 // bytes
	MaxLive = 1 << 24 // blocks
)

// validateHeap returns what is wrong with a point of Heap by itself.
func (p Point) validateHeap() error {
	switch p.Op {
	case HeapLocal, HeapRemote, HeapGlobal, HeapAll, HeapChurn:
	default:
		return fmt.Errorf("operation %q is not measured by %s", p.Op, p.Kind)
	}
	switch {
	case p.HeapBytes < 1<<16 || p.HeapBytes > MaxHeap:
		return fmt.Errorf("a heap of %s: want 64K to 1G", errtext.Count(p.HeapBytes, "byte"))
	case p.Size < 1 || p.Size > p.HeapBytes/4:
		return fmt.Errorf("size %d: want 1 byte to a quarter of the heap, %d", p.Size, p.HeapBytes/4)
	case p.Live < 1 || p.Live > MaxLive:
		return fmt.Errorf("%s: want 1 to %d", errtext.Count(p.Live, "live block"), MaxLive)
	case p.Op == HeapLocal && int64(p.Live) > p.HeapBytes/2/max(p.Size, 16):
		return fmt.Errorf("%s of %d bytes: more than half of the heap of %d; use --live or --heap", errtext.Count(p.Live, "live block"), p.Size, p.HeapBytes)
	}
	return nil
}

// HeapBytes is what the plan's points want of the shared heaps.
func (p *Plan) HeapBytes() (n int64) {
	for _, pt := range p.Points {
		n = max(n, pt.HeapBytes)
	}
	return n
}
