package fabrictest

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/ibconduit/conduit/fabric"
)

// world is the random check: lanes of several ranks, and what their operations
// must have made of the segments.
type world struct {
	g      *group
	lanes  []*modelLane
	window int      // bytes of each segment that take part
	model  [][]byte // what each window must hold
	rest   [][]byte // what follows each window, which must not change
}

type modelLane struct {
	fabric.Lane
	rank  int
	batch bool
	open  []*flight // posted and not collected
}

// flight is an operation in flight.
type flight struct {
	h        fabric.Handle
	implicit bool
	peer     int
	off, end uint64
	write    bool
	ordered  bool   // a put, in order with other puts of its lane to its peer
	dst      []byte // of a get
	src      []byte // of a put whose source must not change yet
	want     []byte // of a get
	atomic   bool
	old      uint64 // that an atomic must return
}

const laneCount = 3

// randomOperations compares random sequences of everything a lane can do with
// a model. Operations that the contract does not order are not allowed to meet:
// the one in flight is collected first.
func (g *group) randomOperations() {
	w := &world{g: g, window: min(64<<10, g.o.SegmentSize/2)}
	for i := range laneCount {
		w.lanes = append(w.lanes, &modelLane{Lane: g.lane(i % g.o.Ranks), rank: i % g.o.Ranks})
	}
	g.property(func(t *rapid.T) {
		w.reset()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.step(t)
		}
		w.settle(t)
	})
}

// reset clears the segments and their model, and what a failed sequence left
// on the lanes.
func (w *world) reset() {
	for _, l := range w.lanes {
		if l.batch {
			_ = l.End()
		}
		_ = l.Flush(w.g.ctx)
		for _, f := range l.open {
			if !f.implicit {
				_, _ = l.Wait(w.g.ctx, f.h)
			}
		}
		l.batch, l.open = false, nil
	}
	w.model, w.rest = nil, nil
	for r := range w.g.ranks {
		clear(w.g.ranks[r].Segment[:w.window])
		w.model = append(w.model, make([]byte, w.window))
		w.rest = append(w.rest, append([]byte{}, w.g.ranks[r].Segment[w.window:w.window+4096]...))
	}
}

// step does one random thing on one random lane.
func (w *world) step(t *rapid.T) {
	l := w.lanes[rapid.IntRange(0, laneCount-1).Draw(t, "lane")]
	switch rapid.SampledFrom([]string{"put", "put", "put", "get", "get", "atomic", "atomic", "batch", "flush", "collect", "poll"}).Draw(t, "what") {
	case "put":
		w.put(t, l)
	case "get":
		w.get(t, l)
	case "atomic":
		w.atomic(t, l)
	case "batch":
		w.toggleBatch(t, l)
	case "flush":
		w.flush(t, l)
	case "collect":
		if n := len(l.open); n > 0 {
			w.collect(t, l, rapid.IntRange(0, n-1).Draw(t, "which"))
		}
	case "poll":
		noError(t, "poll", l.Poll())
	}
}

// place draws a target range, often small, sometimes the whole window.
func (w *world) place(t *rapid.T) (peer int, off uint64, n int) {
	peer = rapid.IntRange(0, len(w.g.ranks)-1).Draw(t, "peer")
	n = rapid.OneOf(rapid.IntRange(0, 20), rapid.IntRange(0, 5000), rapid.IntRange(0, w.window)).Draw(t, "len")
	off = uint64(rapid.OneOf(rapid.IntRange(0, min(64, w.window-n)), rapid.IntRange(0, w.window-n)).Draw(t, "off"))
	return peer, off, n
}

func drawFlag(t *rapid.T) fabric.Flag {
	return rapid.SampledFrom([]fabric.Flag{0, 0, fabric.Implicit, fabric.Blocking, fabric.Implicit | fabric.Blocking}).Draw(t, "flag")
}

func (w *world) put(t *rapid.T, l *modelLane) {
	peer, off, n := w.place(t)
	f := drawFlag(t)
	w.clearWay(t, l, peer, off, uint64(n), true, true)
	src := make([]byte, n)
	seed := rapid.Byte().Draw(t, "seed")
	for i := range src {
		src[i] = seed + byte(i) + byte(i>>8)
	}
	copy(w.model[peer][off:], src)
	h, err := l.Put(peer, off, src, f)
	noError(t, "put", err)
	w.checkImplicit(t, h, f)
	if n <= l.copyMax(w) || h == fabric.Done && f&fabric.Implicit == 0 {
		for i := range src {
			src[i] = 0xA5 // the source is ours again
		}
	}
	l.posted(&flight{h: h, implicit: f&fabric.Implicit != 0, peer: peer, off: off, end: off + uint64(n), write: true, ordered: true, src: src})
}

