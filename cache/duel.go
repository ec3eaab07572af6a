package cache

import "math/bits"

// shadow is a directory of a cache without data that sees a part of all pages, chosen by their
// hash, and has the same part of the cache's pages: what a cache with its policy would have of
// them.
type shadow struct {
	directory
	part sample
}

func newShadow(pages int, p Policy, part sample) shadow {
	return shadow{directory: newDirectory(max(pages>>bits.OnesCount64(uint64(part)), 1), p), part: part}
}

// sample is a part of all pages.
type sample uint64 // bits of a page's hash that are 0

// sampleOf is a sixteenth of all pages, or as much more as it takes to have so many of the cache's,
// or less, so that these are no more than 32 times as many.
func sampleOf(pages, least int) sample {
	k := 4
	for ; k > 0 && pages>>k < least; k-- {
	}
	for ; pages>>k > 32*least; k++ {
	}
	return sample(^(1<<(64-k) - 1))
}

// has multiplies by the square root of 2: of any pages at equal distances it has close to its part
// (Kuipers and Niederreiter 1974, §2.3), as the table's hash of them does not.
func (s sample) has(key uint64) bool { return key*0x6A09E667F3BCC909&uint64(s) == 0 }

// duel has two shadows, one with each policy. The policy of the one that misses less is the
// cache's.
type duel struct {
	rivals  [2]shadow // TwoQueues, Admission
	misses  [2]float64
	seen    float64 // by the rivals
	real    float64 // misses of the cache itself
	asked   float64 // pages that it was asked for
	pending int     // that the rivals saw since the last decision
	uses    Policy
}

const (
	duelRound = 64         // pages that the rivals see between decisions
	duelDecay = 3. / 4     // what a round leaves of those before
	duelEdge  = 1. + 1./32 // by how much more the policy in use must miss
)

func newDuel(pages int) *duel {
	part := sampleOf(pages, 64)
	return &duel{rivals: [2]shadow{newShadow(pages, TwoQueues, part), newShadow(pages, Admission, part)}}
}

// refer shows a page that is asked for, which the cache had or not, and reports whether the policy
// in use changes: where both the cache and its shadow miss more than the other one's.
func (d *duel) refer(key uint64, had bool) bool {
	d.asked++
	if !had {
		d.real++
	}
	if !d.rivals[0].part.has(key) {
		return false
	}
	for i := range d.rivals {
		if _, had := d.rivals[i].see(key); !had {
			d.misses[i]++
		}
	}
	d.seen++
	if d.pending++; d.pending < duelRound {
		return false
	}
	d.pending = 0
	mine, other := min(d.real/d.asked, d.misses[d.uses]/d.seen), d.misses[1-d.uses]/d.seen
	for _, n := range []*float64{&d.misses[0], &d.misses[1], &d.seen, &d.real, &d.asked} {
		*n *= duelDecay
	}
	if mine <= other*duelEdge {
		return false
	}
	d.uses = 1 - d.uses
	return true
}

// note is told of each page that is asked for after another one, where the policy wants to know,
// and whether the cache has it.
func (c *pages) note(key uint64, had bool) {
	c.sketch.add(key)
	if c.duel != nil && c.duel.refer(key, had) {
		c.follow(c.change(c.duel.uses))
	}
}

// change gives the entries to another policy, the oldest of the old one's first.
func (d *directory) change(to Policy) policy {
	next := newPolicy(to, d.entries, d.sketch)
	for i := d.policy.victim(anyEntry); i != none; i = d.policy.victim(anyEntry) {
		d.policy.remove(i)
		next.insert(i, true)
	}
	return next
}
