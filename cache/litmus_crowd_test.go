package cache_test

// crowdTests are about more of something than the cache has places for.
var crowdTests = []litmus{
	{number: 33, name: "more dirty pages than places", ranks: 2, far: true, f: func(x *trial) {
		var s shadow
		x.thread(0, func(w *worker) {
			s = w.shadow()
			for v := byte(1); v <= 3; v++ {
				for _, i := range w.rng.Perm(14) {
					for k := 0; k < 24; k += 2 { // each byte a run of its own
						s.put(location{w.home, uint64(1+i)*w.page + uint64(k) + uint64(w.rng.IntN(2)), 1}, v)
					}
					if w.rng.IntN(4) == 0 {
						s.check(w.pageAt(1 + w.rng.IntN(14)))
					}
				}
			}
			if w.rng.IntN(2) == 0 {
				w.release()
			}
		})
		x.inspect(func(home *worker) { s.left(home) })
	}},
	{number: 34, name: "all pages in flight", ranks: 2, far: true, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			s := w.shadow()
			for range 4 {
				offs := make([]uint64, 0, 14)
				for _, i := range w.rng.Perm(14) {
					offs = append(offs, uint64(1+i)*w.page+uint64(w.rng.IntN(int(w.page)-8)))
				}
				s.put(location{w.home, offs[0] &^ 7, 5}, byte(1+w.rng.IntN(9)))
				w.verified("prefetches", w.c.PrefetchEach(w.ctx, w.home, offs, 8))
				s.put(location{w.home, offs[1] &^ 7, 3}, byte(1+w.rng.IntN(9)))
				for _, off := range offs[7:] {
					w.prefetch(location{w.home, off, int(w.page)})
				}
				s.check(location{w.home, offs[w.rng.IntN(14)], 8})
				s.check(location{w.home, offs[w.rng.IntN(14)]/2 + w.page/2, int(4 * w.page)})
				if w.rng.IntN(2) == 0 {
					w.acquire()
				}
			}
		})
	}},
	{number: 35, name: "a thousand peers", size: func(*trial) int { return 1001 }, costs: 200, f: func(x *trial) {
		x.home, x.bytes = 1000, 3*x.page
		at := func(r int) location { return location{r, x.page + uint64(x.place), 8} }
		x.thread(0, func(w *worker) {
			for r := 1; r <= 1000; r++ {
				w.put(at(r).part(r%8, 1), 1)
				if r > 3 {
					back := 1 + w.rng.IntN(r)
					w.shows(at(back).part(back%8, 1), w.get(at(back))[back%8:back%8+1], 1)
				}
			}
			w.fence()
			for r := 1; r <= 1000; r++ {
				got := w.get(at(r))
				for i, v := range got {
					if (v == 1) != (i == r%8) || v > 1 {
						w.fail("versions %v at rank %d", got, r)
					}
				}
			}
		})
		x.inspect(func(home *worker) {
			for r := 1; r <= 1000; r++ {
				home.ranks[r].holds(at(r).part(r%8, 1), 1)
			}
		})
	}},
	{number: 36, name: "strides of powers of two", ranks: 2, far: true, costs: 8, f: func(x *trial) {
		x.bytes = 256 << 10
		var s shadow
		x.thread(0, func(w *worker) {
			s = w.shadow()
			first := 64 + uint64(w.rng.IntN(32))
			for k := 6; k < 16; k++ {
				n := min(24, (w.bytes-first-8)>>k)
				for i := range n {
					s.check(location{w.home, first + i<<k, 8})
				}
				for i := range n {
					s.put(location{w.home, first + i<<k, 4}, byte(k))
				}
				for i := range n {
					s.check(location{w.home, first + (n-1-i)<<k, 8})
				}
			}
		})
		x.inspect(func(home *worker) { s.left(home) })
	}},
	{number: 37, name: "an acquire before each operation", ranks: 3, f: func(x *trial) {
		x.thread(0, func(w *worker) {
			own := x.loc(4)
			for v := byte(1); v <= 12; v++ {
				w.acquire()
				w.put(x.loc(0), v)
				w.acquire()
				w.put(own.part(int(v)%8, 1), v)
				w.acquire()
				w.sees(own.part(int(v)%8, 1), v)
				if w.rng.IntN(2) == 0 {
					w.release()
				}
			}
			w.barrier()
		})
		x.thread(1, func(w *worker) {
			before := byte(0)
			for range 12 {
				w.acquire()
				now := w.get(x.loc(0).part(2, 1))[0]
				if now < before || now > 12 {
					w.fail("version %d comes after %d", now, before)
				}
				before = now
			}
			w.barrier()
			w.sees(x.loc(0), 12)
		})
	}},
	{number: 38, name: "sequence numbers wrap around", ranks: 2, f: func(x *trial) {
		x.home = 1
		own := location{1, x.loc(5).off, 8}
		x.thread(0, func(w *worker) {
			l := x.loc(0)
			w.get(l)
			w.put(own.part(0, 4), 1)
			w.prefetch(x.loc(1))
			w.age()
			w.prefetch(x.loc(2))
			for i := range 24 {
				w.meet()
				w.meet() // between the two the owner writes
				w.acquire()
				w.sees(l, byte(i+1))
				w.sees(own, 1, 1, 1, 1, 0, 0, 0, 0)
				w.prefetch(l)
				w.sees(x.loc(1), 0)
			}
		})
		x.thread(1, func(w *worker) {
			for i := range 24 {
				w.meet()
				w.put(x.loc(0), byte(i+1))
				w.meet()
			}
		})
	}},
}

// shadow is what the segment of the data's rank must look like to its only user.
type shadow struct {
	w        *worker
	versions []byte
}

func (w *worker) shadow() shadow { return shadow{w, make([]byte, w.bytes)} }

func (s shadow) put(l location, version byte) {
	s.w.put(l, version)
	s.wrote(l, version)
}

func (s shadow) wrote(l location, version byte) {
	for i := range l.n {
		s.versions[l.off+uint64(i)] = version
	}
}

func (s shadow) check(l location) { s.w.shows(l, s.w.get(l), s.versions[l.off:][:l.n]...) }

// left looks at the memory itself.
func (s shadow) left(home *worker) {
	l := location{home.home, 64, int(home.bytes) - 64}
	got := versions(l, home.own(l))
	for i, v := range got {
		if v != s.versions[64+i] {
			home.fail("byte %d has version %d, want %d", 64+i, v, s.versions[64+i])
		}
	}
}
