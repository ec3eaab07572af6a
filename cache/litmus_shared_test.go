package cache_test

// sharedTests are about pages that several ranks write, each its own bytes.
var sharedTests = []litmus{
	{number: 22, name: "writers of different bytes", size: func(x *trial) int { return 3 + x.rng.IntN(7) }, f: func(x *trial) {
		writers := len(x.ranks) - 1
		all := location{x.home, x.loc(0).off, 80}
		for i := range writers {
			x.thread(i, func(w *worker) {
				if w.rng.IntN(2) == 0 {
					w.glance(all) // clean copies of what the others write
				}
				for _, k := range w.rng.Perm(all.n) {
					if k%writers == i {
						w.put(all.part(k, 1), byte(1+i))
						if w.rng.IntN(16) == 0 {
							w.release()
						}
					}
				}
				w.barrier()
				got := w.get(all)
				for k, v := range got {
					if v != byte(1+k%writers) {
						w.fail("rank %d reads versions %v of bytes that %d ranks wrote", w.me, got, writers)
					}
				}
			})
		}
	}},
	{number: 23, name: "writes beside a word of atomics", ranks: 3, f: func(x *trial) {
		u := x.word(1)
		before, after := location{x.home, u.off - 8, 8}, location{x.home, u.off + 13, 3}
		x.thread(0, func(w *worker) {
			w.glance(u)
			for v := byte(1); v <= 5; v++ {
				w.put(before, v)
				w.put(after, v)
				if w.rng.IntN(2) == 0 {
					w.release()
				}
			}
			w.barrier()
			if v := w.value(u); v != 5 {
				w.fail("the word is %d after 5 additions of 1", v)
			}
		})
		x.thread(1, func(w *worker) {
			w.glance(before)
			for range 5 {
				w.add(u, 1)
			}
			w.barrier()
			w.sees(before, 5)
			w.sees(after, 5)
		})
	}},
	{number: 24, name: "writes beside the owner's stores", ranks: 2, f: func(x *trial) {
		x.home = 1
		all := location{1, x.loc(0).off, 60}
		check := func(w *worker) {
			w.barrier()
			got := w.get(all)
			for k, v := range got {
				if v != byte(1+k%2) {
					w.fail("rank %d reads versions %v", w.me, got)
				}
			}
		}
		for i := range 2 {
			x.thread(i, func(w *worker) {
				if i == 0 {
					w.glance(all)
				}
				for k := i; k < all.n; k += 2 {
					w.put(all.part(k, 1), byte(1+i))
				}
				check(w)
			})
		}
	}},
}
