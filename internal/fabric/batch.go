package fabric

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"unsafe"

	"github.com/ibconduit/conduit/internal/queue"
)

// Batch is a list of operations for a lane to post together, see [Lane.Post]. It is a plain value
// that no lane knows before: several may be built at a time, and one that is never posted is just
// forgotten. The zero Batch is empty. One goroutine uses a batch at a time.
//
// [Batch.Tag] makes a group of the operations added since the last Tag or Untag; the group's
// completion is reported as one. Other operations are implicit: Flush completes them.
//
// Nothing is read from a source, and nothing checked, before Post; a mistake is Post's error.
// Sources and destinations are the network's from Post on, as with single operations.
type Batch struct {
	pieces []Piece
	groups []Group
	tagged bool
	err    error
}

// Piece is one operation of a batch, as a network sees it.
type Piece struct {
	Kind   Kind
	Atomic Atomic
	Peer   int
	Off    uint64  // in the peer's segment
	Buf    []byte  // source or destination; of an atomic, where its old value goes, or nil
	Memory *Memory // that Buf lies in, or nil
}

// Kind is what an operation does.
type Kind uint8

// The kinds of operations.
const (
	KindPut Kind = iota
	KindGet
	KindAtomic
)

// Op names the operation, for errors.
func (p *Piece) Op() string {
	switch p.Kind {
	case KindPut:
		return "put"
	case KindGet:
		return "get"
	}
	return p.Atomic.Op.String()
}

// Len is the bytes of the peer's segment that the operation concerns.
func (p *Piece) Len() uint64 {
	if p.Kind == KindAtomic {
		return p.Atomic.Type.Size()
	}
	return uint64(len(p.Buf))
}

// Failed is the error of the piece that err is the reason of.
func (p *Piece) Failed(err error) *OpError {
	return &OpError{Op: p.Op(), Rank: p.Peer, Off: p.Off, Len: p.Len(), Err: err}
}

// Group is operations of a batch that complete as one, or are not reported.
type Group struct {
	Tag      Tag
	Implicit bool // it has no tag
	End      int  // behind its last piece; it begins where the group before ends
}

// Put adds a put of src, which must not change until Post has returned if its length is at most
// Limits.CopyMax, else until the operation is complete.
func (b *Batch) Put(peer int, off uint64, src []byte) {
	b.pieces = append(b.pieces, Piece{Kind: KindPut, Peer: peer, Off: off, Buf: src})
}

// Get adds a get into dst.
func (b *Batch) Get(peer int, off uint64, dst []byte) {
	b.pieces = append(b.pieces, Piece{Kind: KindGet, Peer: peer, Off: off, Buf: dst})
}

// PutFrom adds a put of n bytes at offset at of m. Pieces of one memory after another scatter it.
// The bytes must not change until the operation is complete, however few they are.
func (b *Batch) PutFrom(peer int, off uint64, m *Memory, at, n uint64) {
	b.pieces = append(b.pieces, Piece{Kind: KindPut, Peer: peer, Off: off, Buf: b.part("put", m, at, n), Memory: m})
}

// GetInto adds a get into n bytes at offset at of m. Pieces next to each other in m gather.
func (b *Batch) GetInto(peer int, off uint64, m *Memory, at, n uint64) {
	b.pieces = append(b.pieces, Piece{Kind: KindGet, Peer: peer, Off: off, Buf: b.part("get", m, at, n), Memory: m})
}

// part is a range of registered memory.
func (b *Batch) part(op string, m *Memory, at, n uint64) []byte {
	if size := uint64(len(m.bytes)); at > size || n > size-at {
		if b.err == nil {
			b.err = fmt.Errorf("%s: %w: %d bytes at offset %d of registered memory that has %d", op, ErrMemory, n, at, size)
		}
		return nil
	}
	return m.bytes[at : at+n : at+n]
}

// Atomic adds an atomic on the word at offset off, as [Lane.Atomic]. The old value is in *old when
// the operation is complete, in the lower half for a type of 32 bits; old may be nil.
func (b *Batch) Atomic(peer int, off uint64, a Atomic, old *uint64) {
	p := Piece{Kind: KindAtomic, Atomic: a, Peer: peer, Off: off}
	if old != nil {
		p.Buf = unsafe.Slice((*byte)(unsafe.Pointer(old)), 8)
	}
	b.pieces = append(b.pieces, p)
}

