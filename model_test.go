package conduit

import (
	"bytes"
	"context"
	"testing"

	"pgregory.net/rapid"
)

// model mirrors what one rank knows of its own window in every other segment.
type model struct {
	w     *Worker
	n     int
	base  uint64     // the window: [base, base+size) of every segment is only this rank's
	mem   [][]byte   // by rank
	words [][]uint64 // by rank: atomics' words behind the window
}

const (
	windowBytes = 192 << 10
	windowWords = 8
	windowSize  = windowBytes + 8*windowWords
)

// step performs one random operation, here and in the model.
func (m *model) step(t *rapid.T, ctx context.Context) {
	rank := rapid.IntRange(0, m.n-1).Draw(t, "rank")
	size := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 9000), rapid.IntRange(0, windowBytes)).Draw(t, "size")
	off := rapid.IntRange(0, windowBytes-size).Draw(t, "off")
	p := At[byte](rank, m.base+uint64(off))
	local := m.mem[rank][off : off+size]
	must := func(err error) {
		if err != nil {
			t.Fatalf("%d bytes at %d of rank %d: %v", size, off, rank, err)
		}
	}
	check := func(got []byte) {
		if !bytes.Equal(got, local) {
			t.Fatalf("%d bytes at %d of rank %d are not what was put", size, off, rank)
		}
	}
	src := make([]byte, size)
	pattern(src, rapid.IntRange(0, 1<<20).Draw(t, "seed"))
	word := rapid.IntRange(0, windowWords-1).Draw(t, "word")
	wp, wv := At[uint64](rank, m.base+windowBytes+8*uint64(word)), &m.words[rank][word]
	operand := rapid.Uint64().Draw(t, "operand")
	switch rapid.SampledFrom([]string{"put", "get", "putAsync", "getAsync", "putNBI", "chain", "add", "swap", "cas"}).Draw(t, "op") {
	case "put":
		must(PutSlice(m.w, p, src))
		copy(local, src)
	case "get":
		must(GetSlice(m.w, src, p))
		check(src)
	case "putAsync":
		op := PutSliceAsync(m.w, p, src)
		must(op.Wait(ctx))
		copy(local, src)
	case "getAsync":
		op := GetSliceAsync(m.w, src, p)
		for {
			done, err := op.Test()
			must(err)
			if done {
				break
			}
		}
		check(src)
	case "putNBI":
		must(PutSliceNBI(m.w, p, src))
		must(m.w.Flush(ctx))
		copy(local, src)
	case "chain":
		half := size / 2
		must(m.w.Chain(func() error {
			if err := PutSliceNBI(m.w, p, src[:half]); err != nil {
				return err
			}
			return PutSliceNBI(m.w, p.Add(half), src[half:])
		}))
		must(m.w.Flush(ctx))
		copy(local, src)
	case "add":
		old, err := FetchAdd(m.w, wp, operand)
		must(err)
		if old != *wv {
			t.Fatalf("fetch-add found %d, want %d", old, *wv)
		}
		*wv += operand
	case "swap":
		pr := SwapAsync(m.w, wp, operand)
		old, err := pr.Wait(ctx)
		must(err)
		if old != *wv {
			t.Fatalf("swap found %d, want %d", old, *wv)
		}
		*wv = operand
	case "cas":
		expect := *wv
		if operand%2 == 0 {
			expect++ // must fail
		}
		old, err := CompareSwap(m.w, wp, expect, operand)
		must(err)
		if old != *wv {
			t.Fatalf("compare-swap found %d, want %d", old, *wv)
		}
		if old == expect {
			*wv = operand
		}
	}
}

// Random sizes, offsets, ranks and operations, verified by content against a
// model; all ranks at a time, each in a window of its own.
func TestRandomOperationsAgreeWithAModel(t *testing.T) {
	const ranks = 3
	onFabrics(t, ranks, Config{}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		m := &model{w: w, n: ranks, base: uint64(j.Rank() * windowSize), mem: make([][]byte, ranks), words: make([][]uint64, ranks)}
		for r := range ranks {
			m.mem[r], m.words[r] = make([]byte, windowBytes), make([]uint64, windowWords)
		}
		rapid.Check(t, func(rt *rapid.T) {
			for range 8 {
				m.step(rt, ctx)
			}
		})
		return w.Barrier(ctx)
	}))
}
