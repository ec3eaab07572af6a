package conduit

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
)

// Shared memory in the sense of docs/heap.md. All of it is memory of the ranks' segments, which
// Config.HeapSize bytes of each are for; it is not cleared. Any goroutine may use these functions.

// pointer makes a Ptr of what a heap gives.
func pointer[T any](h *heaps, p heap.Ptr) Ptr[T] {
	if p.IsNull() {
		return Ptr[T]{}
	}
	return global.Of[T](uint32(p.Rank())+1, p.Offset()+h.base)
}

// Alloc takes memory for n elements of this rank's part of the shared heaps. Every rank may use and
// free it. Of 0 elements it is null. It sends no message, unless the local heap grows beyond the
// limit that the rank knows: one call to rank 0. Errors: a *NoMemoryError, after which nothing has
// changed; a *SizeError; a *PeerDownError of rank 0; ctx's; ErrNoHeap.
func Alloc[T any](ctx context.Context, j *Job, n int) (Ptr[T], error) {
	const op = "alloc"
	h, err := heapOf(j, op)
	if err != nil {
		return Ptr[T]{}, err
	}
	size, align, err := heap.SizeOf[T](op, n)
	if err != nil {
		return Ptr[T]{}, err
	}
	q, err := h.Alloc(ctx, size, align)
	j.learned() // of what others did in the block before they freed it
	return pointer[T](j.heaps, q), err
}

// GlobalAlloc takes memory for count blocks of n elements, dealt out to the ranks in turn: the same
// offsets at all ranks, room for ceil(count/ranks) blocks at each. The pointer is to block 0, at
// rank 0; [Ptr.On] has the blocks of other ranks. One rank calls it and gets the result; any rank
// that it passes it to may use the memory, at any rank, and free it. A single block takes memory of
// rank 0 only. One call to rank 0; where memory is short rank 0 collects it from all ranks first.
// Errors are those of Alloc.
func GlobalAlloc[T any](ctx context.Context, j *Job, count, n int) (Ptr[T], error) {
	return allocBlocks[T](ctx, j, "global alloc", (*heap.Heap).GlobalAlloc, count, n)
}

// AllAlloc is GlobalAlloc that all ranks call together with the same arguments: all get the same
// pointer, or the same error, and may use the memory at once. One broadcast. A rank whose caches
// have writes that were not sent has that error too, beside the pointer: see [Job.Barrier].
func AllAlloc[T any](ctx context.Context, j *Job, count, n int) (Ptr[T], error) {
	lost := unsent(j)
	p, err := allocBlocks[T](ctx, j, "all alloc", (*heap.Heap).AllAlloc, count, n)
	return p, withLost(lost, err)
}

func allocBlocks[T any](ctx context.Context, j *Job, op string,
	take func(*heap.Heap, context.Context, uint64, uint64, uint64) (heap.Ptr, error), count, n int) (Ptr[T], error) {
	h, err := heapOf(j, op)
	if err != nil {
		return Ptr[T]{}, err
	}
	size, align, err := heap.SizeOf[T](op, n)
	if err == nil && count < 0 {
		err = fmt.Errorf("conduit: %s: %d blocks, want 0 or more", op, count)
	}
	if err != nil {
		return Ptr[T]{}, err
	}
	q, err := take(h, ctx, uint64(count), size, align)
	j.learned()
	return pointer[T](j.heaps, q), err
}

// Free gives back what Alloc, GlobalAlloc or AllAlloc returned, and waits until its owner has done
// so. One rank frees a block, any one. Null is nothing. A block of another rank takes one call.
// Errors: a *FreeError, after which nothing has changed; a *PeerDownError of the owner;
// ctx's.
func Free[T any](ctx context.Context, j *Job, p Ptr[T]) error {
	return withLost(freeBy(ctx, j, "free", false, (*heap.Heap).Free, p))
}

// FreeAsync is Free that does not wait for the owner: the memory may not be there yet for what this
// rank allocates next. An owner that cannot free the block counts it (HeapStats) and logs it. It
// waits for a credit, as a post does.
func FreeAsync[T any](ctx context.Context, j *Job, p Ptr[T]) error {
	return withLost(freeBy(ctx, j, "free", false, (*heap.Heap).FreeAsync, p))
}

// AllFree frees a block when all ranks have called it with the same pointer; until then all may use
// it. All get the same error. One all-gather and one broadcast.
func AllFree[T any](ctx context.Context, j *Job, p Ptr[T]) error {
	return withLost(freeBy(ctx, j, "all free", true, (*heap.Heap).AllFree, p))
}

