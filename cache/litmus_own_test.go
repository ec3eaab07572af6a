package cache_test

import (
	"encoding/binary"
	"time"
)

// alone makes a litmus test of one worker and of data at another rank. stored looks at the memory
// there afterwards, when the worker has closed its cache.
func alone(number int, name string, f func(w *worker), stored func(home *worker)) litmus {
	return litmus{number: number, name: name, ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, f)
		x.inspect(stored)
	}}
}

// ownTests are about what a worker reads of its own writes.
var ownTests = []litmus{
	alone(10, "own write, all of it dirty", func(w *worker) {
		l := w.loc(0)
		w.put(l, 1)
		w.sees(l, 1)
		w.acquire() // own writes outlive it
		w.sees(l, 1)
		w.put(l, 2)
		w.sees(l, 2)
	}, func(home *worker) { home.holds(home.loc(0), 2) }),
	alone(11, "own write, the rest not fetched", func(w *worker) {
		l := w.loc(0)
		w.put(l.part(2, 3), 1)
		w.sees(l, 0, 0, 1, 1, 1, 0, 0, 0)
		w.put(l.part(7, 1), 2)
		w.acquire()
		w.sees(l, 0, 0, 1, 1, 1, 0, 0, 2)
	}, func(home *worker) {
		l := home.loc(0)
		home.holds(l, 0, 0, 1, 1, 1, 0, 0, 2)
	}),
	alone(12, "own write, the rest fetched before", func(w *worker) {
		l := w.loc(0)
		w.sees(l, 0)
		w.put(l.part(2, 3), 1)
		w.sees(l, 0, 0, 1, 1, 1, 0, 0, 0)
		w.release()
		w.sees(l, 0, 0, 1, 1, 1, 0, 0, 0)
	}, func(home *worker) {
		l := home.loc(0)
		home.holds(l, 0, 0, 1, 1, 1, 0, 0, 0)
	}),
	alone(13, "write inside, then read of the line", func(w *worker) {
		l := w.loc(0)
		w.put(l.part(1, 2), 1)
		line := location{l.rank, l.off &^ (w.line - 1), int(w.line)}
		want := make([]byte, line.n)
		for i := range want {
			if at := line.off + uint64(i); at == l.off+1 || at == l.off+2 {
				want[i] = 1
			}
		}
		w.sees(line, want...)
		w.release()
		w.acquire()
		w.sees(line, want...)
	}, nil),
	alone(14, "own write while a prefetch is in flight", func(w *worker) {
		l := w.loc(0)
		w.prefetch(location{l.rank, l.off - 1, 20})
		w.put(l.part(2, 3), 1)
		if w.rng.IntN(2) == 0 {
			w.sleep(20 * time.Microsecond)
		}
		w.sees(l, 0, 0, 1, 1, 1, 0, 0, 0)
		w.sleep(20 * time.Microsecond)
		w.sees(l, 0, 0, 1, 1, 1, 0, 0, 0)
		w.prefetch(l)
		w.put(l, 2)
		w.release()
		w.sees(l, 2)
	}, func(home *worker) { home.holds(home.loc(0), 2) }),
	alone(15, "write, eviction, read", func(w *worker) {
		l := w.loc(0)
		w.put(l, 1)
		w.touch(5, 16)
		w.sees(l, 1)
		w.put(l.part(3, 2), 2)
		w.touch(5, 16)
		w.sees(l, 1, 1, 1, 2, 2, 1, 1, 1)
	}, func(home *worker) {
		l := home.loc(0)
		home.holds(l, 1, 1, 1, 2, 2, 1, 1, 1)
	}),
	// Other writes make the cache begin to write; the page changes again at once.
	alone(16, "writes over a write on its way", func(w *worker) {
		l := w.loc(0)
		for v := byte(1); v <= 12; v++ {
			w.put(l, v)
			w.put(w.pageAt(5+int(v)%8).part(w.rng.IntN(32), 1), v)
			w.put(l.part(w.rng.IntN(8), 1), v)
			w.sees(l, v)
			if w.rng.IntN(4) == 0 {
				w.release()
			}
		}
		w.release()
	}, func(home *worker) { home.holds(home.loc(0), 12) }),
	alone(17, "write, direct write over it", func(w *worker) {
		l, wide := w.loc(0), location{w.home, w.page / 2, int(3 * w.page)}
		w.get(l)
		w.put(l, 1)
		w.put(w.pageAt(6).part(0, 4), 1) // not under it
		if w.rng.IntN(2) == 0 {
			w.putDirect(wide, 2)
		} else {
			w.putLater(wide, 2)
			w.prefetch(l) // which may come before it
			w.flush()
		}
		w.sees(l, 2)
		w.sees(wide, 2)
		w.sees(w.pageAt(6).part(0, 4), 1)
	}, func(home *worker) {
		home.holds(location{home.home, home.page / 2, int(3 * home.page)}, 2)
		home.holds(home.pageAt(6).part(0, 4), 1)
	}),
	alone(18, "direct write, then write", func(w *worker) {
		l, wide := w.loc(0), location{w.home, w.page / 2, int(3 * w.page)}
		w.get(l)
		if w.rng.IntN(2) == 0 {
			w.putDirect(wide, 1)
		} else {
			w.putLater(wide, 1)
			w.prefetch(wide)
			w.flush()
		}
		w.put(l.part(2, 4), 2)
		w.sees(l, 1, 1, 2, 2, 2, 2, 1, 1)
		w.release()
		w.sees(l, 1, 1, 2, 2, 2, 2, 1, 1)
	}, func(home *worker) {
		l := home.loc(0)
		home.holds(l, 1, 1, 2, 2, 2, 2, 1, 1)
	}),
	alone(19, "direct read of what was written", func(w *worker) {
		l, wide := w.loc(0), location{w.home, w.page / 2, int(3 * w.page)}
		w.put(l.part(1, 5), 1)
		w.shows(l, w.getDirect(l), 0, 1, 1, 1, 1, 1, 0, 0)
		w.put(l.part(0, 1), 2)
		at := l.off - wide.off
		w.shows(l, w.getDirect(wide)[at:at+8], 2, 1, 1, 1, 1, 1, 0, 0)
		w.sees(l, 2, 1, 1, 1, 1, 1, 0, 0)
	}, nil),
	{number: 20, name: "atomics on cached and written words", ranks: 2, far: true, f: func(x *trial) {
		u := x.word(0)
		x.thread(0, func(w *worker) {
			if w.rng.IntN(2) == 0 {
				w.value(u)
			}
			w.putValue(u, 5)
			old := w.add(u, 2)
			if now := w.value(u); old != 5 || now != 7 {
				w.fail("a word of 5 to which 2 was added was %d and is %d", old, now)
			}
			b := binary.NativeEndian.AppendUint64(nil, 7)
			b[0] = 9
			want := binary.NativeEndian.Uint64(b)
			w.write(u.part(0, 1), b[:1])
			if old := w.add(u, 1); old != want {
				w.fail("a word with a byte that was written was %d, want %d", old, want)
			}
			if now := w.value(u); now != want+1 {
				w.fail("a word of %d to which 1 was added is %d", want, now)
			}
			w.addLater(u, 1) // under the copy
			w.flush()
			if now := w.value(u); now != want+2 {
				w.fail("a word of %d that was added to in passing is %d", want+1, now)
			}
			w.putValue(u, 100)
			w.addLater(u, 1) // behind what was written
			w.flush()
			if now := w.value(u); now != 101 {
				w.fail("a word of 100 that was added to in passing is %d", now)
			}
		})
	}},
	{number: 21, name: "a call sees and changes what is cached", ranks: 3, f: func(x *trial) {
		a, b := x.loc(0), x.loc(0)
		b.off += 12
		x.thread(0, func(w *worker) {
			w.get(b)
			w.put(a, 1)
			w.call(x.home, func(mem []byte) {
				w.handlerLoads(a)
				w.shows(a, versions(a, mem[a.off:][:a.n]), 1)
				w.handlerStores(b)
				copy(mem[b.off:], data(b, 3))
			})
			w.sees(b, 3)
			w.sees(a, 1)
		})
	}},
}
