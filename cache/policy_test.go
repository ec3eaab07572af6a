package cache

import (
	"math/rand/v2"
	"testing"
)

// misses is the part of the pages of a trace, in percent, that a policy does not have.
func misses(t *testing.T, p Policy, pages int, trace []uint64) float64 {
	t.Helper()
	cfg, err := Config{Pages: pages, Policy: p}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	c := new(Cache)
	c.pages.cfg, c.pages.n, c.pages.oldest, c.pages.youngest, c.pages.epoch = cfg, new(Stats), none, none, 1
	c.net.ring, c.pages.sizes = make([]uint16, 1), make([]uint64, 8)
	c.shape()
	n := 0
	for k, page := range trace {
		key := 1<<rankShift | page
		i := c.pages.entryOf(key)
		if c.pages.sketch != nil {
			c.pages.note(key, i != none)
		}
		if i != none {
			c.pages.touch(i)
		} else if n++; c.writer.allocate(key) == none {
			t.Fatal("no page can be evicted")
		}
		if k%1024 == 0 {
			if err := c.verifyTable(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return 100 * float64(n) / float64(len(trace))
}

// policyTraces are pages of a cache of 256.
func policyTraces() map[string][]uint64 {
	rng := rand.New(rand.NewPCG(5, 6))
	zipf := rand.NewZipf(rng, 1.1, 4, 4000)
	traces := map[string][]uint64{}
	for i := range 120_000 {
		add := func(name string, page uint64) { traces[name] = append(traces[name], page) }
		add("loop of 1.1", uint64(i%281))
		add("loop of 2", uint64(i%512))
		add("random", rng.Uint64N(2000))
		add("zipf", zipf.Uint64())
		if i%2 == 0 { // hot pages, and a scan
			add("scan", rng.Uint64N(180))
		} else {
			add("scan", 1000+uint64(i))
		}
		if i < 60_000 { // phases
			add("loop, then scan", uint64(i%512))
		} else {
			add("loop, then scan", traces["scan"][i])
		}
	}
	return traces
}

func TestTheDuelIsAsGoodAsTheBetter(t *testing.T) {
	for name, trace := range policyTraces() {
		q, a, d := misses(t, TwoQueues, 256, trace), misses(t, Admission, 256, trace), misses(t, Duel, 256, trace)
		t.Logf("%-16s 2Q %6.2f, admission %6.2f, duel %6.2f", name, q, a, d)
		if d > min(q, a)+2 && name != "loop, then scan" || d > max(q, a)+1 {
			t.Errorf("%s: the duel misses %.2f %%, 2Q %.2f %%, admission %.2f %%", name, d, q, a)
		}
		if name == "loop of 2" && (q < 90 || a > 65) {
			t.Errorf("a loop of twice the cache: 2Q misses %.2f %%, admission %.2f %%", q, a)
		}
	}
}
