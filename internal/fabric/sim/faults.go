package sim

import (
	"errors"
	"fmt"
	"time"
)

// paths are the ways between the ranks.
type paths struct {
	w       *World
	cuts    map[pair]struct{}
	islands map[int32]int32 // by rank; 0 for those that are not listed
	island  int32           // the last one
	delays  map[pair]int64
	stalls  []*timer // wait for a way; those without a deadline no longer do
}

// pair is two ranks, the lower first.
type pair struct{ lo, hi int32 }

func pairOf(a, b int32) pair { return pair{min(a, b), max(a, b)} }

// blocked reports whether nothing that a sends reaches b: also where b takes a for dead, as a
// device accepts nothing on a queue pair that is in the error state.
func (p *paths) blocked(a, b int32) bool {
	to := &p.w.ranks[b]
	return to.dead || to.net.state == closed || to.net.deaths.Cause(int(a)) != nil || p.severed(a, b)
}

// blockedBack is blocked for the answer that a waits for. The device of a rank that dies just
// then has sent it; one that must be sent again needs the rank.
func (p *paths) blockedBack(t *timer, a, b int32) bool {
	return p.severed(a, b) || t.deadline != 0 && p.blocked(a, b)
}

// severed reports whether there is no way between two ranks.
func (p *paths) severed(a, b int32) bool {
	if len(p.islands) > 0 && p.islands[a] != p.islands[b] {
		return true
	}
	if len(p.cuts) > 0 {
		_, cut := p.cuts[pairOf(a, b)]
		return cut
	}
	return false
}

// transit is when n bytes that a sends now are at b.
func (p *paths) transit(a, b int32, n int) int64 {
	r := &p.w.ranks[a]
	r.egress = max(r.egress, p.w.now) + int64(float64(n)*1e9/p.w.cfg.Bandwidth)
	if a == b {
		return r.egress + p.w.rng.upTo(p.w.cfg.Jitter)
	}
	return r.egress + p.lag(a, b) + p.w.rng.upTo(p.w.cfg.Jitter)
}

// lag is the latency from one rank to another.
func (p *paths) lag(a, b int32) int64 {
	d := int64(p.w.cfg.Latency)
	if len(p.delays) > 0 {
		d += p.delays[pairOf(a, b)]
	}
	return d
}

// verdict is what becomes of reliable traffic that is due.
type verdict uint8

const (
	pass verdict = iota
	hold         // the timer was set again
	lost         // nothing came through for too long
)

// passes decides whether reliable traffic from a to b, or back, whose timer fired, comes through.
func (p *paths) passes(t *timer, a, b int32, blocked bool) verdict {
	switch {
	case !blocked:
		t.deadline = 0
		return pass
	case t.deadline == 0:
		// Half of the time-out and more: devices round theirs (IBTA vol 1 §9.7.6.1.3
		// allows up to four times the value).
		t.deadline = p.w.now + int64(p.w.cfg.RetryTimeout)/2 + p.w.rng.upTo(p.w.cfg.RetryTimeout/2)
		p.stalls = append(p.stalls, t)
		p.w.emit(markStall, a, b, uint64(t.deadline), 0)
	case p.w.now >= t.deadline:
		t.deadline = 0
		return lost
	}
	p.w.arm(t, t.deadline)
	return hold
}

// opened sends what waits for a way once more, in order.
func (p *paths) opened() {
	keep := p.stalls[:0]
	for _, t := range p.stalls {
		if t.deadline == 0 || !t.armed() {
			continue
		}
		keep = append(keep, t)
		p.w.arm(t, p.w.now+int64(p.w.cfg.Latency)+p.w.rng.upTo(p.w.cfg.Jitter))
	}
	clear(p.stalls[len(keep):])
	p.stalls = keep
}

// fault notes a fault in the trace. It panics for ranks that do not exist.
func (w *World) fault(what uint64, a, b int, x int64) {
	if a < 0 || a >= len(w.ranks) || b < 0 || b >= len(w.ranks) {
		panic(fmt.Sprintf("sim: no rank %d or %d in a world of %d", a, b, len(w.ranks)))
	}
	w.emit(markFault, int32(a), int32(b), what, uint64(x))
}

// Cut lets nothing pass between two ranks until Restore.
func (w *World) Cut(a, b int) {
	w.fault(1, a, b, 0)
	if w.paths.cuts == nil {
		w.paths.cuts = make(map[pair]struct{})
	}
	w.paths.cuts[pairOf(int32(a), int32(b))] = struct{}{}
}

// Restore undoes Cut.
func (w *World) Restore(a, b int) {
	w.fault(2, a, b, 0)
	delete(w.paths.cuts, pairOf(int32(a), int32(b)))
	w.paths.opened()
}

// Partition moves the ranks to an island of their own: nothing passes between it and the others,
// until Heal.
func (w *World) Partition(ranks ...int) {
	if w.paths.islands == nil {
		w.paths.islands = make(map[int32]int32)
	}
	w.paths.island++
	for _, r := range ranks {
		w.fault(3, r, r, int64(w.paths.island))
		w.paths.islands[int32(r)] = w.paths.island
	}
}

// Heal joins all islands.
func (w *World) Heal() {
	w.fault(4, 0, 0, 0)
	w.paths.islands = nil
	w.paths.opened()
}

// Delay adds d to the latency between two ranks, from now on. 0 takes it away.
func (w *World) Delay(a, b int, d time.Duration) {
	w.fault(5, a, b, int64(d))
	if w.paths.delays == nil {
		w.paths.delays = make(map[pair]int64)
	}
	w.paths.delays[pairOf(int32(a), int32(b))] = int64(max(0, d))
}

// Slow makes every Poll of a rank's endpoints take d longer, from now on.
func (w *World) Slow(rank int, d time.Duration) {
	w.fault(6, rank, rank, int64(d))
	w.ranks[rank].slow = max(0, d)
}

var errSilent = errors.New("sim: nothing came back in time")
