package bench

import (
	"fmt"

	"github.com/ibconduit/conduit"
)

// handoff is message passing: a rank fills a block of its own memory, announces it to the neighbour
// by a word in the neighbour's, and waits until that has read the block. All ranks do so at the
// same time, around the ring. Nothing is read twice between two fences: it shows what they cost.
var handoff = &Kernel{
	Name: "handoff", What: "a block is written, announced, waited for and read: what release and acquire cost",
	Unit:    "blocks of each rank, of 16 words",
	Default: Params{N: 1 << 10}, MaxN: 1 << 24,
	plan: func(l *layout, p Params) program {
		return &ring{p: p, block: reserve[uint64](l, handoffWords), ready: reserve[uint64](l, 1),
			taken: reserve[uint64](l, 1)}
	},
}

const handoffWords = 16

type ring struct {
	p            Params
	block        place[uint64]
	ready, taken place[uint64] // how many blocks the left neighbour has, and the right one has read
	sum          uint64
}

func (h *ring) value(rank, round, i int) uint64 {
	return mix(h.p.Seed + uint64(rank)<<48 + uint64(round)<<8 + uint64(i))
}

func (h *ring) setup(*rank) error { return nil }

func (h *ring) prepare(r *rank) error {
	clear(h.block.here(r))
	h.ready.here(r)[0], h.taken.here(r)[0], h.sum = 0, 0, 0
	h.ready.stores(r, 0, 1)
	h.taken.stores(r, 0, 1)
	return nil
}

func (h *ring) run(r *rank) error {
	left := (r.me + r.n - 1) % r.n
	mine, theirs := h.block.here(r), h.block.on(left)
	for round := 1; round <= h.p.N; round++ {
		h.block.stores(r, 0, handoffWords)
		for i := range mine {
			mine[i] = h.value(r.me, round, i)
		}
		if err := h.tell(r, h.ready.on(r.next), round); err != nil {
			return err
		}
		if err := r.wait(h.ready, round); err != nil {
			return err
		}
		for i := range handoffWords {
			v, err := conduit.Get(r.w, theirs.Add(i))
			if err != nil {
				return err
			}
			h.sum = fold(h.sum, v)
		}
		if err := h.tell(r, h.taken.on(left), round); err != nil {
			return err
		}
		if err := r.wait(h.taken, round); err != nil {
			return err
		}
	}
	return nil
}

// tell writes a word: its owner waits for.
func (h *ring) tell(r *rank, at conduit.Ptr[uint64], round int) error {
	if err := conduit.Put(r.w, at, uint64(round)); err != nil {
		return err
	}
	return r.flush()
}

func (h *ring) verify(r *rank) error {
	left := (r.me + r.n - 1) % r.n
	var want uint64
	for round := 1; round <= h.p.N; round++ {
		for i := range handoffWords {
			want = fold(want, h.value(left, round, i))
		}
	}
	if h.sum != want {
		return fmt.Errorf("the checksum of what rank %d handed over is %#x, want %#x", left, h.sum, want)
	}
	return nil
}
