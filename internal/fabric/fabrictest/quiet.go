package fabrictest

import (
	"bytes"

	"github.com/ibconduit/conduit/internal/fabric"
)

// quiet: a lane that is quiet to a peer has done all that was asked of it, and becomes quiet by
// later operations that are complete, which may overtake others, or by a flush.
func (g *group) quiet() {
	const word = 4096
	l, seg := g.lane(0), g.ranks[1].Segment
	others := g.o.Ranks > 2
	calm := func(when string) {
		g.Helper()
		if !l.Quiet(1) || !l.Quiet(-1) {
			g.Fatalf("%s: quiet to rank 1 %v, to all %v", when, l.Quiet(1), l.Quiet(-1))
		}
	}
	calm("a new lane")
	// An implicit operation has happened where the lane says that it is quiet.
	*wordAt(seg, word) = 0
	sum, dst := uint64(0), make([]byte, 1024)
	for i := range g.o.Rounds {
		src := g.random(len(dst))
		_, err := l.Put(1, 0, src, fabric.Implicit)
		g.must("put", err)
		if l.Quiet(1) && !bytes.Equal(seg[:len(src)], src) {
			g.Fatalf("round %d: quiet, and a put is not in the segment", i)
		}
		_, _, err = l.Atomic(1, word, fabric.Atomic{Op: fabric.FetchAdd, Operand: uint64(i)}, fabric.Implicit)
		g.must("fetch-add", err)
		if sum += uint64(i); l.Quiet(-1) && *wordAt(seg, word) != sum {
			g.Fatalf("round %d: quiet, and an atomic has not happened: %d, want %d", i, *wordAt(seg, word), sum)
		}
		g.must("flush before the get", l.Flush(g.ctx))
		_, err = l.Get(1, 0, dst, fabric.Implicit)
		g.must("get", err)
		if l.Quiet(1) && !bytes.Equal(dst, src) {
			g.Fatalf("round %d: quiet, and a get has not come", i)
		}
		if all := l.Quiet(-1); all && !l.Quiet(1) {
			g.Fatalf("round %d: quiet to all, and not to rank 1", i)
		}
		switch i % 2 {
		case 0:
			for !l.Quiet(1) || !l.Quiet(-1) {
				g.get(l, 1, word, 8)
				g.must("a lane that does not become quiet", g.ctx.Err())
			}
		case 1:
			g.must("flush", l.Flush(g.ctx))
			calm("after a flush")
		}
		if others { // what is on the way to another rank is not to this one
			_, err := l.Put(2, 0, src, fabric.Implicit)
			g.must("put to rank 2", err)
			if !l.Quiet(1) {
				g.Fatalf("round %d: not quiet to rank 1 for a put to rank 2", i)
			}
			if l.Quiet(-1) && !l.Quiet(2) {
				g.Fatalf("round %d: quiet to all, and not to rank 2", i)
			}
			g.must("flush", l.Flush(g.ctx))
			calm("after a flush of all")
		}
	}
}
