package cache_test

import (
	"errors"
	"runtime"
	"time"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
)

// lifeTests are about failures, ends, owners, and what else is there.
var lifeTests = []litmus{
	{number: 39, name: "a rank dies under what was written", ranks: 3, sim: true, f: func(x *trial) {
		x.home = 1
		lost, kept := x.loc(0), x.loc(0)
		kept.rank = 2
		x.thread(0, func(w *worker) {
			w.get(kept)
			w.put(lost, 1)
			w.put(kept.part(0, 3), 1)
			w.prefetch(x.loc(1))
			w.kill(1)
			w.sleep(time.Duration(w.rng.IntN(3)) * time.Millisecond)
			w.lostOrWritten("release", w.c.Release(w.ctx), lost)
			w.verified("second release", w.c.Release(w.ctx)) // an error is told once
			if err := w.c.Get(w.ctx, 1, x.loc(3).off, make([]byte, 8)); !errors.Is(err, fabric.ErrPeerDown) {
				w.fail("a get from the dead rank: %v", err)
			}
			w.must("structure", w.c.Verify())
			w.sees(kept, 1, 1, 1, 0, 0, 0, 0, 0)
			w.fence()
			w.sees(kept, 1, 1, 1, 0, 0, 0, 0, 0)
		})
	}},
	{number: 40, name: "close with writes that were not sent", ranks: 2, far: true, sim: true, f: func(x *trial) {
		dies := x.rng.IntN(2) == 0
		x.thread(0, func(w *worker) {
			l := x.loc(0)
			w.put(l, 1)
			if dies {
				w.kill(1)
				w.sleep(time.Duration(w.rng.IntN(3)) * time.Millisecond)
			}
			w.shut = true
			err := w.c.Close()
			if !dies {
				w.must("close", err)
			}
			w.lostOrWritten("close", err, l)
		})
	}},
	{number: 41, name: "two goroutines in one cache", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			if !w.setup.off && guarded && !w.real {
				w.intrudes()
			}
			w.sees(x.loc(0), 0)
		})
	}},
	{number: 42, name: "handed over to another goroutine", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			l := x.loc(0)
			w.get(l.part(0, 4))
			w.put(l.part(2, 3), 1)
			w.prefetch(x.loc(1))
			w.elsewhere(func() {
				w.sees(l, 0, 0, 1, 1, 1, 0, 0, 0)
				w.put(l.part(3, 3), 2)
				w.sees(x.loc(1), 0)
				w.prefetch(x.loc(2))
				w.elsewhere(func() { w.sees(l, 0, 0, 1, 2, 2, 2, 0, 0) })
			})
			w.sees(x.loc(2), 0)
			w.elsewhere(w.release)
			w.sees(l, 0, 0, 1, 2, 2, 2, 0, 0)
		})
		x.inspect(func(home *worker) { home.holds(home.loc(0), 0, 0, 1, 2, 2, 2, 0, 0) })
	}},
	{number: 43, name: "collections and growing stacks", ranks: 2, far: true, costs: 8, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			l := x.loc(0)
			w.prefetch(x.loc(1))
			w.put(l.part(0, 5), 1)
			runtime.GC()
			grow(200)
			var small [8]byte // on the stack, perhaps
			w.verified("get", w.c.Get(w.ctx, l.rank, l.off, small[:]))
			w.shows(l, versions(l, small[:]), 1, 1, 1, 1, 1, 0, 0, 0)
			runtime.GC()
			w.sees(x.loc(1), 0)
			w.release()
			grow(400)
			w.sees(l, 1, 1, 1, 1, 1, 0, 0, 0)
		})
	}},
	{number: 44, name: "batches of pieces beside cached bytes", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			s := w.shadow()
			l := location{w.home, w.loc(0).off, 60}
			s.put(l.part(0, 30), 1)
			s.check(l)
			var pieces []location
			for i := 0; i < l.n; i += 6 {
				pieces = append(pieces, l.part(i, 3))
			}
			got := w.batch(pieces, fabric.KindGet, 0)
			for i, p := range pieces {
				w.shows(p, versions(p, got[i]), s.versions[p.off:][:3]...)
			}
			s.put(l.part(10, 8), 2)
			w.batch(pieces, fabric.KindPut, 3)
			for _, p := range pieces {
				s.wrote(p, 3)
			}
			s.check(l)
			s.put(l.part(12, 2), 4)
			w.fence()
			s.check(l)
		})
	}},
	{number: 45, name: "a barrier fences", ranks: 4, f: func(x *trial) {
		for i := range 3 {
			x.thread(i, func(w *worker) {
				for v := byte(1); v <= 4; v++ {
					w.put(x.loc(i), v)
					w.barrier()
					for o := range 3 {
						w.sees(x.loc(o), v)
					}
					w.barrier()
				}
			})
		}
	}},
	{number: 46, name: "bypass on and off in the middle", ranks: 3, f: func(x *trial) {
		const last = 6
		l, flag, ready := x.loc(0), x.flag(x.rng.IntN(3), 0), x.flag(x.rng.IntN(3), 1)
		x.thread(0, func(w *worker) {
			for v := byte(1); v <= last; v++ {
				w.bypass(l)
				w.put(l.part(0, 5), v)
				w.bypass(l)
				w.put(l.part(3, 5), v)
				w.sees(l, v)
				w.bypass(l)
				w.release()
				w.set(flag, uint64(v))
				w.wait(ready, uint64(v))
			}
		})
		x.thread(1, func(w *worker) {
			for v := byte(1); v <= last; v++ {
				w.bypass(l)
				w.glance(l)
				w.wait(flag, uint64(v))
				w.acquire()
				w.sees(l, v)
				w.bypass(l)
				w.sees(l, v)
				w.set(ready, uint64(v))
			}
		})
	}},
	{number: 47, name: "read-only and private regions", ranks: 3, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			l, own := x.loc(0), x.loc(2)
			for i, h := range []cache.Hint{1: cache.ReadOnly, 2: cache.ReadOnly, 5: cache.Private, 6: cache.Private} {
				if h != cache.Default {
					w.hint(w.pageAt(i), h)
				}
			}
			w.sees(l, 0)
			w.put(own.part(0, 3), 1)
			w.sees(own, 1, 1, 1, 0, 0, 0, 0, 0)
			if !w.setup.off {
				if err := w.c.Put(w.ctx, l.rank, l.off, []byte{1}); !errors.Is(err, cache.ErrReadOnly) {
					w.fail("a put to a region that is read-only: %v", err)
				}
				w.must("structure", w.c.Verify())
			}
			w.release()
			w.sees(own, 1, 1, 1, 0, 0, 0, 0, 0) // all of its lines
			w.fence()
			before := w.misses()
			w.sees(l, 0)
			w.sees(own, 1, 1, 1, 0, 0, 0, 0, 0)
			if w.setup.roomy() && w.misses() != before {
				w.fail("read-only and private pages do not survive an acquire")
			}
			w.sees(own, 1, 1, 1, 0, 0, 0, 0, 0)
			w.meet() // with rank 1, which writes now
			w.meet()
			for i := 1; i <= 6; i++ {
				w.hint(w.pageAt(i), cache.Default) // ends it
			}
			w.acquire()
			w.sees(l, 2)
			w.sees(own, 2)
			w.put(l, 3)
			w.sees(l, 3)
		})
		x.thread(1, func(w *worker) {
			w.meet()
			w.put(x.loc(0), 2)
			w.put(x.loc(2), 2)
			w.barrier()
		})
	}},
	{number: 48, name: "counters add up", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			s := w.shadow()
			w.random(s, 60)
			w.counted()
			w.fence()
			w.counted()
			l, before, direct := w.pageAt(3).part(8, 8), w.misses(), w.direct()
			s.check(l)
			s.check(l)
			if n := w.misses() - before; n != 1 && w.setup.roomy() && w.direct() == direct {
				w.fail("the first of two reads of a line after an acquire is a miss, and the second a hit: counted %d", n)
			}
			w.counted()
		})
	}},
	{number: 49, name: "the same as without a cache", ranks: 2, far: true, f: func(x *trial) {
		var s shadow
		x.thread(0, func(w *worker) {
			s = w.shadow()
			w.random(s, 100)
		})
		x.inspect(func(home *worker) { s.left(home) })
	}},
}

