package fabrictest

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/ibconduit/conduit/internal/fabric"
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
	open  []*flight // posted and not collected
	batch fabric.Batch
	mem   *fabric.Memory
	used  uint64 // bytes of mem that pieces in flight use
	told  fabric.Completions
	tags  uint64 // used so far
	ended map[fabric.Tag]bool
}

// flight is an operation in flight.
type flight struct {
	h        fabric.Handle
	implicit bool
	peer     int
	off, end uint64
	write    bool
	ordered  bool       // a put, in order with other puts of its lane to its peer
	tag      fabric.Tag // of its group, or 0
	dst      []byte     // of a get
	src      []byte     // of a put whose source must not change yet
	want     []byte     // of a get
	atomic   bool
	old      uint64 // that an atomic must return
	got      uint64 // where an atomic of a batch lays it
}

const laneCount = 3

// randomOperations compares random sequences of everything a lane can do with
// a model. Operations that the contract does not order are not allowed to meet:
// the one in flight is collected first.
func (g *group) randomOperations() {
	w := &world{g: g, window: min(64<<10, g.o.SegmentSize/2)}
	for i := range laneCount {
		l := &modelLane{Lane: g.lane(i % g.o.Ranks), rank: i % g.o.Ranks, ended: map[fabric.Tag]bool{}}
		l.mem = g.register(l, 2*w.window)
		w.lanes = append(w.lanes, l)
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
		_ = l.Flush(w.g.ctx)
		for _, f := range l.open {
			if !f.implicit && f.tag == 0 {
				_, _ = l.Wait(w.g.ctx, f.h)
			}
		}
		l.open, l.used = nil, 0
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
	switch rapid.SampledFrom([]string{"put", "put", "put", "get", "get", "atomic", "atomic", "batch", "flush", "collect",
		"poll"}).Draw(t, "what") {
	case "put":
		w.put(t, l)
	case "get":
		w.get(t, l)
	case "atomic":
		w.atomic(t, l)
	case "batch":
		w.postBatch(t, l)
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
	return rapid.SampledFrom([]fabric.Flag{0, 0, fabric.Implicit, fabric.Blocking,
		fabric.Implicit | fabric.Blocking}).Draw(t, "flag")
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
	l.posted(&flight{h: h, implicit: f&fabric.Implicit != 0, peer: peer, off: off, end: off + uint64(n), write: true,
		ordered: true, src: src})
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
	fl := &flight{h: h, implicit: f&fabric.Implicit != 0, peer: peer, off: off &^ 7, end: off&^7 + 8, write: true,
		atomic: f&fabric.Implicit == 0, old: old}
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

// postBatch posts pieces that do not meet, in groups, and perhaps some without a tag.
func (w *world) postBatch(t *rapid.T, l *modelLane) {
	l.batch.Reset()
	var all []*flight
	group := 0
	for range rapid.IntRange(0, 12).Draw(t, "pieces") {
		if f := w.piece(t, l, all); f != nil {
			all = append(all, f)
		}
		switch rapid.IntRange(0, 4).Draw(t, "tag") {
		case 0:
			l.batch.Untag()
			group = len(all)
		case 1, 2:
			l.tags++
			for ; group < len(all); group++ {
				all[group].tag, all[group].implicit = fabric.Tag(l.tags), false
			}
			l.batch.Tag(fabric.Tag(l.tags))
		}
	}
	noError(t, "post", l.Post(&l.batch, &l.told, drawFlag(t)))
	for _, f := range all {
		if f.src != nil && len(f.src) <= l.copyMax(w) {
			fill(f.src, 0xA5)
		}
	}
	l.open = append(l.open, all...)
}

// piece adds a piece to the lane's batch, unless it meets one of the batch.
func (w *world) piece(t *rapid.T, l *modelLane, batch []*flight) *flight {
	peer, off, n := w.place(t)
	kind := rapid.SampledFrom([]string{"put", "get", "put from", "get into", "atomic"}).Draw(t, "kind")
	if kind == "atomic" {
		off, n = off&^7%uint64(w.window-8), 8
	}
	f := &flight{implicit: true, peer: peer, off: off, end: off + uint64(n), write: kind != "get" && kind != "get into"}
	for _, o := range batch {
		if o.peer == peer && o.off < f.end && off < o.end {
			return nil
		}
	}
	w.clearWay(t, l, peer, off, uint64(n), f.write, false)
	at, mem := l.used, l.mem.Bytes()
	if kind == "put from" || kind == "get into" {
		if at+uint64(n) > uint64(len(mem)) {
			return nil
		}
		l.used += uint64(n)
	}
	model := w.model[peer][off:f.end]
	switch kind {
	case "put", "put from":
		src := make([]byte, n)
		seed := rapid.Byte().Draw(t, "seed")
		for i := range src {
			src[i] = seed + byte(i) + byte(i>>8)
		}
		copy(model, src)
		if kind == "put" {
			f.src = src
			l.batch.Put(peer, off, src)
		} else {
			copy(mem[at:], src)
			l.batch.PutFrom(peer, off, l.mem, at, uint64(n))
		}
	case "get":
		f.dst, f.want = make([]byte, n), append([]byte{}, model...)
		l.batch.Get(peer, off, f.dst)
	case "get into":
		f.dst, f.want = mem[at:at+uint64(n)], append([]byte{}, model...)
		l.batch.GetInto(peer, off, l.mem, at, uint64(n))
	case "atomic":
		a := rapid.SampledFrom(slices.Collect(everyAtomic)).Draw(t, "atomic")
		word := model[:a.Type.Size()]
		f.atomic, f.old = true, loadWord(word)
		a.Operand = rapid.Uint64().Draw(t, "operand")
		a.Compare = rapid.SampledFrom([]uint64{f.old, f.old + 1}).Draw(t, "compare")
		storeWord(word, a.Apply(f.old))
		l.batch.Atomic(peer, off, a, &f.got)
	}
	return f
}

// await waits until a group was told.
func (l *modelLane) await(t *rapid.T, w *world, tag fabric.Tag) {
	for !l.ended[tag] {
		noError(t, "await", l.Await(w.g.ctx, &l.told))
		var c [3]fabric.Completion
		for _, c := range c[:l.told.Take(c[:])] {
			noError(t, "group", c.Err)
			if l.ended[c.Tag] || c.Tag == 0 || uint64(c.Tag) > l.tags {
				t.Fatalf("group %d of %d was told twice, or never posted", c.Tag, l.tags)
			}
			l.ended[c.Tag] = true
		}
	}
}

// flush completes everything; handles stay collectable.
func (w *world) flush(t *rapid.T, l *modelLane) {
	noError(t, "flush", l.Flush(w.g.ctx))
	keep := l.open[:0]
	for _, f := range l.open {
		if f.implicit || f.tag != 0 || f.h == fabric.Done {
			if f.tag != 0 {
				l.await(t, w, f.tag)
			}
			f.verify(t, f.got)
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
	if f.tag != 0 {
		l.await(t, w, f.tag)
		f.verify(t, f.got)
		return
	}
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
		for len(l.open) > 0 {
			w.collect(t, l, len(l.open)-1)
		}
		w.flush(t, l)
		l.used = 0
		if l.told.InFlight() != 0 {
			t.Fatalf("%d groups are in flight after a flush", l.told.InFlight())
		}
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
