package arrays

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/racetest"
)

// world is a job of which this is rank 0, and a worker of it, over memory in this process. What it
// starts takes place when it is waited for.
type world struct {
	segments [][]byte
	begun    []func() // by handle - 1
	requests int
	fail     int // the request that fails, from 1; 0: none
	t        *Transfers
}

func newWorld(ranks, size, copyMax int) *world {
	w := &world{}
	for range ranks {
		w.segments = append(w.segments, make([]byte, size))
	}
	w.t = NewTransfers(w, w, copyMax)
	return w
}

var errPlanted = errors.New("planted")

func (w *world) Rank() int             { return 0 }
func (w *world) Size() int             { return len(w.segments) }
func (w *world) Segment() []byte       { return w.segments[0] }
func (w *world) Transfers() *Transfers { return w.t }

func (w *world) AllGather(_ context.Context, mine []byte) (all [][]byte, err error) {
	for range w.segments {
		all = append(all, mine)
	}
	return all, nil
}

func (w *world) AllAlloc(context.Context, uint64, uint64) (off uint64, ok bool, err error) {
	return 64, true, nil
}

func (w *world) AllFree(_ context.Context, off uint64) (free bool, err error) {
	return off == 64, nil
}

func (w *world) Valid(node uint32, off, n uint64) bool {
	return w.Check("", node, off, n) == nil
}

func (w *world) Check(op string, node uint32, off, n uint64) error {
	if rank := int(node) - 1; rank < 0 || rank >= len(w.segments) {
		return &fabric.RankError{Op: op, Rank: rank, Size: len(w.segments)}
	}
	return fabric.CheckRange(op, int(node)-1, off, n, uint64(len(w.segments[node-1])))
}

func (w *world) Copy(kind fabric.Kind, node uint32, off uint64, mem []byte) (bool, error) {
	if node != 1 {
		return false, nil
	}
	w.move(kind, node, off, mem)
	return true, nil
}

func (w *world) move(kind fabric.Kind, node uint32, off uint64, mem []byte) {
	if at := w.segments[node-1][off:]; kind == fabric.KindPut {
		copy(at, mem)
	} else {
		copy(mem, at)
	}
}

func (w *world) Start(kind fabric.Kind, node uint32, off uint64, mem []byte, _ fabric.Flag) (fabric.Lane, fabric.Handle, error) {
	if mapped, _ := w.Copy(kind, node, off, mem); mapped {
		return nil, fabric.Done, nil
	}
	if w.requests++; w.requests == w.fail {
		return nil, fabric.Done, errPlanted
	}
	w.begun = append(w.begun, func() { w.move(kind, node, off, mem) })
	return nil, fabric.Done + fabric.Handle(len(w.begun)), nil
}

func (w *world) Wait(_ fabric.Lane, h fabric.Handle) error {
	w.begun[h-fabric.Done-1]()
	return nil
}

func (w *world) Chain(_ fabric.Kind, start func() error) error { return start() }
func (w *world) Gathers(uint32, uint64) bool                   { return false }
func (w *world) Remote(uint32) bool                            { return true }

func (w *world) Gather([]cache.Place, int, []byte) error { return errors.New("there is no cache") }

func TestArraysNeedNoJob(t *testing.T) {
	const n = 3000
	for _, copyMax := range []int{0, 64, 1 << 20} {
		for _, how := range []Distribution{Cyclic, Block(7), Block(1000), Indefinite} {
			w := newWorld(3, 128+8*n, copyMax)
			a, err := New[uint64](t.Context(), w, n, how)
			if err != nil {
				t.Fatal(err)
			}
			want := make([]uint64, n)
			for turn := range 10 {
				if turn%5 == 4 {
					w.fail = w.requests + 1 + rand.IntN(3)
				}
				idx := rand.Perm(n)[:rand.IntN(n)]
				src := make([]uint64, len(idx))
				for k, i := range idx {
					src[k] = rand.Uint64()
					want[i] = src[k]
				}
				for err := a.PutIndexed(w, idx, src); err != nil; err = a.PutIndexed(w, idx, src) {
					if !errors.Is(err, errPlanted) {
						t.Fatal(err)
					}
				}
				dst := make([]uint64, n)
				if err := a.GetSlice(w, dst, 0); err != nil {
					t.Fatal(err)
				}
				for i := range dst {
					if dst[i] != want[i] {
						t.Fatalf("%v, packed from %d on: element %d is %#x, want %#x", how, copyMax, i, dst[i], want[i])
					}
				}
			}
			if err := a.Close(t.Context()); err != nil || a.Close(t.Context()) == nil || a.Len() != 0 {
				t.Fatalf("close: %v", err)
			}
		}
	}
}

func TestPiecesThatFollowAreOneRequest(t *testing.T) {
	w := newWorld(2, 1<<16, 64)
	a, err := New[uint64](t.Context(), w, 1000, Block(4))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.GetSlice(w, make([]uint64, 1000), 0); err != nil || w.requests != 1 {
		t.Fatalf("%d requests: %v", w.requests, err)
	}
}

func TestTransfersAllocateNothing(t *testing.T) {
	if racetest.Enabled {
		t.Skip("the race detector allocates")
	}
	w := newWorld(1, 1<<16, 64)
	a, err := New[uint64](t.Context(), w, 1000, Block(4))
	if err != nil {
		t.Fatal(err)
	}
	dst, idx := make([]uint64, 1000), rand.Perm(1000)
	if n := testing.AllocsPerRun(100, func() {
		err = errors.Join(err, a.GetSlice(w, dst, 0), a.PutSlice(w, 0, dst), a.GetIndexed(w, dst, idx), a.PutStrided(w, 0, 1, dst))
	}); n > 0 || err != nil {
		t.Fatalf("%v allocations: %v", n, err)
	}
}

func BenchmarkArrayAt(b *testing.B) {
	for _, ranks := range []int{4, 3} {
		for _, how := range []Distribution{Block(1024), Cyclic, Block(1000)} {
			b.Run(fmt.Sprintf("%v, %d ranks", how, ranks), func(b *testing.B) {
				l, err := how.layout(ranks, 8)
				if err != nil {
					b.Fatal(err)
				}
				a := &Array[float64]{layout: l, n: 1 << 20}
				var sum uint64
				for i := range b.N {
					p := a.At(i * 77 & (1<<20 - 1))
					sum += p.Offset() + uint64(p.Rank())
				}
				if sum == 1<<63 {
					b.Log(sum)
				}
			})
		}
	}
}
