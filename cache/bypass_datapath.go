package cache

// Adaptive bypass. An eighth of a rank's memory is a region. Where few gets of a region are hits,
// its gets pass the cache by, with the bytes that were asked for and nothing around them, and where
// nearly every put is sent by itself so do its puts. Once the cache has no page of a region any
// more that costs a look at one byte (passing). Meanwhile a shadow sees some of the pages that are
// asked for, and says which gets would have been hits, and which puts sent with others: with enough
// of them the region is cached again. Hits of a page are counted when the next get is of another
// page, or is none.

// bypass is what is known of the use of a cache.
type bypass struct {
	passing    [regions]uint8 // what passes by at once: passGets, passPuts
	regions    [regions]region
	hitsSeen   uint64 // hits that regions have counted
	shadow     shadow
	streamed   uint8 // gets of a probe that are of a stream
	regionBits uint8 // of an offset in a region
}

// region counts gets and puts.
type region struct {
	gets, hits uint16 // in this round
	puts, sent uint16 // puts, and what they were sent as; or puts that the shadow saw, and those alone
	pages      uint16 // entries that it has
	more       uint8  // the round is so many times twice as long
	passes     uint8  // passGets, passPuts
	readOnly   bool   // some of it has that hint: a put is looked at
}

// What passes a cache by, see passes.
const (
	passGets = 1 << iota
	passPuts
)

const (
	regions     = 128 // that are told apart
	regionShift = 3   // of a rank there are 8
	round       = 32  // gets that are no hits, or in bypass gets that the shadow sees, until a decision
	longest     = 4   // each return makes further rounds twice as long, so that no loop has it go to and fro
	leaveBelow  = 6   // one hit in so many gets, or the cache is left
	returnAbove = 4   // one in so many would have been a hit, and it is used again
	probeEvery  = 4096
	vacateEvery = 256
	probeFor    = 16 // of so many gets that pass by are looked at for a stream
)

func (b *bypass) init(cfg *Config) {
	b.shadow = newShadow(cfg.Pages, min(cfg.Policy, Admission), sampleOf(cfg.Pages, 1))
}

// regionAt is the number of the region that a byte is in.
func (c *usage) regionAt(rank int, off uint64) uint64 {
	return (uint64(rank)<<regionShift + off>>(c.regionBits&63)) % regions
}

// passes is what passes the cache by without a look at it, of n bytes that lie in the rank's
// memory: passGets, if passGet or stillPassesGet says so, and passPuts.
func (c *usage) passes(rank int, off, n uint64) uint8 {
	if (off^(off+n))>>(c.regionBits&63) != 0 {
		return 0
	}
	return c.passing[c.regionAt(rank, off)]
}

// passGet counts a get that may pass by, and reports whether it does unless stillPassesGet has it
// not.
func (c *usage) passGet(rank int, off uint64) bool {
	p := c.pages
	p.n.GetsDirect++
	return p.n.GetsDirect%probeEvery >= probeFor && !c.shadow.part.has(p.pageKey(rank, off))
}

// passPut is passGet for a put.
func (c *usage) passPut(rank int, off uint64) bool {
	p := c.pages
	p.n.PutsDirect++
	return !c.shadow.part.has(p.pageKey(rank, off))
}

// stillPassesGet reports whether a get for which passGet returned false passes the cache by.
func (c *usage) stillPassesGet(rank int, off uint64) bool {
	if c.watchGet(rank, off) {
		return true
	}
	c.pages.n.GetsDirect--
	return false
}

// stillPassesPut is stillPassesGet for a put.
func (c *usage) stillPassesPut(rank int, off uint64) bool {
	if c.watchPut(rank, off) {
		return true
	}
	c.pages.n.PutsDirect--
	return false
}

// bypasses reports whether a get that is no hit passes the cache by, and counts it.
func (c *writer) bypasses(rank int, off uint64) bool {
	p := c.pages
	if p.cfg.NoBypass {
		return false
	}
	k := c.usage.regionAt(rank, off)
	r := &c.usage.regions[k]
	if r.passes&passGets != 0 {
		if p.n.GetsDirect%vacateEvery == 0 {
			c.vacate(k)
		}
		return c.usage.watchGet(rank, off)
	}
	r.gets++
	c.usage.countHits()
	return c.leaveGets(k)
}

