package arrays

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/global"
)

// Slices of arrays, and strided and indexed transfers, are many pieces. Those that follow each
// other at a rank are one request: as they are where they follow each other in memory too, else
// packed in a buffer of the worker. Networks copy such small pieces anyway.

const (
	// maxPieces is how many pieces are looked at together: a worker keeps a list of them.
	maxPieces = 1024
	// packBelow is from how many bytes on a piece is not packed: networks move as much without a
	// copy (zeroCopyMin of internal/fabric/ibv).
	packBelow = 16 << 10
	// packMost is how many bytes of packed pieces one chain has at most: a worker keeps a buffer.
	packMost = 1 << 20
	// packLeast is the least size of that buffer.
	packLeast = 4096
)

// piece is memory, and which bytes of a rank's segment belong there.
type piece struct {
	node uint32
	off  uint64
	mem  []byte
}

func pieceOf[T any](p Ptr[T], mem []T) piece {
	return piece{node: global.Node(p), off: p.Offset(), mem: global.Bytes(mem)}
}

func comparePieces(a, b piece) int {
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.off, b.off))
}

func opOf(kind fabric.Kind) string { return (&fabric.Piece{Kind: kind}).Op() }

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Worker is the worker that transfers go through. Places are global pointers: a [global.Node] and
// an offset in the user region of its rank.
type Worker interface {
	// Check finds the mistake of n bytes at a place. Valid reports at once that nothing is, or that
	// only Check knows.
	Check(op string, node uint32, off, n uint64) error
	Valid(node uint32, off, n uint64) bool

	// Copy transfers bytes of memory that is mapped here, and reports whether it is.
	Copy(kind fabric.Kind, node uint32, off uint64, mem []byte) (mapped bool, err error)
	// Start begins a transfer. It is complete where the handle is [fabric.Done].
	Start(kind fabric.Kind, node uint32, off uint64, mem []byte, f fabric.Flag) (fabric.Lane, fabric.Handle, error)
	Wait(l fabric.Lane, h fabric.Handle) error
	// Chain has the transfers that start begins posted together, or when the chain ends that the
	// worker is in. What a cache combines it does not hold back.
	Chain(kind fabric.Kind, start func() error) error

	// Gathers reports whether a gather that begins at a place goes through a cache, Remote whether the
	// cache has operations on its rank. Gather reads n bytes at each of the places.
	Gathers(node uint32, off uint64) bool
	Remote(node uint32) bool
	Gather(places []cache.Place, n int, dst []byte) error
}

// Transfers are what a worker keeps for pieces.
type Transfers struct {
	w       Worker
	job     Job
	seg     []byte // this rank's
	copyMax int    // bytes that networks copy anyway

	kind    fabric.Kind
	list    []piece
	left    []piece      // of list: not started
	start   func() error // startChain, bound once: a transfer allocates nothing
	started []run
	buf     []byte // of packed runs
	used    int    // of buf
	packed  int    // bytes of packed runs of this chain
	places  []cache.Place
}

// NewTransfers are the transfers of a worker of a job with networks that copy puts of up to copyMax
// bytes.
func NewTransfers(j Job, w Worker, copyMax int) *Transfers {
	t := &Transfers{w: w, job: j, seg: j.Segment(), copyMax: copyMax}
	t.start = t.startChain
	return t
}

// run is pieces that follow each other at a rank, and the request that carries them out.
type run struct {
	lane   fabric.Lane
	h      fabric.Handle
	pieces []piece
	packed []byte // where they lie meanwhile, if they do not follow each other in memory
}

// transfer gets or puts pieces until next has no more, in chains, and waits for all of them. Pieces
// go in the order of their places: those to one rank are one doorbell, as far as the queue has
// room. After an error it starts no more, and waits for those that it has started.
func (t *Transfers) transfer(kind fabric.Kind, next func() (x piece, more bool)) (first error) {
	t.kind = kind
	for more := true; more && first == nil; {
		if more, first = t.collect(next); first != nil {
			break
		}
		for t.left = t.list; len(t.left) > 0 && first == nil; {
			first = t.w.Chain(kind, t.start)
			first = cmp.Or(first, t.finish())
		}
		clear(t.list)
	}
	if first != nil { // the network may still use the buffer
		t.list, t.left, t.started = nil, nil, nil
		t.buf, t.used, t.packed = nil, 0, 0
	}
	return first
}

