package bench

import (
	"math/bits"

	"github.com/ibconduit/conduit"
)

func mulHigh(x uint64, n int) int {
	hi, _ := bits.Mul64(x, uint64(n))
	return int(hi)
}

// streams read the words of the rank to the right one by one, in an order of their own.
var streams = []*Kernel{
	{
		Name: "seq", What: "reads the neighbour's words in order, 8 bytes each", Unit: "words of each rank",
		Default: Params{N: 1 << 14}, MaxN: 1 << 28, plan: planStream(inOrder),
	},
	{
		Name: "reverse", What: "the same from the last to the first", Unit: "words of each rank",
		Default: Params{N: 1 << 14}, MaxN: 1 << 28, plan: planStream(reversed),
	},
	{
		Name: "stride", What: "every stride-th word, again and again until all are read: a walk along columns",
		Unit:    "words of each rank",
		Default: Params{N: 1 << 14, Stride: 129}, MaxN: 1 << 28, plan: planStream(strided),
	},
	{
		Name: "random", What: "reads as many words at random, each equally likely", Unit: "words of each rank",
		Default: Params{N: 1 << 14}, MaxN: 1 << 28, plan: planStream(atRandom),
	},
	{
		Name: "chase", What: "follows a random cycle through all words: each read needs the one before",
		Unit:    "words of each rank",
		Default: Params{N: 1 << 14}, MaxN: 1 << 28, plan: planStream(chased),
	},
}

// order is one way through n words.
type order int

const (
	inOrder order = iota
	reversed
	strided
	atRandom
	chased
)

func planStream(o order) func(*layout, Params) program {
	return func(l *layout, p Params) program {
		return &streamProgram{p: p, order: o, words: reserve[uint64](l, p.N)}
	}
}

type streamProgram struct {
	p     Params
	order order
	words place[uint64]
	sum   uint64 // of the last run
	want  uint64
}

// value is what stands in a word.
func (s *streamProgram) value(rank, i int) uint64 {
	return mix(s.p.Seed + uint64(rank)<<40 + uint64(i))
}

// cycle is a permutation of n numbers that is one cycle (Sattolo 1986).
func cycle(n int, seed uint64) []uint64 {
	to := make([]uint64, n)
	for i := range to {
		to[i] = uint64(i)
	}
	rng := random(seed)
	for i := n - 1; i > 0; i-- {
		k := rng.below(i)
		to[i], to[k] = to[k], to[i]
	}
	return to
}

func (s *streamProgram) setup(r *rank) error {
	n := s.p.N
	s.words.stores(r, 0, n)
	if s.order == chased {
		copy(s.words.here(r), cycle(n, s.p.Seed+uint64(r.me)))
		next := cycle(n, s.p.Seed+uint64(r.next))
		for i, k := uint64(0), 0; k < n; k++ {
			i = next[i]
			s.want = fold(s.want, i)
		}
		return nil
	}
	for i := range n {
		s.words.here(r)[i] = s.value(r.me, i)
	}
	add := func(i int) { s.want = fold(s.want, s.value(r.next, i)) }
	switch s.order {
	case inOrder:
		for i := range n {
			add(i)
		}
	case reversed:
		for i := n - 1; i >= 0; i-- {
			add(i)
		}
	case strided:
		for first := range min(s.p.Stride, n) {
			for i := first; i < n; i += s.p.Stride {
				add(i)
			}
		}
	case atRandom:
		rng := random(s.p.Seed)
		for range n {
			add(rng.below(n))
		}
	}
	return nil
}

func (s *streamProgram) prepare(*rank) error { return nil }

func (s *streamProgram) run(r *rank) (err error) {
	at, n, sum := s.words.on(r.next), s.p.N, uint64(0)
	var v uint64
	switch s.order {
	case inOrder:
		for i := 0; i < n && err == nil; i++ {
			v, err = conduit.Get(r.w, at.Add(i))
			sum = fold(sum, v)
		}
	case reversed:
		for i := n - 1; i >= 0 && err == nil; i-- {
			v, err = conduit.Get(r.w, at.Add(i))
			sum = fold(sum, v)
		}
	case strided:
		for first := range min(s.p.Stride, n) {
			for i := first; i < n && err == nil; i += s.p.Stride {
				v, err = conduit.Get(r.w, at.Add(i))
				sum = fold(sum, v)
			}
		}
	case atRandom:
		rng := random(s.p.Seed)
		for k := 0; k < n && err == nil; k++ {
			v, err = conduit.Get(r.w, at.Add(rng.below(n)))
			sum = fold(sum, v)
		}
	case chased:
		for k := 0; k < n && err == nil; k++ {
			v, err = conduit.Get(r.w, at.Add(int(v)))
			sum = fold(sum, v)
		}
	}
	s.sum = sum
	return err
}

func (s *streamProgram) verify(*rank) error { return same("the checksum of the words", s.sum, s.want) }
