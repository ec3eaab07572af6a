package conduit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/alloc"
	"github.com/ibconduit/conduit/internal/heap"
	"github.com/ibconduit/conduit/internal/owner"
)

// HeapAll, as Config.HeapSize, gives the shared heaps all that the smallest segment has.
const HeapAll = -1

// SharedLayout is how the library uses the begin of each rank's segment, in bytes: static data
// first, then the symmetric heap, then the shared heaps, all multiples of a page. It is alike on
// all ranks.
type SharedLayout struct {
	Static    uint64 // of the arrays in Config.Shared
	Symmetric uint64 // Config.SymmetricSize
	Heap      uint64 // Config.HeapSize; with HeapAll what it came to
}

// End is the offset behind all of them: from there on a segment is the program's.
func (l SharedLayout) End() uint64 { return l.Static + l.Symmetric + l.Heap }

// heaps are the shared heaps, the symmetric heap and the static data as a part of a job.
type heaps struct {
	SharedLayout
	base      uint64          // of the shared heaps, in the user's region
	shared    *heap.Heap      // nil without Config.HeapSize
	symmetric *heap.Symmetric // nil without Config.SymmetricSize
	statics   []any           // *Array[T] by arrays.Static.Index
}

// heapNeeds are the needs of package heap.
func heapNeeds(c *Config) needs {
	h := &heaps{}
	n := needs{heaps: h}
	if c.HeapSize != 0 {
		n.handlers = func(t *am.Table) { h.shared = heap.Declare(t) }
	}
	return n
}

// heapDefaults fills in zeros.
func (c *Config) heapDefaults(env *environment) {
	if c.HeapSize == 0 {
		if env.str("IBCONDUIT_HEAP_SIZE", "") == "all" {
			c.HeapSize = HeapAll
		} else {
			c.HeapSize = env.bytes("IBCONDUIT_HEAP_SIZE", 0)
		}
	}
	if c.SymmetricSize == 0 {
		c.SymmetricSize = env.bytes("IBCONDUIT_SYMMETRIC_SIZE", 0)
	}
	if c.Shared == nil {
		c.Shared = DefaultShared
	}
}

func (c *Config) validateHeaps() error {
	want := fmt.Sprintf("0 (none) to %d bytes", uint64(alloc.MaxLen))
	switch {
	case c.HeapSize < HeapAll || c.HeapSize > alloc.MaxLen:
		return &ConfigError{Field: "HeapSize", Value: strconv.FormatInt(c.HeapSize, 10), Want: want + ", or HeapAll"}
	case c.SymmetricSize < 0 || c.SymmetricSize > alloc.MaxLen:
		return &ConfigError{Field: "SymmetricSize", Value: strconv.FormatInt(c.SymmetricSize, 10), Want: want}
	}
	return nil
}

func pages(n uint64) uint64 { return (n + alloc.PageSize - 1) &^ (alloc.PageSize - 1) }

// place decides on the layout, from what all ranks know alike: their configuration, which has been
// compared, and the sizes of their segments.
func (h *heaps) place(c *Config, all []hello) (err error) {
	static, err := c.Shared.arrays.Place(len(all))
	if err != nil {
		return err
	}
	h.Static, h.Symmetric = pages(static), pages(uint64(c.SymmetricSize))
	small := 0
	for r := range all {
		if all[r].user < all[small].user {
			small = r
		}
	}
	have, fixed := all[small].user, h.Static+h.Symmetric
	switch {
	case c.HeapSize != HeapAll:
		h.Heap = pages(uint64(c.HeapSize))
	case have >= fixed+alloc.PageSize:
		h.Heap = min((have-fixed)&^(alloc.PageSize-1), alloc.MaxLen)
	default: // what is left is not a page
		h.Heap = alloc.PageSize
	}
	h.base = fixed
	if end := h.End(); end > have {
		return fmt.Errorf("the segment of rank %d has %d bytes, of which the shared data need %d: %d static, %d for the "+
			"symmetric heap and %d for the shared heaps; "+
			"give it more (Config.SegmentSize, IBCONDUIT_SEGMENT_SIZE) or these less (Config.SymmetricSize and HeapSize, "+
			"IBCONDUIT_SYMMETRIC_SIZE and IBCONDUIT_HEAP_SIZE)",
			small, have, end, h.Static, h.Symmetric, h.Heap)
	}
	return nil
}

// open opens what place has placed. No rank uses it before all have.
func (h *heaps) open(j *Job) (err error) {
	mem := j.seg.User()
	cfg := heap.Config{Check: owner.Checked, FirstTouch: j.cfg.HeapFirstTouch}
	if h.Symmetric > 0 {
		c := cfg
		c.Mem = mem[h.Static:h.base:h.base]
		if h.symmetric, err = heap.NewSymmetric(view{j}, heapTeam{j}, c); err != nil {
			return err
		}
	}
	if h.Heap > 0 {
		cfg.Mem = mem[h.base:h.End():h.End()]
		if err := h.shared.Open(view{j}, heapTeam{j}, cfg); err != nil {
			return err
		}
	}
	h.statics = j.cfg.Shared.arrays.Open(arrayJob{j})
	return nil
}

// heapCloseTimeout bounds how long Close waits for what rank 0 does for other ranks.
const heapCloseTimeout = time.Second

// close ends the heaps. It may be called again.
func (h *heaps) close() error {
	if h.shared == nil || h.shared.Size() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), heapCloseTimeout)
	defer cancel()
	return h.shared.Close(ctx)
}

// ErrNoHeap is wrapped by the errors of shared memory in a job that has none.
var ErrNoHeap = errors.New("the job has no memory for that")

// heapOf is for an operation of the shared heaps.
func heapOf(j *Job, op string) (*heap.Heap, error) {
	if j.members.has(left) {
		return nil, errClosed(op, "job")
	}
	if j.heaps.shared == nil {
		return nil, fmt.Errorf("conduit: %s: %w: set Config.HeapSize (IBCONDUIT_HEAP_SIZE)", op, ErrNoHeap)
	}
	return j.heaps.shared, nil
}

// HeapStats are the figures of the shared heaps at this rank, and at rank 0 of the global
// heap; zero in a job without. They may take long to find.
func (j *Job) HeapStats() HeapStats {
	if j.heaps.shared == nil {
		return HeapStats{}
	}
	return j.heaps.shared.Stats()
}

// DumpHeap writes a map of this rank's shared heap for a person to read.
func (j *Job) DumpHeap(w io.Writer) error {
	h, err := heapOf(j, "dump")
	if err != nil {
		return err
	}
	return h.Dump(w)
}

// inSegment has an error of the memory from base on count offsets from the begin of the user's
// region, as a Ptr does.
func inSegment(err error, base uint64) error {
	var e *FreeError
	if errors.As(err, &e) {
		e.Ptr, e.Block = shifted(e.Ptr, base), shifted(e.Block, base)
	}
	return err
}

func shifted(p heap.Ptr, base uint64) heap.Ptr {
	if p.IsNull() {
		return p
	}
	return heap.At(p.Rank(), p.Offset()+base)
}

// heapTeam is the team of all ranks for the heaps. It does not mind writes that were not sent: they
// must not end an operation of several steps between two of them. Callers of the heaps look.
type heapTeam struct{ j *Job }

func (t heapTeam) Broadcast(ctx context.Context, root int, buf []byte) error {
	return t.j.collective(t.j.Team().Broadcast(ctx, root, buf))
}

func (t heapTeam) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := t.j.Team().AllGather(ctx, mine)
	return all, t.j.collective(err)
}