// lostOrWritten demands that a write is where it belongs, or that the loss was told.
func (w *worker) lostOrWritten(what string, err error, l location) {
	home := w.ranks[l.rank]
	if err == nil {
		home.holds(l, 1)
	} else if !errors.Is(err, fabric.ErrPeerDown) {
		w.fail("%s: %w", what, err)
	}
	if !w.shut {
		w.must("structure after "+what, w.c.Verify())
	}
}

// grow uses more stack than goroutines begin with.
func grow(n int) int {
	var a [256]byte
	if a[n%256] = byte(n); n == 0 {
		return 0
	}
	return grow(n-1) + int(a[n%256])
}

// elsewhere runs f on another goroutine, to which the worker is handed over, and back.
func (w *worker) elsewhere(f func()) {
	p, caught := w.e.Host().NewParker(), any(nil)
	w.e.Host().Go("owner", func() {
		defer p.Unpark()
		defer func() { caught = recover() }()
		f()
	})
	w.must("hand-over", p.Park(w.ctx))
	if caught != nil {
		panic(caught)
	}
}

// batch reads or writes pieces past the cache, as one batch.
func (w *worker) batch(pieces []location, kind fabric.Kind, version byte) [][]byte {
	var b fabric.Batch
	var q fabric.Completions
	bufs := make([][]byte, len(pieces))
	for i, p := range pieces {
		w.pass(p, kind == fabric.KindPut)
		if bufs[i] = make([]byte, p.n); kind == fabric.KindGet {
			b.Get(p.rank, p.off, bufs[i])
		} else {
			bufs[i] = data(p, version)
			b.Put(p.rank, p.off, bufs[i])
		}
	}
	b.Tag(1)
	lane := w.aside.To(w.home)
	w.must("post", lane.Post(&b, &q, 0))
	w.must("await", lane.Await(w.ctx, &q))
	var done [1]fabric.Completion
	q.Take(done[:])
	w.must("batch", done[0].Err)
	return bufs
}

// random does n operations of all kinds, which must do to the data what they do to the shadow.
func (w *worker) random(s shadow, n int) {
	pages := int(w.bytes / w.page)
	some := func(most int) location {
		k := 1 + w.rng.IntN(min(most, 1+int(w.page)*w.rng.IntN(3)+24))
		off := w.page*uint64(1+w.rng.IntN(2)*w.rng.IntN(pages-1)) + uint64(w.rng.IntN(int(w.page)))
		return location{w.home, off, min(k, int(w.bytes-off))}
	}
	for range n {
		l, version := some(3000), byte(w.rng.IntN(200))
		switch w.rng.IntN(12) {
		case 0, 1, 2, 3:
			s.check(l)
		case 4, 5, 6:
			s.put(l, version)
		case 7:
			w.acquire()
		case 8:
			w.release()
		case 9:
			w.prefetch(l)
		case 10:
			w.shows(l, w.getDirect(l), s.versions[l.off:][:l.n]...)
		case 11:
			w.putDirect(l, version)
			s.wrote(l, version)
		}
	}
}