// Tag makes a group of the operations added since the last Tag or Untag. A group may be empty: it
// is complete as soon as it is posted.
func (b *Batch) Tag(t Tag) {
	b.groups, b.tagged = append(b.groups, Group{Tag: t, End: len(b.pieces)}), true
}

// Untag leaves the operations added since the last Tag without one, where others with a tag follow.
func (b *Batch) Untag() {
	if k := len(b.groups); k == 0 && len(b.pieces) > 0 || k > 0 && b.groups[k-1].End < len(b.pieces) {
		b.groups = append(b.groups, Group{Implicit: true, End: len(b.pieces)})
	}
}

// Len is how many operations the batch has.
func (b *Batch) Len() int { return len(b.pieces) }

// Reset empties the batch for another use of its memory. What it had posted goes on.
func (b *Batch) Reset() {
	b.pieces, b.groups, b.tagged, b.err = b.pieces[:0], b.groups[:0], false, nil
}

// Pieces are the operations, in order, for a network to read.
func (b *Batch) Pieces() []Piece { return b.pieces }

// Groups are the groups, in order, for a network to read. Pieces behind the last are implicit.
func (b *Batch) Groups() []Group { return b.groups }

// Check returns the mistake that was made in building the batch, or in posting it with q. Networks
// call [CheckBatch].
func (b *Batch) Check(q *Completions) error {
	switch {
	case b.err != nil:
		return b.err
	case q == nil && b.tagged:
		return errors.New("post: a batch with tags needs Completions to report them in")
	}
	return nil
}

// All are the groups with their pieces, in order, those behind the last group too.
func (b *Batch) All() iter.Seq2[Group, []Piece] {
	return func(yield func(Group, []Piece) bool) {
		first := 0
		for _, g := range b.groups {
			if !yield(g, b.pieces[first:g.End]) {
				return
			}
			first = g.End
		}
		if first < len(b.pieces) {
			yield(Group{Implicit: true, End: len(b.pieces)}, b.pieces[first:])
		}
	}
}

// Tag is the name that a caller gives to a group of operations. Networks do not interpret tags,
// which may repeat.
type Tag uint64

// Completion says that the operations of a group have ended.
type Completion struct {
	Tag Tag
	// Err is the first error of the group's operations, an *OpError; of the others nothing is
	// known then.
	Err error
}

// Completions is the queue in which lanes report the completions of groups to the part that posted
// them. Each part of a program has its own, also where they share a lane; one may serve several
// lanes. The zero value is ready. It is used by the goroutine that uses the lanes. Looking at it is
// a look at memory: [Lane.Poll] and [Lane.Await] fill it.
type Completions struct {
	reported queue.Ring[Completion]
	inFlight int
}

// Take moves up to len(dst) completions into dst, oldest first, and returns their number.
func (q *Completions) Take(dst []Completion) int {
	n := min(q.reported.Len(), len(dst))
	for i := range n {
		dst[i] = q.reported.Pop()
	}
	return n
}

// Len is how many completions Take would find.
func (q *Completions) Len() int { return q.reported.Len() }

// InFlight is how many groups were posted and are not reported yet. Groups of a closed lane
// never are.
func (q *Completions) InFlight() int { return q.inFlight }

// Expect is for networks: a group was posted.
func (q *Completions) Expect() { q.inFlight++ }

// Tell is for networks: an expected group is complete.
func (q *Completions) Tell(t Tag, err error) {
	q.reported.Push(Completion{Tag: t, Err: err})
	q.inFlight--
}

// Span is the range that several pieces lie in, for the error of all of them.
type Span struct{ Low, High uint64 }

// NoSpan lies in every range.
var NoSpan = Span{Low: math.MaxUint64}

// Add makes the span include n bytes at off.
func (s *Span) Add(off, n uint64) { s.Low, s.High = min(s.Low, off), max(s.High, off+n) }
