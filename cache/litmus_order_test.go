package cache_test

import (
	"fmt"
	"slices"
	"time"
)

// orderTests are about what ranks see of each other's writes, by release and acquire.
var orderTests = []litmus{
	{number: 1, name: "message passing", ranks: 3, f: func(x *trial) {
		flag := x.flag(x.rng.IntN(3), 0)
		x.thread(0, func(w *worker) {
			w.put(x.loc(0), 1)
			w.release()
			w.set(flag, 1)
		})
		x.thread(1, func(w *worker) {
			w.among(x.loc(0), w.glance(x.loc(0)), 0, 1)
			w.wait(flag, 1)
			w.acquire()
			w.sees(x.loc(0), 1)
		})
	}},
	{number: 2, name: "message passing without acquire", ranks: 3, f: func(x *trial) {
		flag := x.flag(x.rng.IntN(3), 0)
		x.thread(0, func(w *worker) {
			w.put(x.loc(0), 1)
			w.release()
			w.set(flag, 1)
		})
		x.thread(1, func(w *worker) {
			first := w.get(x.loc(0))
			w.among(x.loc(0), first, 0, 1)
			w.wait(flag, 1)
			again := w.get(x.loc(0))
			w.among(x.loc(0), again, 0, 1)
			for i := range first {
				if again[i] < first[i] {
					w.fail("reads versions %v, and %v afterwards", first, again)
				}
			}
			w.acquire()
			w.sees(x.loc(0), 1)
		})
	}},
	{number: 3, name: "message passing, prefetched before", ranks: 3, f: func(x *trial) {
		ready, flag := x.flag(x.rng.IntN(3), 0), x.flag(x.rng.IntN(3), 1)
		x.thread(0, func(w *worker) {
			w.wait(ready, 1)
			w.put(x.loc(0), 1)
			w.release()
			w.set(flag, 1)
		})
		x.thread(1, func(w *worker) {
			w.prefetch(x.loc(0))
			if w.rng.IntN(2) == 0 {
				w.sleep(20 * time.Microsecond)
			}
			w.set(ready, 1)
			w.wait(flag, 1)
			w.acquire()
			w.sees(x.loc(0), 1)
		})
	}},
	// The way from the reader to the data is slow; the flag comes on another.
	{number: 4, name: "prefetch in flight at the acquire", ranks: 3, far: true, f: func(x *trial) {
		flag := x.flag(1, 0)
		x.delays = [][2]int{{1, x.home}}
		x.thread(0, func(w *worker) {
			w.sleep(time.Duration(w.rng.IntN(40)) * time.Microsecond)
			w.put(x.loc(0), 1)
			w.release()
			w.set(flag, 1)
		})
		x.thread(1, func(w *worker) {
			w.sleep(time.Duration(w.rng.IntN(10)) * time.Microsecond)
			w.prefetch(x.loc(0))
			w.wait(flag, 1)
			w.acquire()
			if w.rng.IntN(2) == 0 {
				w.sleep(30 * time.Microsecond)
			}
			w.sees(x.loc(0), 1)
		})
	}},
	{number: 5, name: "message passing over three workers", ranks: 4, f: func(x *trial) {
		first, second := x.flag(x.rng.IntN(4), 0), x.flag(x.rng.IntN(4), 1)
		x.thread(0, func(w *worker) {
			w.put(x.loc(0), 1)
			w.release()
			w.set(first, 1)
		})
		x.thread(1, func(w *worker) {
			w.wait(first, 1)
			w.acquire()
			w.put(x.loc(1), 1)
			w.release()
			w.set(second, 1)
		})
		x.thread(2, func(w *worker) {
			w.among(x.loc(0), w.glance(x.loc(0)), 0, 1)
			w.prefetch(x.loc(1))
			w.wait(second, 1)
			w.acquire()
			w.sees(x.loc(1), 1)
			w.sees(x.loc(0), 1)
		})
	}},
	{number: 6, name: "store buffering", ranks: 3, f: func(x *trial) {
		var got [2][]byte
		for i := range 2 {
			x.thread(i, func(w *worker) {
				w.get(x.loc(1 - i))
				w.put(x.loc(i), 1)
				w.fence()
				got[i] = w.get(x.loc(1 - i))
				w.among(x.loc(1-i), got[i], 0, 1)
			})
		}
		x.ends = func() error {
			if slices.Contains(got[0], 0) && slices.Contains(got[1], 0) {
				return fmt.Errorf("both miss the other's write: %v", got)
			}
			return nil
		}
	}},
	{number: 7, name: "load buffering", ranks: 3, f: func(x *trial) {
		var got [2][]byte
		for i := range 2 {
			x.thread(i, func(w *worker) {
				got[i] = w.get(x.loc(1 - i))
				w.fence()
				w.put(x.loc(i), 1)
				w.release()
			})
		}
		x.ends = func() error {
			if slices.Contains(got[0], 1) && slices.Contains(got[1], 1) {
				return fmt.Errorf("both read what the other writes behind its fence: %v", got)
			}
			return nil
		}
	}},
	{number: 8, name: "independent reads of independent writes", ranks: 5, f: func(x *trial) {
		var got [2][2][]byte
		for i := range 2 {
			x.thread(i, func(w *worker) {
				w.sleep(time.Duration(w.rng.IntN(5000)))
				w.put(x.loc(i), 1)
				w.release()
			})
			x.thread(2+i, func(w *worker) {
				w.get(x.loc(1 - i))
				w.acquire()
				got[i][i] = w.get(x.loc(i))
				w.fence()
				got[i][1-i] = w.get(x.loc(1 - i))
			})
		}
		x.ends = func() error {
			for a := range 8 {
				for b := range 8 {
					if got[0][0][a] == 1 && got[0][1][b] == 0 && got[1][1][b] == 1 && got[1][0][a] == 0 {
						return fmt.Errorf("the readers see the writes in different orders: %v", got)
					}
				}
			}
			return nil
		}
	}},
	{number: 9, name: "coherence of one place", ranks: 3, f: func(x *trial) {
		const last = 5
		read, over := x.loc(0), x.loc(2)
		var seen []byte
		x.thread(0, func(w *worker) {
			for v := byte(1); v <= last; v++ {
				w.put(read, v) // CoWW
				w.sees(read, v)
				if w.rng.IntN(2) == 0 {
					w.release()
				}
			}
			w.put(over, 1)
		})
		x.thread(1, func(w *worker) {
			before := make([]byte, read.n) // CoRR
			for range 8 {
				switch w.rng.IntN(4) {
				case 0:
					w.acquire()
				case 1:
					w.prefetch(read)
				case 2:
					w.touch(10, 14)
				}
				now := w.get(read)
				for i := range now {
					if now[i] < before[i] || now[i] > last {
						w.fail("reads versions %v, and %v afterwards", before, now)
					}
				}
				before = now
			}
			w.acquire()
			seen = w.get(over) // CoRW: what was read does not come back over what is written now
			w.put(over, 2)
		})
		x.ends = func() error {
			home := x.ranks[x.home]
			end := versions(over, home.own(over))
			for i := range end {
				// A copy over shared memory may store a byte twice, unless it is a word.
				if seen[i] == 1 && end[i] != 2 && (!x.real || x.place == aligned) || end[i] != 1 && end[i] != 2 {
					return fmt.Errorf("versions %v are left where rank 1 read %v and wrote 2", end, seen)
				}
			}
			if got := versions(read, home.own(read)); slices.ContainsFunc(got, func(v byte) bool { return v != last }) {
				return fmt.Errorf("versions %v are left of %d writes", got, last)
			}
			return nil
		}
	}},
}
