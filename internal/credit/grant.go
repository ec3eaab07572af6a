package credit

import "time"

// Grants in the order of the queues, and recalls of what lies unused.

// spare is how many credits may be granted: none in the place of a buffer that a message
// without a credit took.
func (p *Pool) spare() int { return p.free - p.extra }

// grantWaiting grants in equal parts what can be granted, first to the starved in the order of
// their coming. The reserve stays for them.
func (p *Pool) grantWaiting(now time.Duration) {
	for p.starved.Len() > 0 && p.spare() > 0 {
		p.grant(p.starved.First(), max(1, p.spare()/p.starved.Len()), now)
	}
	reserve := p.cfg.Credits / reserveShare
	for p.starved.Len() == 0 && p.wanting.Len() > 0 && p.spare() > reserve {
		p.grant(p.wanting.First(), max(1, (p.spare()-reserve)/p.wanting.Len()), now)
	}
	p.Tick(now)
}

// grant gives a up to n credits, no more than it wants, and the last place in the queue
// if it wants more.
func (p *Pool) grant(a *account, n int, now time.Duration) {
	n = min(n, int(a.target)-a.held())
	a.granted += uint32(n)
	p.free -= n
	p.held += n
	p.stats.Granted += uint64(n)
	a.lastUse = now
	if !a.recalling() {
		p.holders.Add(&a.holding, a)
	}
	a.queued.Leave()
	p.enqueue(a, now)
	if a.urgent {
		a.urgent = false
		p.due.Add(&a.due, a)
	}
}

// Tick does what time makes due: it recalls credits that lie unused, while others
// have none, and repeats what has no answer.
func (p *Pool) Tick(now time.Duration) {
	if p.starved.Len() == 0 {
		return
	}
	for a := p.recalled.First(); a != nil && now-a.recallAt >= p.cfg.Retry; a = p.recalled.First() {
		p.stats.Retries++
		p.expectNone(a) // it may never answer: recall from others too
		p.repeatRecall(a, now)
	}
	for p.recalling < p.starved.Len() {
		a := p.holders.First()
		if a == nil || now-a.lastUse < p.cfg.RecallAfter {
			return
		}
		p.recall(a, a.held(), now)
	}
}

// recallExcess recalls from a, which is busy, the credits beyond its part.
func (p *Pool) recallExcess(a *account, now time.Duration) {
	part := max(1, p.cfg.Credits/(p.holders.Len()+p.recalled.Len()+p.starved.Len()))
	if n := a.held() - part; n > 0 {
		p.recall(a, n, now)
	}
}

// recall recalls n credits from a.
func (p *Pool) recall(a *account, n int, now time.Duration) {
	a.recall += uint32(n)
	a.counted = uint16(n)
	p.recalling += n
	p.stats.Recalls++
	p.repeatRecall(a, now)
}