// countHits counts the hits since it was called last, which were of the page that is read.
func (c *usage) countHits() {
	p := c.pages
	r := &c.regions[p.entries[p.readOf].region%regions]
	r.hits = uint16(min(uint64(r.hits)+p.n.GetHits-c.hitsSeen, 1<<15))
	c.hitsSeen = p.n.GetHits
}

// hitIn counts a hit in the region of a byte.
func (c *usage) hitIn(rank int, off uint64) {
	r := &c.regions[c.regionAt(rank, off)]
	r.hits = min(r.hits+1, 1<<15)
}

// leaveGets decides, at the end of a round, whether gets pass the cache by from now on.
func (c *writer) leaveGets(k uint64) bool {
	r := &c.usage.regions[k]
	if r.gets < round<<r.more {
		return false
	}
	leave := uint32(r.hits)*(leaveBelow-1) < uint32(r.gets)
	if r.gets, r.hits = 0, 0; leave {
		r.passes |= passGets
		c.vacate(k)
		c.usage.letPass(k)
	}
	return leave
}

// watchGet reports whether a get of a region whose gets pass by does so too. It has the shadow see
// it, and has the region be cached again where it would be of use.
func (c *usage) watchGet(rank int, off uint64) bool {
	p := c.pages
	k := c.regionAt(rank, off)
	r := &c.regions[k]
	if i := p.n.GetsDirect % probeEvery; i < probeFor && c.maxWindow > 0 {
		if c.inStream(i == 0, rank, off) { // which goes through other regions, too
			for k := c.regionAt(rank, 0); k <= c.regionAt(rank, p.sizes[rank]-1); k++ {
				c.back(k, passGets|passPuts)
			}
			return false
		}
	}
	key := p.pageKey(rank, off)
	if !c.shadow.part.has(key) {
		return true
	}
	e, line := c.seen(key), p.lines(off&p.pageMask, 1)
	if e.epoch != p.epoch {
		e.epoch, e.valid = p.epoch, 0
	}
	r.gets++
	if e.valid&line != 0 {
		r.hits++
	}
	e.valid |= line
	if r.hits >= round/returnAbove {
		c.back(k, passGets|passPuts)
		return false
	}
	if r.gets == round {
		r.gets, r.hits = 0, 0
	}
	return true
}

// seen is the entry of a page that the shadow has from now on.
func (c *usage) seen(key uint64) *entry {
	i, had := c.shadow.see(key)
	e := &c.shadow.entries[i]
	if !had {
		e.valid, e.ready = 0, 0
	}
	return e
}

// inStream looks for a stream in gets that pass by, and reports whether most of a probe are of one.
func (c *usage) inStream(first bool, rank int, off uint64) bool {
	if first {
		c.streamed = 0
	}
	c.clock++
	s := c.streamOf(rank, off)
	if s.used = c.clock; s.votes >= confirmed {
		c.streamed++
	}
	return c.streamed > probeFor/2
}

// watchPut is watchGet for puts.
func (c *usage) watchPut(rank int, off uint64) bool {
	p := c.pages
	key := p.pageKey(rank, off)
	if !c.shadow.part.has(key) {
		return true
	}
	k := c.regionAt(rank, off)
	r, e, line := &c.regions[k], c.seen(key), p.lines(off&p.pageMask, 1)
	if e.wanted != p.n.Releases {
		e.wanted, e.ready = p.n.Releases, 0
	}
	r.puts++
	if e.ready&line == 0 {
		r.sent++
	}
	if e.ready |= line; r.puts < round {
		return true
	}
	back := r.sent <= r.puts-r.puts/returnAbove
	if r.puts, r.sent = 0, 0; back {
		c.back(k, passPuts)
	}
	return !back
}

// sends counts the runs of dirty bytes that an entry's puts are sent as.
func (c *usage) sends(e *entry, runs int) {
	r := &c.regions[c.regionAt(keyRank(e.key), c.pages.keyOff(e.key))]
	if e.valid != 0 {
		r.puts = 1 << 15 // who reads these pages wants them kept
	}
	r.puts = uint16(min(int(r.puts)+int(e.puts), 1<<15))
	r.sent = uint16(min(int(r.sent)+runs, 1<<15))
	e.puts = 0
}

