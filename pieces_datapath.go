package conduit

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/global"
)

// Slices of arrays, and strided and indexed transfers, are many pieces. Those that follow each
// other at a rank are one request: as they are where they follow each other in memory too, else
// packed in a buffer of the worker. Networks copy such small pieces anyway.

const (
	// maxPieces is how many pieces are looked at together: a worker keeps a list of them.
	maxPieces = 1024
	// packBelow is from how many bytes on a piece is not packed: networks move as much without a
	// copy (zeroCopyMin of fabric/ibv).
	packBelow = 16 << 10
	// packMost is how many bytes of packed pieces one chain has at most: a worker keeps a buffer.
	packMost = 1 << 20
)

// piece is memory, and which bytes of a rank's segment belong there.
type piece struct {
	node uint32
	off  uint64
	mem  []byte
}

func pieceOf[T any](p Ptr[T], mem []T) piece {
	return piece{node: global.Node(p), off: p.Offset(), mem: bytesOf(mem)}
}

func comparePieces(a, b piece) int {
	return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.off, b.off))
}

func opOf(kind fabric.Kind) string { return (&fabric.Piece{Kind: kind}).Op() }

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// transfers are what a worker needs for pieces.
type transfers struct {
	w       *Worker
	list    []piece
	started []run
	buf     []byte // of packed runs
	used    int    // of buf
	packed  int    // bytes of packed runs of this chain
}

// run is pieces that follow each other at a rank, and the request that carries them out.
type run struct {
	Pending
	pieces []piece
	packed []byte // where they lie meanwhile, if they do not follow each other in memory
}

// transfer gets or puts pieces until next has no more, in chains, and waits for all of them. Pieces
// go in the order of their places: those to one rank are one doorbell, as far as the queue has
// room. After an error it starts no more, and waits for those that it has started.
func transfer(w *Worker, kind fabric.Kind, next func() (x piece, more bool)) (first error) {
	t := &w.transfers
	t.w = w
	for more := true; more && first == nil; {
		if more, first = t.collect(kind, next); first != nil {
			break
		}
		for left := t.list; len(left) > 0 && first == nil; {
			start := func() (err error) {
				left, err = t.start(kind, left)
				return err
			}
			if w.inChain || kind == fabric.KindPut && w.fences.caches() { // the waits below post, or the cache combines
				first = start()
			} else {
				first = w.Chain(start)
			}
			first = cmp.Or(first, t.finish(kind))
		}
		clear(t.list)
	}
	if first != nil { // the network may still use the buffer
		*t = transfers{}
	}
	return first
}

// collect lists pieces in the order of their places. What is mapped here is copied at once.
func (t *transfers) collect(kind fabric.Kind, next func() (x piece, more bool)) (more bool, err error) {
	t.list = t.list[:0]
	sorted := true
	for more = true; more && len(t.list) < maxPieces; {
		var x piece
		if x, more = next(); !more {
			break
		}
		if t.w.mapped(x.node, x.off, uint64(len(x.mem))) != nil {
			if err := startPiece(t.w, kind, x).err; err != nil {
				return false, err
			}
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

// start starts the pieces of one chain, and returns those that there was no room for.
func (t *transfers) start(kind fabric.Kind, list []piece) (left []piece, err error) {
	for full := false; len(list) > 0 && !full; {
		var n, bytes int
		var packed bool
		n, bytes, packed, full = t.nextRun(list)
		if err := t.startRun(kind, list[:n], bytes, packed); err != nil {
			return nil, err
		}
		list = list[n:]
	}
	return list, nil
}

// nextRun is how many pieces at the begin of a list are one run, and their bytes. Packed: they do
// not follow each other in memory. Full: there is no room for more packed pieces.
func (t *transfers) nextRun(list []piece) (n, bytes int, packed, full bool) {
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
func (t *transfers) packs(mem []byte) bool {
	if len(mem) <= t.w.job.networks.copyMax {
		return true
	}
	seg := t.w.job.seg.User()
	return len(mem) < packBelow && addressOf(mem)-addressOf(seg) >= uintptr(len(seg))
}

// startRun starts the request of a run.
func (t *transfers) startRun(kind fabric.Kind, all []piece, bytes int, packed bool) error {
	x := all[0]
	r := run{pieces: all}
	if packed {
		r.packed = t.room(bytes)
		x.mem = r.packed
		if kind == fabric.KindPut {
			at := 0
			for i := range all {
				at += copy(r.packed[at:], all[i].mem)
			}
		}
	} else {
		x.mem = unsafe.Slice(unsafe.SliceData(x.mem), bytes) // of the caller's one slice
	}
	if r.Pending = startPiece(t.w, kind, x); r.err != nil {
		return r.err
	}
	t.started = append(t.started, r)
	return nil
}

// room is bytes of the buffer. One that is too small serves the runs that have it to their end.
func (t *transfers) room(n int) []byte {
	if len(t.buf)-t.used < n {
		t.buf, t.used = make([]byte, min(max(n, 2*len(t.buf), scratchMin), packMost)), 0
	}
	b := t.buf[t.used : t.used+n : t.used+n]
	t.used += n
	t.packed += n
	return b
}

// finish waits for all runs of a chain.
func (t *transfers) finish(kind fabric.Kind) (first error) {
	for i := range t.started {
		r := &t.started[i]
		err := r.Pending.finish()
		if err == nil && r.packed != nil && kind == fabric.KindGet {
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

// startPiece starts an operation.
func startPiece(w *Worker, kind fabric.Kind, x piece) Pending {
	p := global.Of[byte](x.node, x.off)
	if kind == fabric.KindPut {
		return putSlice(w, p, x.mem, 0)
	}
	return getSlice(w, x.mem, p, 0)
}
