package cache_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"slices"
)

// edgeTests are about ranges that cross, begin or end somewhere unusual.
var edgeTests = []litmus{
	{number: 25, name: "ranges over several pages", ranks: 3, f: func(x *trial) {
		flag := x.flag(2, 0)
		l := location{x.home, x.loc(0).off, int(x.page)*(1+x.rng.IntN(2)) + x.rng.IntN(int(x.page))}
		inner := l.part(l.n/3, l.n/2)
		x.thread(0, func(w *worker) {
			if w.rng.IntN(2) == 0 {
				w.get(l.part(l.n/2, 9))
			}
			w.put(l, 1)
			w.put(inner, 2)
			w.sees(inner, 2)
			w.release()
			w.set(flag, 1)
		})
		x.thread(1, func(w *worker) {
			if w.rng.IntN(2) == 0 {
				w.glance(l)
			}
			w.wait(flag, 1)
			w.acquire()
			got := w.get(l)
			w.shows(inner, got[l.n/3:][:inner.n], 2)
			w.shows(l, got[:l.n/3], 1)
			w.shows(l, got[l.n/3+inner.n:], 1)
		})
	}},
	{number: 26, name: "the last bytes of a segment", ranks: 2, far: true, f: func(x *trial) {
		x.bytes = 16*x.page + []uint64{8, 40, x.page - 8}[x.rng.IntN(3)]
		x.thread(0, func(w *worker) {
			end := location{w.home, w.bytes - 8, 8}
			for off := w.bytes - 3*w.page&^7; off < w.bytes; off += 8 {
				w.sees(location{w.home, off, 8}, 0)
			}
			w.refuses(location{w.home, w.bytes - 4, 8})
			w.refuses(location{w.home, w.bytes, 1})
			w.acquire()
			w.tries(location{w.home, w.bytes - 16, 64}) // a prefetch may end where the segment does
			w.sees(end.part(7, 1), 0)
			w.put(end.part(7, 1), 1)
			w.sees(end, 0, 0, 0, 0, 0, 0, 0, 1)
		})
		x.inspect(func(home *worker) { home.holds(location{home.home, home.bytes - 1, 1}, 1) })
	}},
	{number: 27, name: "the first bytes, from behind", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			for off := 3*w.page - 8; off != 56; off -= 8 {
				w.sees(location{w.home, off, 8}, 0)
			}
			for off := 63; off >= 0; off-- { // flags: zero
				if b := w.read(location{w.home, uint64(off), 1}); b[0] != 0 {
					w.fail("byte %d is %d, want 0", off, b[0])
				}
			}
			w.tries(location{w.home, 0, 1})
			w.write(location{w.home, 0, 3}, []byte{1, 2, 3})
			if b := w.read(location{w.home, 0, 4}); !bytes.Equal(b, []byte{1, 2, 3, 0}) {
				w.fail("the first bytes are %v", b)
			}
		})
		x.inspect(func(home *worker) {
			if !bytes.Equal(home.mem[:4], []byte{1, 2, 3, 0}) {
				home.fail("the first bytes are %v", home.mem[:4])
			}
		})
	}},
	{number: 28, name: "offsets near 2^64", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			l := w.loc(0)
			w.put(l, 1)
			for _, off := range []uint64{math.MaxUint64, math.MaxUint64 - 3, math.MaxUint64 - w.page + 1, 1 << 63, 1 << 32, 1 << 40, -w.page} {
				w.refuses(location{w.home, off, 8})
				w.refuses(location{w.home, off, int(2 * w.page)})
				w.tries(location{w.home, off, 8})
			}
			w.sees(l, 1)
		})
		x.inspect(func(home *worker) { home.holds(home.loc(0), 1) })
	}},
	{number: 29, name: "no bytes", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			l := w.loc(0)
			for _, off := range []uint64{0, l.off, w.page, w.bytes} {
				none := location{w.home, off, 0}
				w.get(none)
				w.write(none, nil)
				w.prefetch(none)
				w.pass(none, true)
			}
			w.put(l, 1)
			w.pass(l.part(4, 0), true)
			w.write(l.part(3, 0), nil)
			w.sees(l, 1)
		})
		x.inspect(func(home *worker) { home.holds(home.loc(0), 1) })
	}},
	{number: 30, name: "ranges larger than the cache", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			all := location{w.home, w.page + 5, int(14 * w.page)}
			want := make([]byte, all.n)
			for range 12 {
				at := w.rng.IntN(all.n - 8)
				w.put(all.part(at, 8), 1)
				copy(want[at:], bytes.Repeat([]byte{1}, 8))
			}
			w.sees(all, want...)
			half := all.part(all.n/4, all.n/2)
			w.put(half, 2)
			copy(want[all.n/4:], bytes.Repeat([]byte{2}, half.n))
			w.sees(all, want...)
			w.fence()
			w.sees(all, want...)
		})
	}},
	{number: 31, name: "prefetches larger than the cache", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			l := w.loc(1)
			w.put(l, 1)
			w.prefetch(location{w.home, w.page, int(15 * w.page)})
			w.sees(l, 1)
			for _, i := range w.rng.Perm(15)[:6] {
				w.among(w.pageAt(1+i), w.get(w.pageAt(1+i)), 0, 1)
			}
			w.prefetch(location{w.home, w.page + 1, int(3*w.page) + w.rng.IntN(int(w.page))})
			w.put(w.loc(2), 2)
			w.sees(w.loc(2), 2)
			w.sees(l, 1)
			w.touch(10, 14)
		})
	}},
	{number: 32, name: "use after the end, and anew", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			l := w.loc(0)
			w.get(l)
			w.prefetch(w.pageAt(9))
			w.put(w.loc(1), 1)
			w.must("close", w.c.Close())
			if !w.setup.off {
				b := []byte{7}
				for what, err := range map[string]error{
					"get": w.c.Get(w.ctx, l.rank, l.off, b), "put": w.c.Put(w.ctx, l.rank, l.off, b),
					"prefetch": w.c.Prefetch(w.ctx, l.rank, l.off, 8), "release": w.c.Release(w.ctx),
				} {
					if what != "release" && !errors.Is(err, os.ErrClosed) || what == "release" && err != nil && !errors.Is(err, os.ErrClosed) {
						w.fail("%s after close: %v", what, err)
					}
				}
			}
			copy(w.ranks[w.home].mem[l.off:], data(l, 5))
			var err error
			w.c, err = w.setup.open(w.e, w.lanes, w.bytes)
			w.must("open anew", err)
			w.sees(l, 5)
			w.sees(w.loc(1), 1)
		})
	}},
}

// refuses demands that what lies outside of the segment is neither read nor written.
// A real network has whole pages, and without a cache knows no less.
func (w *worker) refuses(l location) {
	if w.real && w.setup.off {
		return
	}
	b := bytes.Repeat([]byte{7}, l.n)
	if err := w.c.Get(w.ctx, l.rank, l.off, b); err == nil {
		w.fail("a get of %v finds no fault", l)
	}
	w.must("structure", w.c.Verify())
	err := w.c.Put(w.ctx, l.rank, l.off, slices.Repeat([]byte{7}, l.n))
	if err == nil {
		w.fail("a put of %v finds no fault", l)
	}
	w.must("structure", w.c.Verify())
}

// tries prefetches what may lie outside of the segment, with an error or without.
func (w *worker) tries(l location) {
	_ = w.c.Prefetch(w.ctx, l.rank, l.off, l.n)
	w.must("structure", w.c.Verify())
	_ = w.c.PrefetchEach(w.ctx, l.rank, []uint64{l.off, w.page, l.off + 3*w.page}, l.n)
	w.must("structure", w.c.Verify())
}