// do transfers one piece.
func (t *Transfers) do(kind fabric.Kind, x piece, f fabric.Flag) error {
	l, h, err := t.w.Start(kind, x.node, x.off, x.mem, f)
	if err != nil || h == fabric.Done {
		return err
	}
	return t.w.Wait(l, h)
}

// collect lists pieces in the order of their places. Mapped ones are copied at once.
func (t *Transfers) collect(next func() (x piece, more bool)) (more bool, err error) {
	t.list = t.list[:0]
	sorted := true
	for more = true; more && len(t.list) < maxPieces; {
		var x piece
		if x, more = next(); !more {
			break
		}
		if mapped, err := t.w.Copy(t.kind, x.node, x.off, x.mem); err != nil {
			return false, err
		} else if mapped {
			continue
		}
		sorted = sorted && (len(t.list) == 0 || comparePieces(t.list[len(t.list)-1], x) <= 0)
		t.list = append(t.list, x)
	}
	if !sorted {
		slices.SortFunc(t.list, comparePieces)
	}
	return more, nil
}

// startChain starts the pieces of one chain. There may be no room for all that are left.
func (t *Transfers) startChain() error {
	for full := false; len(t.left) > 0 && !full; {
		var n, bytes int
		var packed bool
		n, bytes, packed, full = t.nextRun(t.left)
		if err := t.startRun(t.left[:n], bytes, packed); err != nil {
			return err
		}
		t.left = t.left[n:]
	}
	return nil
}

// nextRun is how many pieces at the begin of a list are one run, and their bytes. Packed: they do
// not follow each other in memory. Full: there is no room for more packed pieces.
func (t *Transfers) nextRun(list []piece) (n, bytes int, packed, full bool) {
	small := true
	for ; n < len(list); n++ {
		x := &list[n]
		small = small && t.packs(x.mem)
		if n > 0 {
			before := &list[n-1]
			if x.node != before.node || x.off != before.off+uint64(len(before.mem)) {
				break
			}
			if packed || addressOf(x.mem) != addressOf(before.mem)+uintptr(len(before.mem)) {
				full = small && t.packed+bytes+len(x.mem) > packMost
				if !small || full {
					break
				}
				packed = true
			}
		}
		bytes += len(x.mem)
	}
	return n, bytes, packed, full
}

// packs reports whether a piece may be packed. From and to the segment networks move all but small
// puts without a copy.
func (t *Transfers) packs(mem []byte) bool {
	if len(mem) <= t.copyMax {
		return true
	}
	return len(mem) < packBelow && addressOf(mem)-addressOf(t.seg) >= uintptr(len(t.seg))
}

// startRun starts the request of a run.
func (t *Transfers) startRun(all []piece, bytes int, packed bool) error {
	x := all[0]
	r := run{pieces: all}
	if packed {
		r.packed = t.room(bytes)
		x.mem = r.packed
		if t.kind == fabric.KindPut {
			at := 0
			for i := range all {
				at += copy(r.packed[at:], all[i].mem)
			}
		}
	} else {
		x.mem = unsafe.Slice(unsafe.SliceData(x.mem), bytes) // of the caller's one slice
	}
	var err error
	if r.lane, r.h, err = t.w.Start(t.kind, x.node, x.off, x.mem, 0); err != nil {
		return err
	}
	t.started = append(t.started, r)
	return nil
}

// room is bytes of the buffer. One that is too small serves the runs that have it to their end.
func (t *Transfers) room(n int) []byte {
	if len(t.buf)-t.used < n {
		t.buf, t.used = make([]byte, min(max(n, 2*len(t.buf), packLeast), packMost)), 0
	}
	b := t.buf[t.used : t.used+n : t.used+n]
	t.used += n
	t.packed += n
	return b
}

// finish waits for all runs of a chain.
func (t *Transfers) finish() (first error) {
	for i := range t.started {
		r := &t.started[i]
		var err error
		if r.h != fabric.Done {
			err = t.w.Wait(r.lane, r.h)
		}
		if err == nil && r.packed != nil && t.kind == fabric.KindGet {
			at := 0
			for k := range r.pieces {
				at += copy(r.pieces[k].mem, r.packed[at:])
			}
		}
		first = cmp.Or(first, err)
	}
	clear(t.started)
	t.started, t.used, t.packed = t.started[:0], 0, 0
	return first
}
