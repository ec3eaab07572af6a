package cache_test

import (
	"fmt"
	"slices"
)

const maxWorkers = 5

// clock is a vector clock: how many writes of each worker one knows of.
type clock [maxWorkers]uint32

func (c *clock) join(o *clock) {
	for i := range c {
		c[i] = max(c[i], o[i])
	}
}

// wrote is one write of a byte.
type wrote struct {
	version byte
	by      int8 // the worker; -1: what was there at start
	clock   clock
}

// before reports whether who has the clock knows of the write, by a chain of releases and acquires.
func (w *wrote) before(c *clock) bool { return w.by < 0 || c[w.by] >= w.clock[w.by] }

// history is the writes of a byte that someone may still read. The first is of the last epoch.
type history struct {
	writes []wrote
	epoch  int32
}

// oracle knows what may be read. It is the second one, for programs with races: a read is right if
// its value was written by a write that no other has overwritten before the read, where before is
// what release and acquire order. Programs without races are held to more, see [exact].
type oracle struct {
	epoch   int32
	data    [][]history // by rank and byte
	known   []clock     // by worker
	tidings []clock     // what a worker has heard of, but not acquired
	told    []clock     // what a worker has released
	later   []uint32    // by worker: 1 + its writes before the one that is in flight past the cache; 0: none is
	adds    [][]added   // by word
	locks   []clock     // by rank: what the last holder had released
}

// added is an atomic addition of 1.
type added struct {
	by   int
	told clock
	old  uint64 // unknown while it is in flight
	done bool
}

func newOracle(p *program) *oracle {
	o := &oracle{known: make([]clock, p.ranks), tidings: make([]clock, p.ranks), told: make([]clock, p.ranks), later: make([]uint32, p.ranks),
		adds: make([][]added, p.ranks*words), locks: make([]clock, p.ranks)}
	start := []wrote{{by: -1}}
	for range p.ranks {
		h := make([]history, p.bytes())
		for i := range h {
			h[i].writes = start[:1:1]
		}
		o.data = append(o.data, h)
	}
	return o
}

// write is called before the bytes may be anywhere.
func (o *oracle) write(by int, l location, version byte) {
	o.known[by][by]++
	w := wrote{version, int8(by), o.known[by]}
	for i := range l.n {
		h := o.at(l.rank, l.off+uint64(i))
		h.writes = append(h.writes, w)
	}
}

// at is the history of a byte. What was overwritten before the last barrier nobody reads any more.
func (o *oracle) at(rank int, off uint64) *history {
	h := &o.data[rank][off]
	if h.epoch != o.epoch {
		if h.epoch = o.epoch; len(h.writes) > 1 {
			old := h.writes
			h.writes = nil
			for i := range old {
				if !overwritten(old, i, nil) {
					h.writes = append(h.writes, old[i])
				}
			}
		}
	}
	return h
}

// overwritten reports whether another write came between write i and who has the clock; nil: who
// knows of all.
func overwritten(all []wrote, i int, c *clock) bool {
	for k := range all {
		if k != i && all[i].before(&all[k].clock) && (c == nil || all[k].before(c)) && all[k].by >= 0 {
			return true
		}
	}
	return false
}

// read checks what a worker has read.
func (o *oracle) read(by int, l location, got []byte) error {
	for i, v := range got {
		h := o.at(l.rank, l.off+uint64(i))
		if !h.allows(v, &o.known[by]) {
			return fmt.Errorf("oracle B: byte %d of %v has version %d, which nobody wrote or which is overwritten; of %+v it may not be, for a worker that knows of %v",
				i, l, v, h.writes, o.known[by])
		}
	}
	return nil
}

func (h *history) allows(version byte, c *clock) bool {
	for i := len(h.writes) - 1; i >= 0; i-- {
		if h.writes[i].version == version && !overwritten(h.writes, i, c) {
			return true
		}
	}
	return false
}

func (o *oracle) acquired(by int) { o.known[by].join(&o.tidings[by]) }
func (o *oracle) released(by int) { o.told[by] = o.known[by] }

// delivered is released but for what is in flight past the cache.
func (o *oracle) delivered(by int) {
	before := o.told[by][by]
	if o.released(by); o.later[by] > 0 {
		o.told[by][by] = max(before, o.later[by]-1)
	}
}

func (o *oracle) hear(by int, c *clock) { o.tidings[by].join(c) }

// adding notes an addition that begins, and sum one that has ended: the worker hears of those
// before.
func (o *oracle) adding(by, word int) {
	o.adds[word] = append(o.adds[word], added{by: by, told: o.told[by]})
}

func (o *oracle) sum(by, word int, old uint64) error {
	n := uint64(len(o.adds[word]))
	own, least := -1, uint64(0)
	for i := range o.adds[word] {
		a := &o.adds[word][i]
		switch {
		case a.by == by && !a.done:
			own = i
		case a.done && a.old == old:
			return fmt.Errorf("two additions to word %d found %d", word, old)
		case a.done && a.old < old:
			o.hear(by, &a.told)
		}
		if a.by == by && a.done {
			least = max(least, a.old+1)
		}
	}
	if old >= n || old < least {
		return fmt.Errorf("an addition to word %d found %d, of %d additions", word, old, n)
	}
	a := &o.adds[word][own]
	a.old, a.done = old, true
	return nil
}

// barrier is the end of an epoch, when all have released.
func (o *oracle) barrier() {
	var all clock
	for i := range o.told {
		all.join(&o.told[i])
	}
	for i := range o.tidings {
		o.tidings[i].join(&all)
	}
	o.epoch++
}

// left checks a rank's memory when all is over.
func (o *oracle) left(rank int, mem []byte) error {
	for off := range o.data[rank] {
		if off < guarded0 {
			continue
		}
		h := &o.data[rank][off]
		v := decode(rank, uint64(off), mem[off])
		ok := slices.ContainsFunc(h.writes, func(w wrote) bool { return w.version == v })
		if !ok || !h.allows(v, nil) {
			return fmt.Errorf("oracle D: byte %d of rank %d is left with version %d; written were %+v", off, rank, v, h.writes)
		}
	}
	return nil
}
