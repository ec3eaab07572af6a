package fabrictest

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// alignments puts and gets every length up to a few words at every alignment
// of source and target. A byte beside the target must not change.
func (g *group) alignments() {
	l := g.lane(0)
	seg := g.ranks[1].Segment
	buf := g.random(64)
	want := make([]byte, 64)
	for n := range 26 {
		for from := range 8 {
			for to := 8; to < 16; to++ {
				src := buf[from : from+n]
				clear(seg[:64])
				clear(want)
				copy(want[to:], src)
				g.put(l, 1, uint64(to), src)
				g.same("segment after a put", seg[:64], want)
				dst := append([]byte{}, want...) // same surroundings, other middle
				for i := range n {
					dst[from+i] = ^src[i]
				}
				check := append([]byte{}, dst...)
				copy(check[from:], src)
				h, err := l.Get(1, uint64(to), dst[from:from+n], 0)
				g.finish(l, "get", h, err)
				g.same("buffer after a get", dst, check)
			}
		}
	}
}

// largeTransfers moves half a segment, at an odd offset, to every rank.
func (g *group) largeTransfers() {
	l := g.lane(0)
	data := g.random(g.o.SegmentSize / 2)
	for peer := range g.ranks {
		g.put(l, peer, 4097, data)
		g.same("segment", g.ranks[peer].Segment[4097:4097+len(data)], data)
		g.same("buffer", g.get(l, peer, 4097, len(data)), data)
	}
}

// zeroLengths are legal up to the end of the segment, but not beyond.
func (g *group) zeroLengths() {
	l := g.lane(0)
	for peer := range g.ranks {
		size := uint64(len(g.ranks[peer].Segment))
		for _, off := range []uint64{0, 1, size / 2, size} {
			for _, b := range [][]byte{nil, {}} {
				g.put(l, peer, off, b)
				g.get(l, peer, off, 0)
				h, err := l.Put(peer, off, b, fabric.Implicit)
				if err != nil || h != fabric.Done {
					g.Fatalf("implicit put of nothing: handle %d, %v", h, err)
				}
			}
		}
	}
	g.must("flush", l.Flush(g.ctx))
	g.must("empty batch", l.Post(new(fabric.Batch), nil, 0))
}

// mapped memory, where there is any, is what puts and gets see.
func (g *group) mapped() {
	l := g.lane(0)
	for peer := range g.ranks {
		m := l.Mapped(peer)
		if m == nil {
			continue
		}
		if len(m) != len(g.ranks[peer].Segment) {
			g.Fatalf("%d bytes of rank %d are mapped, its segment has %d", len(m), peer, len(g.ranks[peer].Segment))
		}
		data := g.random(1000)
		copy(m[3:], data)
		g.same("get of what was stored", g.get(l, peer, 3, len(data)), data)
		g.put(l, peer, 2000, data)
		g.same("load of what was put", m[2000:3000], data)
		if g.ranks[0].Net.Limits().CPUAtomics {
			g.localAtomics(l, peer)
		}
	}
}

// localAtomics adds through a lane and with the processor at the same time.
func (g *group) localAtomics(l fabric.Lane, peer int) {
	const off = 4096
	word := wordAt(g.ranks[peer].Segment, off)
	*word = 0
	var local sync.WaitGroup
	local.Go(func() {
		for range g.o.Rounds {
			atomic.AddUint64(word, 1)
		}
	})
	for range g.o.Rounds {
		g.amo(l, peer, off, fabric.Atomic{Operand: 1})
	}
	local.Wait()
	if got := atomic.LoadUint64(word); got != uint64(2*g.o.Rounds) {
		g.Fatalf("%d additions gave %d", 2*g.o.Rounds, got)
	}
}

// wordAt is the 64-bit word at an aligned offset of a segment.
func wordAt(seg []byte, off int) *uint64 { return (*uint64)(unsafe.Pointer(&seg[off])) }

func word8(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