// freeBy frees a block. All: the other ranks wait for this one. Lost is the error of the
// release before; the block may be free all the same.
func freeBy[T any](ctx context.Context, j *Job, op string, all bool,
	free func(*heap.Heap, context.Context, heap.Ptr) error, p Ptr[T]) (lost, err error) {
	h, err := heapOf(j, op)
	if err != nil {
		return nil, err
	}
	var q heap.Ptr
	switch {
	case p.IsNull():
	case p.Rank() < 0 || p.Rank() >= j.size:
		return nil, &RankError{Op: op, Rank: p.Rank(), Size: j.size}
	default: // an offset in front of the heaps wraps round, and so lies outside of them
		q = heap.At(p.Rank(), p.Offset()-j.heaps.base)
	}
	// What a worker's cache has not written must not be written into the next owner's block.
	lost = unsent(j)
	if lost != nil && !all {
		return nil, lost
	}
	return lost, inSegment(free(h, ctx, q), j.heaps.base)
}

// SymmetricAlloc takes memory for n elements at the same offset at all ranks, without a message:
// all ranks make the same calls of SymmetricAlloc and SymmetricFree in the same order. The memory
// is of Config.SymmetricSize bytes of each segment; the pointer is to this rank's, [Ptr.On] has the
// others'. Use the memory of another rank after a barrier, as it may be in use there until then.
// With -tags debug the calls of all ranks are compared, in an all-gather. Errors: a *NoMemoryError
// and a *SizeError, alike at all ranks; ErrNoHeap; a *MismatchError with -tags debug.
func SymmetricAlloc[T any](ctx context.Context, j *Job, n int) (Ptr[T], error) {
	const op = "symmetric alloc"
	s, err := symmetricOf(j, op)
	if err != nil {
		return Ptr[T]{}, err
	}
	size, align, err := heap.SizeOf[T](op, n)
	if err != nil {
		return Ptr[T]{}, err
	}
	off, err := s.Alloc(ctx, size, align)
	if err != nil || size == 0 {
		return Ptr[T]{}, err
	}
	return At[T](j.rank, off+j.heaps.Static), nil
}

// SymmetricFree gives back what SymmetricAlloc returned, at this rank, as all ranks do in the same
// order. It sends nothing and waits for no rank, but with -tags debug. Errors: a *FreeError; a
// *MismatchError with -tags debug.
func SymmetricFree[T any](ctx context.Context, j *Job, p Ptr[T]) error {
	const op = "symmetric free"
	s, err := symmetricOf(j, op)
	if err != nil || p.IsNull() {
		return err
	}
	if p.Rank() != j.rank {
		return fmt.Errorf("conduit: %s: %v is not of this rank, %d: each rank frees its own", op, p, j.rank)
	}
	// An offset in front of the heap wraps round, and so lies outside; none is a place of no block.
	err = inSegment(s.Free(ctx, min(p.Offset()-j.heaps.Static, heap.NoBlock-1)), j.heaps.Static)
	if e := (*FreeError)(nil); errors.As(err, &e) {
		e.Ptr = heap.At(p.Rank(), p.Offset())
	}
	return err
}

func symmetricOf(j *Job, op string) (*heap.Symmetric, error) {
	if j.members.has(left) {
		return nil, errClosed(op, "job")
	}
	if j.heaps.symmetric == nil {
		return nil, fmt.Errorf("conduit: %s: %w: set Config.SymmetricSize (IBCONDUIT_SYMMETRIC_SIZE)", op, ErrNoHeap)
	}
	return j.heaps.symmetric, nil
}

// VerifySymmetric is called by all ranks together, and fails at all of them if they have not made
// the same calls of the symmetric heap so far: a *MismatchError. One all-gather.
func (j *Job) VerifySymmetric(ctx context.Context) error {
	s, err := symmetricOf(j, "symmetric heap")
	if err != nil {
		return err
	}
	lost := unsent(j)
	return withLost(lost, s.Verify(ctx))
}

// Slice is n elements of this rank's own segment from p on, without a copy. It lies outside the Go
// heap and is valid until the memory is freed, or the job closed; see [Job.Segment]. Errors: that p
// is another rank's, or not aligned; a *BoundsError; ErrNullPtr for elements of null.
func Slice[T any](j *Job, p Ptr[T], n int) ([]T, error) {
	const op = "slice"
	size, _, err := heap.SizeOf[T](op, n)
	switch {
	case err != nil:
		return nil, err
	case p.IsNull() && n == 0:
		return nil, nil
	case p.IsNull():
		return nil, fmt.Errorf("%s: %w", op, ErrNullPtr)
	case p.Rank() != j.rank:
		return nil, fmt.Errorf("conduit: %s: %v is not of this rank, %d: get it", op, p, j.rank)
	}
	mem := j.seg.User()
	if have := uint64(len(mem)); size > have || p.Offset() > have-size {
		return nil, &BoundsError{Op: op, Rank: j.rank, Off: p.Offset(), Len: size, Size: have}
	}
	if size == 0 {
		return nil, nil
	}
	at := unsafe.Pointer(&mem[p.Offset()])
	if align := unsafe.Alignof(*new(T)); uintptr(at)%align != 0 {
		return nil, fmt.Errorf("conduit: %s: offset %#x is no multiple of the type's alignment, %d", op, p.Offset(), align)
	}
	return unsafe.Slice((*T)(at), n), nil
}