func (w *world) get(t *rapid.T, l *modelLane) {
	peer, off, n := w.place(t)
	f := drawFlag(t)
	w.clearWay(t, l, peer, off, uint64(n), false, false)
	dst := make([]byte, n)
	for i := range dst {
		dst[i] = 0x5A
	}
	fl := &flight{implicit: f&fabric.Implicit != 0, peer: peer, off: off, end: off + uint64(n), dst: dst,
		want: append([]byte{}, w.model[peer][off:off+uint64(n)]...)}
	var err error
	fl.h, err = l.Get(peer, off, dst, f)
	noError(t, "get", err)
	w.checkImplicit(t, fl.h, f)
	if fl.h == fabric.Done && !fl.implicit {
		fl.verify(t, 0)
		return
	}
	l.posted(fl)
}

func (w *world) atomic(t *rapid.T, l *modelLane) {
	peer := rapid.IntRange(0, len(w.g.ranks)-1).Draw(t, "peer")
	a := rapid.SampledFrom(slices.Collect(everyAtomic)).Draw(t, "atomic")
	n := a.Type.Size()
	off := n * uint64(rapid.IntRange(0, min(16, w.window/8-1)).Draw(t, "word"))
	a.Operand = rapid.Uint64().Draw(t, "operand")
	f := drawFlag(t)
	// A network may work on all of the 8 bytes around the word.
	w.clearWay(t, l, peer, off&^7, 8, true, false)
	word := w.model[peer][off : off+n]
	old := loadWord(word)
	a.Compare = rapid.SampledFrom([]uint64{old, old + 1}).Draw(t, "compare")
	storeWord(word, a.Apply(old))
	got, h, err := l.Atomic(peer, off, a, f)
	noError(t, a.Op.String(), err)
	w.checkImplicit(t, h, f)
	fl := &flight{h: h, implicit: f&fabric.Implicit != 0, peer: peer, off: off &^ 7, end: off&^7 + 8, write: true, atomic: f&fabric.Implicit == 0, old: old}
	if h == fabric.Done && !fl.implicit {
		fl.verify(t, got)
		return
	}
	l.posted(fl)
}

func (w *world) checkImplicit(t *rapid.T, h fabric.Handle, f fabric.Flag) {
	if f&fabric.Implicit != 0 && h != fabric.Done {
		t.Fatalf("an implicit operation returned handle %#x", uint64(h))
	}
}

func (w *world) toggleBatch(t *rapid.T, l *modelLane) {
	if l.batch = !l.batch; l.batch {
		l.Begin()
		return
	}
	noError(t, "end of a batch", l.End())
}

// flush completes everything; handles stay collectable.
func (w *world) flush(t *rapid.T, l *modelLane) {
	noError(t, "flush", l.Flush(w.g.ctx))
	keep := l.open[:0]
	for _, f := range l.open {
		if f.implicit || f.h == fabric.Done {
			f.verify(t, 0)
			continue
		}
		keep = append(keep, f)
	}
	l.open = keep
}

// collect ends one operation; an implicit one by a flush.
func (w *world) collect(t *rapid.T, l *modelLane, i int) {
	f := l.open[i]
	if f.implicit {
		w.flush(t, l)
		return
	}
	l.open = append(l.open[:i], l.open[i+1:]...)
	old, done, err := l.Test(f.h)
	if !done && err == nil {
		old, err = l.Wait(w.g.ctx, f.h)
	}
	noError(t, "wait", err)
	f.verify(t, old)
}

// clearWay collects what is in flight, on any lane, and not ordered with an
// operation that is about to be posted.
func (w *world) clearWay(t *rapid.T, l *modelLane, peer int, off, n uint64, write, put bool) {
	for _, other := range w.lanes {
		for i := 0; i < len(other.open); {
			f := other.open[i]
			meets := f.peer == peer && f.off < off+n && off < f.end && (f.write || write)
			if meets && !(put && f.ordered && other == l) {
				w.collect(t, other, i)
				i = 0
				continue
			}
			i++
		}
	}
}

// settle completes everything and compares the segments.
func (w *world) settle(t *rapid.T) {
	for _, l := range w.lanes {
		if l.batch {
			w.toggleBatch(t, l)
		}
		for len(l.open) > 0 {
			w.collect(t, l, len(l.open)-1)
		}
		w.flush(t, l)
	}
	for r := range w.g.ranks {
		seg := w.g.ranks[r].Segment
		noError(t, fmt.Sprintf("segment of rank %d", r), differ(seg[:w.window], w.model[r]))
		noError(t, fmt.Sprintf("rank %d beyond what was written", r), differ(seg[w.window:w.window+4096], w.rest[r]))
	}
}

func (l *modelLane) copyMax(w *world) int { return w.g.ranks[l.rank].Net.Limits().CopyMax }

func (l *modelLane) posted(f *flight) {
	if f.h != fabric.Done || f.implicit {
		l.open = append(l.open, f)
	}
}

// verify compares what an operation brought with what it had to bring.
func (f *flight) verify(t *rapid.T, old uint64) {
	if f.atomic && old != f.old {
		t.Fatalf("an atomic at offset %d of rank %d returned %#x, want %#x", f.off, f.peer, old, f.old)
	}
	if f.dst != nil {
		noError(t, fmt.Sprintf("get of %d bytes at offset %d of rank %d", len(f.dst), f.off, f.peer), differ(f.dst, f.want))
	}
}

func noError(t *rapid.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
