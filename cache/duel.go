package cache

// duel has two small caches without data see the sixteenth of all pages that their hash chooses,
// one with each policy. The policy of the one that misses less is the cache's.
type duel struct {
	rivals [2]*Cache // TwoQueues, Admission
	misses [2]float64
	seen   int
	uses   Policy
}

const (
	duelPart  = 16
	duelRound = 256       // pages that the rivals see between decisions
	duelDecay = 1. / 4    // what a round leaves of those before
	duelEdge  = 1. + 1./8 // by how much more the policy in use must miss
)

func newDuel(pages int) *duel {
	d := &duel{}
	for i := range d.rivals {
		cfg := Config{Pages: max(pages/duelPart, 4), NoReadahead: true, Policy: Policy(i)}
		cfg, _ = cfg.WithDefaults() // which has no mistakes
		r := &Cache{cfg: cfg, n: &Stats{}, oldest: none, youngest: none, epoch: 1}
		r.shape()
		d.rivals[i] = r
	}
	return d
}

// refer shows a page that is asked for, and reports whether the policy in use changes.
func (d *duel) refer(key uint64) bool {
	if (key^key>>31)*0xD6E8FEB86659FD93>>60 != 0 {
		return false
	}
	for i, r := range d.rivals {
		if r.sketch != nil {
			r.sketch.add(key)
		}
		if at := r.entryOf(key); at != none {
			r.touch(at)
		} else {
			d.misses[i]++
			r.allocate(key)
		}
	}
	if d.seen++; d.seen < duelRound {
		return false
	}
	d.seen = 0
	mine, other := d.misses[d.uses], d.misses[1-d.uses]
	for i := range d.misses {
		d.misses[i] *= duelDecay
	}
	if mine <= other*duelEdge {
		return false
	}
	d.uses = 1 - d.uses
	return true
}

// refer is told of each page that is asked for after another one, where the policy wants to know.
func (c *Cache) refer(key uint64) {
	c.sketch.add(key)
	if c.duel != nil && c.duel.refer(key) {
		c.follow(c.change(c.duel.uses))
	}
}

// change gives the entries to another policy, the oldest of the old one's first.
func (c *Cache) change(to Policy) policy {
	next := newPolicy(to, c.entries, c.sketch)
	all := func(uint16) bool { return true }
	for i := c.policy.victim(all); i != none; i = c.policy.victim(all) {
		c.policy.remove(i)
		next.insert(i, true)
	}
	return next
}
