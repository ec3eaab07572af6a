package cache

import "math/bits"

// Adaptive bypass. An eighth of a rank's memory is a region. Where few gets of a region are hits,
// its gets pass the cache by, with the bytes that were asked for and nothing around them; puts are
// combined as ever. Meanwhile an eighth of the pages, chosen by their hash, leave a tag, as many as
// an eighth of the cache has, by which gets that would have been hits are recognised: with enough
// of them the region is cached again. Hits pay nothing for that: they are counted when the next get
// is none.

// region counts gets.
type region struct {
	gets, hits uint16 // in this round
	more       uint8  // the round is so many times twice as long
	bypass     bool
}

const (
	regions     = 256 // that are told apart
	regionShift = 3   // of a rank there are 8
	round       = 32  // gets that are no hits, or in bypass gets that leave a tag, until the first decision
	learn       = 3   // each return makes further rounds 8 times as long, so that no loop has it go to and fro
	longest     = 9
	leaveBelow  = 8 // one hit in so many gets, or the cache is left
	returnAbove = 4 // one in so many would have been a hit, and it is used again
	tagEvery    = 8
)

// tag is a page that the cache would have, with the lines that were asked for.
type tag struct{ key, lines, epoch uint64 }

// regionOf is where gets of a byte are counted.
func (c *Cache) regionOf(rank int, off uint64) *region {
	shift := max(bits.Len64(c.sizes[rank]), 16+regionShift) - regionShift
	return &c.regions[(uint64(rank)<<regionShift+off>>(shift&63))%regions]
}

// bypasses reports whether a get that is no hit passes the cache by, and counts it.
func (c *Cache) bypasses(rank int, off uint64) bool {
	if c.cfg.NoBypass {
		return false
	}
	r := c.regionOf(rank, off)
	if !r.bypass {
		r.gets++
		hits := c.n.GetHits - c.hitsSeen
		c.hitsSeen = c.n.GetHits
		if hits > 0 {
			k := c.entries[c.reader].key // the hits were mostly there
			if k != 0 {
				s := c.regionOf(keyRank(k), c.keyOff(k))
				s.hits = uint16(min(uint64(s.hits)+hits, 1<<15))
			}
		}
		return r.leave()
	}
	key := c.pageKey(rank, off)
	hash := key * 0x9E3779B97F4A7C15
	if hash>>61 != 0 {
		return true
	}
	line := uint64(1) << (off & c.pageMask >> (c.lineShift & 63))
	t := &c.tags[hash<<3>>32%uint64(len(c.tags))]
	if t.key != key || t.epoch != c.epoch {
		*t = tag{key: key, epoch: c.epoch}
	}
	r.gets++
	if t.lines&line != 0 {
		r.hits++
	}
	t.lines |= line
	if r.gets < round {
		return true
	}
	if r.bypass = r.hits < round/returnAbove; !r.bypass {
		r.more = min(r.more+learn, longest)
	}
	r.gets, r.hits = 0, 0
	return r.bypass
}

// leave decides, at the end of a round, whether gets pass the cache by from now on.
func (r *region) leave() bool {
	if r.gets < round<<r.more {
		return false
	}
	r.bypass = uint32(r.hits)*(leaveBelow-1) < uint32(r.gets)
	r.gets, r.hits = 0, 0
	return r.bypass
}

// Bypasses reports whether a gather of bytes from one on is better done by gets that pass the cache
// by. It counts one of them.
func (c *Cache) Bypasses(rank int, off uint64) bool {
	return c.inside(rank, off, 0) && c.regionOf(rank, off).bypass && len(c.hints) == 0 && c.bypasses(rank, off)
}

// gathered counts an element of a gather, which was fetched or was there.
func (c *Cache) gathered(rank int, off uint64, fetched bool) {
	r := c.regionOf(rank, off)
	if c.cfg.NoBypass || r.bypass {
		return
	}
	if !fetched {
		r.hits = min(r.hits+1, 1<<15)
		return
	}
	r.gets++
	r.leave()
}
