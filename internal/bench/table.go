package bench

import (
	"fmt"

	"github.com/ibconduit/conduit"
)

// tables are read and changed at random over all ranks.
var tables = []*Kernel{
	{
		Name: "gups", What: "random updates, read, xor and write, of a table over all ranks (HPC Challenge RandomAccess)",
		Unit:    "words of each rank, and updates by it",
		Default: Params{N: 1 << 13}, MaxN: 1 << 27,
		plan: func(l *layout, p Params) program { return &gups{p: p, table: reserveSpread[uint64](l, p.N*l.ranks)} },
	},
	{
		Name: "indexgather", What: "reads a table over all ranks by a list of random indices (bale)",
		Unit:     "words of each rank, and indices of it",
		Variants: []string{"words", "prefetch"},
		Default:  Params{N: 1 << 13}, MaxN: 1 << 27,
		plan: func(l *layout, p Params) program {
			return &indexGather{p: p, table: reserveSpread[uint64](l, p.N*l.ranks)}
		},
	},
	{
		Name: "histogram", What: "adds to a table over all ranks by a list of random indices, by atomics (bale)",
		Unit:    "words of each rank, and indices of it",
		Default: Params{N: 1 << 13}, MaxN: 1 << 27,
		plan: func(l *layout, p Params) program {
			return &histogram{p: p, table: reserveSpread[uint64](l, p.N*l.ranks)}
		},
	},
}

// gups updates words at random. Each rank updates those whose index is its own modulo the ranks:
// no two ranks have one word, and nearly every line has words of all of them. So the result is
// exact, and lost bytes of neighbours show.
type gups struct {
	p     Params
	table spread[uint64]
}

// update is the k-th update of a rank.
func (g *gups) update(rng *random, rank, ranks int) (index int, v uint64) {
	v = rng.next()
	return mulHigh(v, g.p.N)*ranks + rank, v
}

func (g *gups) stream(rank int) *random {
	s := random(mix(g.p.Seed + uint64(rank)))
	return &s
}

func (g *gups) setup(r *rank) error { g.table.bind(r); return nil }

func (g *gups) prepare(r *rank) error {
	lo, _ := g.table.mine(r.me)
	g.table.stores(r, 0, g.table.per)
	for i := range g.table.here(r) {
		g.table.here(r)[i] = uint64(lo + i)
	}
	return nil
}

func (g *gups) run(r *rank) error {
	rng := g.stream(r.me)
	for range g.p.N {
		i, v := g.update(rng, r.me, r.n)
		old, err := g.table.get(r.w, i)
		if err != nil {
			return err
		}
		if err := g.table.put(r.w, i, old^v); err != nil {
			return err
		}
	}
	return nil
}

func (g *gups) verify(r *rank) error {
	lo, hi := g.table.mine(r.me)
	want := make([]uint64, hi-lo)
	for i := range want {
		want[i] = uint64(lo + i)
	}
	for rank := range r.n {
		rng := g.stream(rank)
		for range g.p.N {
			if i, v := g.update(rng, rank, r.n); i >= lo && i < hi {
				want[i-lo] ^= v
			}
		}
	}
	g.table.loads(r, 0, g.table.per)
	for i, v := range g.table.here(r) {
		if v != want[i] {
			return fmt.Errorf("word %d is %#x, want %#x", lo+i, v, want[i])
		}
	}
	return nil
}

// indexGather reads element index[k] for all k.
type indexGather struct {
	p     Params
	table spread[uint64]
	index []int
	got   []uint64
	offs  [][]int // of each rank, that a prefetch asks for
}

func (g *indexGather) setup(r *rank) error {
	g.table.bind(r)
	lo, _ := g.table.mine(r.me)
	g.table.stores(r, 0, g.table.per)
	for i := range g.table.here(r) {
		g.table.here(r)[i] = mix(g.p.Seed ^ uint64(lo+i))
	}
	rng := random(mix(g.p.Seed + uint64(r.me)))
	g.offs = make([][]int, r.n)
	g.index, g.got = make([]int, g.p.N), make([]uint64, g.p.N)
	for k := range g.index {
		g.index[k] = rng.below(g.table.total)
	}
	return nil
}

func (g *indexGather) prepare(*rank) error { clear(g.got); return nil }

func (g *indexGather) run(r *rank) (err error) {
	for k, i := range g.index {
		if k%gatherAhead == 0 && g.p.Variant == "prefetch" {
			if err := g.ahead(r, g.index[k:min(k+gatherAhead, len(g.index))]); err != nil {
				return err
			}
		}
		if g.got[k], err = g.table.get(r.w, i); err != nil {
			return err
		}
	}
	return nil
}

// gatherAhead is how many indices the prefetch variant tells the cache of at a time.
const gatherAhead = 16

// ahead begins to fetch what is not this rank's.
func (g *indexGather) ahead(r *rank, index []int) error {
	for rank := range g.offs {
		g.offs[rank] = g.offs[rank][:0]
	}
	for _, i := range index {
		g.offs[i/g.table.per] = append(g.offs[i/g.table.per], i%g.table.per)
	}
	for rank, offs := range g.offs {
		if rank == r.me || len(offs) == 0 {
			continue
		}
		if err := conduit.PrefetchIndexed(r.w, g.table.on(rank), offs); err != nil {
			return err
		}
	}
	return nil
}

func (g *indexGather) verify(*rank) error {
	for k, i := range g.index {
		if want := mix(g.p.Seed ^ uint64(i)); g.got[k] != want {
			return fmt.Errorf("element %d is %#x, want %#x", i, g.got[k], want)
		}
	}
	return nil
}

// histogram counts how often an index is drawn. A get after each few adds looks at a word that has
// been added to, of which a cache may not have kept an older value.
type histogram struct {
	p     Params
	table spread[uint64]
	old   error // a get did not see the add before it
}

const histogramLook = 64

func (h *histogram) setup(r *rank) error { h.table.bind(r); return nil }

func (h *histogram) prepare(r *rank) error {
	clear(h.table.here(r))
	h.table.stores(r, 0, h.table.per)
	h.old = nil
	return nil
}

func (h *histogram) stream(rank int) *random {
	s := random(mix(h.p.Seed + 7 + uint64(rank)))
	return &s
}

func (h *histogram) run(r *rank) error {
	rng := h.stream(r.me)
	for k := range h.p.N {
		i := rng.below(h.table.total)
		owner := i / h.table.per
		at := h.table.base[owner].Add(i % h.table.per)
		if err := conduit.Add(r.w, at, 1); err != nil {
			return err
		}
		if k%histogramLook != 0 || owner == r.me {
			continue
		}
		if err := r.w.Flush(r.ctx); err != nil {
			return err
		}
		v, err := conduit.Get(r.w, at)
		if err != nil {
			return err
		}
		if v == 0 {
			h.old = fmt.Errorf("word %d is 0 after this rank has added to it", i)
		}
	}
	return nil
}

func (h *histogram) verify(r *rank) error {
	if h.old != nil {
		return h.old
	}
	lo, hi := h.table.mine(r.me)
	want := make([]uint64, hi-lo)
	for rank := range r.n {
		rng := h.stream(rank)
		for range h.p.N {
			if i := rng.below(h.table.total); i >= lo && i < hi {
				want[i-lo]++
			}
		}
	}
	h.table.loads(r, 0, h.table.per)
	for i, v := range h.table.here(r) {
		if v != want[i] {
			return fmt.Errorf("word %d is %d, want %d", lo+i, v, want[i])
		}
	}
	return nil
}
