package fabrictest

import (
	"errors"
	"fmt"
	"math"

	"github.com/ibconduit/conduit/internal/fabric"
)

// bounds tries ranges that leave the segment, in ways that overflow and ways
// that do not. The wire must not see them: nothing changes, nothing is counted.
func (g *group) bounds() {
	l := g.lane(0)
	const top = math.MaxUint64
	for peer := range g.ranks {
		seg := g.ranks[peer].Segment
		size := uint64(len(seg))
		copy(seg[size-16:], "guard guard guar")
		before := l.Counters().Load()
		for _, r := range []struct{ off, n uint64 }{
			{size, 1}, {size - 1, 2}, {0, size + 1}, {size + 1, 0}, {size - 7, 8}, {size + 4096, 1},
			{top, 0}, {top, 1}, {top, 2}, {top - 7, 8}, {top - 7, 16}, {1 << 63, 8}, {top - size + 1, size},
		} {
			b := make([]byte, r.n)
			_, err := l.Put(peer, r.off, b, 0)
			g.outside("put", err, peer, r.off, r.n, size)
			_, err = l.Get(peer, r.off, b, 0)
			g.outside("get", err, peer, r.off, r.n, size)
			_, err = l.Put(peer, r.off, b, fabric.Implicit)
			g.outside("implicit put", err, peer, r.off, r.n, size)
		}
		for _, off := range []uint64{size, size - 7, size + 8, top - 7, top &^ 7, 1 << 63} {
			_, _, err := l.Atomic(peer, off, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
			g.outside("atomic", err, peer, off, 8, size)
		}
		g.must("flush after refusals", l.Flush(g.ctx))
		g.same("end of the segment", seg[size-16:], []byte("guard guard guar"))
		if after := l.Counters().Load(); after.Puts != before.Puts || after.Gets != before.Gets ||
			after.Atomics != before.Atomics {
			g.Fatalf("refused operations were counted as posted: %+v, before %+v", after, before)
		}
		// The last bytes themselves are fine.
		g.put(l, peer, size-1, []byte{1})
		g.get(l, peer, size-8, 8)
		g.amo(l, peer, size-size%8-8, fabric.Atomic{})
	}
}

func (g *base) outside(what string, err error, peer int, off, n, size uint64) {
	g.Helper()
	var be *fabric.BoundsError
	if !errors.As(err, &be) {
		g.Fatalf("%s of %d bytes at %d of a segment of %d: got %v, want a *BoundsError", what, n, off, size, err)
	}
	if be.Rank != peer || be.Off != off || be.Len != n || be.Size != size || be.Op == "" {
		g.Fatalf("%s of %d bytes at %d of rank %d, size %d: the error is %+v", what, n, off, peer, size, *be)
	}
}

// badAtomics must not change the word.
func (g *group) badAtomics() {
	l := g.lane(0)
	seg := g.ranks[1].Segment
	clear(seg[:32])
	for a := range everyAtomic {
		for off := uint64(1); off < 16; off++ {
			if off%a.Type.Size() == 0 {
				continue
			}
			for _, f := range []fabric.Flag{0, fabric.Implicit} {
				a.Operand, a.Compare = 7, 0
				_, _, err := l.Atomic(1, off, a, f)
				var ae *fabric.AlignError
				if !errors.As(err, &ae) || ae.Rank != 1 || ae.Off != off || ae.Align != a.Type.Size() {
					g.Fatalf("%v of %v at offset %d: got %v, want an *AlignError", a.Op, a.Type, off, err)
				}
			}
		}
	}
	for op := range 256 {
		for _, t := range []int{0, 1, 2, 3, 4, 5, 255} {
			a := fabric.Atomic{Op: fabric.AtomicOp(op), Type: fabric.WordType(t), Operand: 7}
			if a.Valid() {
				continue
			}
			if _, _, err := l.Atomic(1, 8, a, 0); !errors.Is(err, fabric.ErrNoAtomic) {
				g.Fatalf("%v of %v: got %v, want ErrNoAtomic", a.Op, a.Type, err)
			}
		}
	}
	g.must("flush", l.Flush(g.ctx))
	g.same("segment after refused atomics", seg[:32], make([]byte, 32))
}

func (g *group) badRanks() {
	l := g.lane(0)
	for _, peer := range []int{-1, g.o.Ranks, math.MinInt, math.MaxInt, math.MaxInt32} {
		_, perr := l.Put(peer, 0, []byte{1}, 0)
		_, gerr := l.Get(peer, 0, make([]byte, 1), 0)
		_, _, aerr := l.Atomic(peer, 0, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, 0)
		for op, err := range map[string]error{"put": perr, "get": gerr, "atomic": aerr} {
			var re *fabric.RankError
			if !errors.As(err, &re) || re.Rank != peer || re.Size != g.o.Ranks {
				g.Fatalf("%s to rank %d of %d: got %v, want a *RankError", op, peer, g.o.Ranks, err)
			}
		}
		if l.Mapped(peer) != nil {
			g.Fatalf("memory of rank %d is mapped", peer)
		}
		if !l.Quiet(peer) {
			g.Fatalf("something is in flight to rank %d, where there is nothing", peer)
		}
		g.ranks[0].Net.PeerDown(peer, errors.New("no such rank")) // must not crash
	}
}

// hostileAddresses must be answered with a reason, whatever they are.
func (g *group) hostileAddresses() {
	n := g.ranks[0].Net
	addr := append([]byte{}, g.ranks[1].Net.Addr()...)
	refused := func(what string, rank int, a []byte) {
		g.Helper()
		if err := n.Reach(rank, a); err == nil {
			g.Fatalf("%s was accepted", what)
		}
	}
	for k := range addr {
		refused(fmt.Sprintf("an address cut to %d bytes", k), 1, addr[:k])
	}
	refused("no address", 1, nil)
	refused("a long address", 1, append(append([]byte{}, addr...), g.random(4096)...))
	for k := range 200 {
		refused("a random address", 1, g.random(k))
		refused("a random address", 1, g.random(len(addr)))
	}
	refused("an address for rank -1", -1, addr)
	refused("an address for a rank too many", g.o.Ranks, addr)
	if err := n.Reach(1, nil); !errors.Is(err, fabric.ErrUnreachable) {
		g.Fatalf("the reason is %v, want one that wraps ErrUnreachable", err)
	}
	for k := range addr {
		a := append([]byte{}, addr...)
		a[k] ^= byte(1 + g.rng.IntN(255))
		_ = n.Reach(1, a) // may be meaningful; must not crash
	}
}
