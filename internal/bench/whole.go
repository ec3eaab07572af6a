package bench

import (
	"fmt"

	"github.com/ibconduit/conduit"
)

// whole are what a cache must not cost anything.
var whole = []*Kernel{
	{
		Name: "bulk", What: "writes blocks of 64 KiB to the neighbour and reads them back", Unit: "blocks of each rank",
		Default: Params{N: 32}, MaxN: 1 << 16,
		plan: func(l *layout, p Params) program {
			return &bulk{p: p, blocks: reserve[uint64](l, p.N*blockWords)}
		},
	},
	{
		Name: "all-local", What: "reads and writes words of this rank only, through the same calls",
		Unit:    "words of each rank",
		Default: Params{N: 1 << 16}, MaxN: 1 << 28,
		plan: func(l *layout, p Params) program { return &allLocal{p: p, words: reserve[uint64](l, p.N)} },
	},
}

// blockWords is 64 KiB.
const blockWords = 64 << 10 / 8

type bulk struct {
	p         Params
	blocks    place[uint64]
	out, back []uint64
}

func (b *bulk) setup(r *rank) error {
	b.out, b.back = make([]uint64, b.p.N*blockWords), make([]uint64, b.p.N*blockWords)
	for i := range b.out {
		b.out[i] = mix(b.p.Seed + uint64(r.me)<<40 + uint64(i))
	}
	return nil
}

func (b *bulk) prepare(r *rank) error {
	clear(b.blocks.here(r))
	b.blocks.stores(r, 0, b.blocks.n)
	clear(b.back)
	return nil
}

func (b *bulk) run(r *rank) error {
	at := b.blocks.on(r.next)
	for k := 0; k < len(b.out); k += blockWords {
		if err := conduit.PutSlice(r.w, at.Add(k), b.out[k:k+blockWords]); err != nil {
			return err
		}
	}
	for k := 0; k < len(b.out); k += blockWords {
		if err := conduit.GetSlice(r.w, b.back[k:k+blockWords], at.Add(k)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bulk) verify(r *rank) error {
	left := (r.me + r.n - 1) % r.n
	b.blocks.loads(r, 0, b.blocks.n)
	for i, v := range b.blocks.here(r) {
		if want := mix(b.p.Seed + uint64(left)<<40 + uint64(i)); v != want {
			return fmt.Errorf("word %d from rank %d is %#x, want %#x", i, left, v, want)
		}
		if b.back[i] != b.out[i] {
			return fmt.Errorf("word %d read back is %#x, want %#x", i, b.back[i], b.out[i])
		}
	}
	return nil
}

type allLocal struct {
	p     Params
	words place[uint64]
	sum   uint64
}

func (a *allLocal) setup(*rank) error { return nil }

func (a *allLocal) prepare(r *rank) error {
	for i := range a.words.here(r) {
		a.words.here(r)[i] = mix(a.p.Seed + uint64(i))
	}
	return nil
}

func (a *allLocal) run(r *rank) error {
	at := a.words.on(r.me)
	a.sum = 0
	for i := range a.p.N {
		v, err := conduit.Get(r.w, at.Add(i))
		if err != nil {
			return err
		}
		a.sum = fold(a.sum, v)
		if err := conduit.Put(r.w, at.Add(i), v+1); err != nil {
			return err
		}
	}
	return nil
}

func (a *allLocal) verify(r *rank) error {
	var want uint64
	for i, v := range a.words.here(r) {
		old := mix(a.p.Seed + uint64(i))
		want = fold(want, old)
		if v != old+1 {
			return fmt.Errorf("word %d is %#x, want %#x", i, v, old+1)
		}
	}
	return same("the checksum of the words", a.sum, want)
}
