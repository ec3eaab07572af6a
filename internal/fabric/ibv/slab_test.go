package ibv

import (
	"math/rand/v2"
	"testing"
)

func TestSlabBlocksDoNotOverlapAndComeBack(t *testing.T) {
	if smallBlock%8 != 0 || bigBlock%8 != 0 {
		t.Fatal("atomics need blocks of 8-byte alignment")
	}
	const smalls = 64
	s := newSlab(make([]byte, slabBytes(smalls)), 1, smalls)
	rng := rand.New(rand.NewPCG(1, 2))
	owner := make([]int, slabBytes(smalls)) // of each byte: the block's serial number
	type held struct {
		block int32
		n, id int
	}
	var out []held
	id := 0
	for range 20_000 {
		n := 1 + rng.IntN(bigBlock)
		if rng.IntN(2) == 0 {
			n = 1 + rng.IntN(smallBlock)
		}
		l := s.list(n)
		if l.empty() || len(out) > 0 && rng.IntN(2) == 0 {
			if len(out) == 0 {
				t.Fatal("a list is empty, and nothing is out")
			}
			i := rng.IntN(len(out))
			for b := range out[i].n {
				if owner[int(out[i].block)+b] != out[i].id {
					t.Fatal("a block was handed out twice")
				}
				owner[int(out[i].block)+b] = 0
			}
			s.give(out[i].block)
			out[i] = out[len(out)-1]
			out = out[:len(out)-1]
			continue
		}
		id++
		h := held{l.take(), n, id}
		if len(s.bytes(h.block, n)) != n || cap(s.bytes(h.block, n)) != n {
			t.Fatal("a block's bytes reach beyond it")
		}
		for b := range n {
			if owner[int(h.block)+b] != 0 {
				t.Fatalf("blocks overlap at byte %d", int(h.block)+b)
			}
			owner[int(h.block)+b] = id
		}
		out = append(out, h)
	}
	for _, h := range out {
		s.give(h.block)
	}
	if len(s.small.free) != smalls || len(s.big.free) != bigBlocks {
		t.Fatalf("%d small and %d big blocks came back of %d and %d", len(s.small.free), len(s.big.free), smalls, bigBlocks)
	}
}

func TestBlocksAreScarceFromHalfOn(t *testing.T) {
	l := newBlockList(0, 8, 4)
	for taken, want := range []bool{false, false, true, true, true} {
		if taken > 0 {
			l.take()
		}
		if l.scarce() != want {
			t.Errorf("%d of 4 taken: scarce is %v", taken, l.scarce())
		}
	}
	if !l.empty() {
		t.Error("the list is not empty")
	}
}