// putsPass reports whether a put passes the cache by.
func (c *writer) putsPass(rank int, off uint64) bool {
	p := c.pages
	if p.cfg.NoBypass {
		return false
	}
	k := c.usage.regionAt(rank, off)
	r := &c.usage.regions[k]
	if r.passes&passPuts != 0 {
		if i := p.entryOf(p.pageKey(rank, off)); i != none && p.entries[i].valid|p.entries[i].ready != 0 {
			c.usage.back(k, passPuts)
			return false
		}
		if p.n.PutsDirect%vacateEvery == 0 {
			c.vacate(k)
		}
		return c.usage.watchPut(rank, off)
	}
	if r.sent < round<<r.more {
		return false
	}
	leave := uint32(r.puts)*4 < uint32(r.sent)*5
	if r.puts, r.sent = 0, 0; leave {
		r.passes |= passPuts
		c.vacate(k)
		c.usage.letPass(k)
	}
	return leave
}

// back has a region be cached again.
func (c *usage) back(k uint64, what uint8) {
	r := &c.regions[k]
	r.more = min(r.more+1, longest)
	r.passes &^= what
	r.gets, r.hits, r.puts, r.sent = 0, 0, 0, 0
	c.letPass(k)
}

// letPass notes what of a region passes by at once.
func (c *usage) letPass(k uint64) {
	if r := &c.regions[k]; r.pages == 0 && !r.readOnly {
		c.passing[k] = r.passes
	} else {
		c.passing[k] = 0
	}
}

// heed notes which regions have bytes that are read-only.
func (c *usage) heed() {
	p := c.pages
	for k := range c.regions {
		c.regions[k].readOnly = false
	}
	for i := range p.hints {
		if y := &p.hints[i]; y.hint == ReadOnly {
			for k := c.regionAt(y.rank, y.low); k <= c.regionAt(y.rank, y.end-1); k++ {
				c.regions[k].readOnly = true
			}
		}
	}
	for k := range c.regions {
		c.letPass(uint64(k))
	}
}

// inhabit counts an entry that got a page, or lost it, and returns the page's region.
func (c *usage) inhabit(key uint64, by int) uint8 {
	k := c.regionAt(keyRank(key), c.pages.keyOff(key))
	c.regions[k].pages += uint16(by)
	c.letPass(k)
	return uint8(k)
}

// vacate evicts the pages of a region, but for what is dirty, underway or was fetched ahead. What
// is dirty begins to be written, if puts pass by.
func (c *writer) vacate(k uint64) {
	p := c.pages
	p.work = p.work[:0]
	for i := range p.entries {
		e := &p.entries[i]
		switch {
		case e.key == 0 || c.usage.regionAt(keyRank(e.key), p.keyOff(e.key)) != k || e.pinned || e.keep:
		case e.mask == none && e.wanted|e.ready == 0:
			c.evict(uint16(i))
		case e.mask != none && e.op == none && c.usage.regions[k].passes&passPuts != 0:
			p.work = append(p.work, uint16(i))
		}
	}
	if len(p.work) > 0 {
		_ = c.write(atOnce, &p.n.FlushPressure)
	}
}

// isBare reports whether the cache has no page of the regions that a range lies in.
func (c *usage) isBare(rank int, off, n uint64) bool {
	last := c.regionAt(rank, off+n-1)
	for k := c.regionAt(rank, off); ; k = (k + 1) % regions {
		if c.regions[k].pages != 0 {
			return false
		}
		if k == last {
			return true
		}
	}
}

// Bypasses reports whether a gather of bytes from one on is better done by gets that pass the cache
// by. It counts one of them.
func (c *Cache) Bypasses(rank int, off uint64) bool {
	p := &c.pages
	return p.inside(rank, off, 0) && len(p.hints) == 0 &&
		c.usage.regions[c.usage.regionAt(rank, off)].passes&passGets != 0 && c.writer.bypasses(rank, off)
}

// gathered counts an element of a gather, which was fetched or was there.
func (c *writer) gathered(rank int, off uint64, fetched bool) {
	k := c.usage.regionAt(rank, off)
	r := &c.usage.regions[k]
	if c.pages.cfg.NoBypass || r.passes&passGets != 0 {
		return
	}
	if !fetched {
		r.hits = min(r.hits+1, 1<<15)
		return
	}
	r.gets++
	c.leaveGets(k)
}
