package am

import (
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// serve does what is due: replies that found no buffer, credits asked for and granted, deadlines.
// The caller leads, and has seen that something is.
func (l *Endpoint) serve(now time.Duration) {
	l.sendLate() // replies carry credits, too
	l.controls(now)
	l.askAll(now)
	l.expire(now)
	l.watch(now)
	l.pingAll(now)
	l.offerBuffer()
}

// offerBuffer has the first who waits for a send buffer look, if there is one: nobody tells when one comes free. Who
// was woken without one would look again and again, and keep who leads from sleeping.
func (l *Endpoint) offerBuffer() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting.First() == nil {
		return
	}
	b, err := l.port.Reserve(0)
	if err == nil {
		l.port.Release(b)
	}
	if !errors.Is(err, fabric.ErrAgain) {
		l.waiting.wake(l)
	}
}

// nothingDue reports whether nothing of what serve does is due, with the lane's lock.
func (l *Endpoint) nothingDue(now time.Duration) bool {
	return l.pool.Idle() && len(l.asking) == 0 && len(l.late) == 0 && l.waiting.First() == nil &&
		(l.owedDue == 0 || now < l.owedDue) && (l.stallDue == 0 || now < l.stallDue) && !l.pingIsDue(now)
}

// controls sends the control messages that the pool names.
func (l *Endpoint) controls(now time.Duration) {
	last := -1
	for {
		l.mu.Lock()
		l.pool.Tick(now)
		rank, ok := l.pool.NextControl()
		l.mu.Unlock()
		if !ok || rank == last { // the network refused, or the peer died meanwhile
			return
		}
		last = rank
		p := l.known(rank)
		p.mu.Lock()
		l.tell(p, now)
		silent := l.silent(p, now)
		p.mu.Unlock()
		if silent { // what it holds is missed by others
			l.cutSilent(p)
		}
	}
}

// tell sends a control message. The peer's lock is held.
func (l *Endpoint) tell(p *peer, now time.Duration) {
	if p.down != nil || p.purse.Epoch() == 0 {
		return
	}
	h := head{kind: control}
	l.mu.Lock()
	l.pool.Fill(p.rank, &h.credit, now)
	l.mu.Unlock()
	p.purse.FillControl(&h.credit, now)
	if h.credit.Answer {
		if p.quiet == 0 || now-p.asked >= l.forgotten() {
			p.quiet = now
		}
		p.asked = now
	}
	h.encode(p.text[:headSize], l.hash, nil)
	l.stats.controls.Add(1)
	switch err := l.port.Note(p.rank, p.text[:headSize]); {
	case errors.Is(err, fabric.ErrPeerDown): // which the network knew before it had the port
		l.PeerDown(p.rank, err)
	case err != nil && !errors.Is(err, fabric.ErrAgain):
		l.report(p.rank, fmt.Errorf("am: control message: %w", err)) // it may get lost in any case
	}
}

// silent reports whether a peer has no answer for too long to questions that are still repeated: one that was lost and is
// not asked any more says nothing. The peer's lock is held.
func (l *Endpoint) silent(p *peer, now time.Duration) bool {
	return l.cfg.SilentAfter > 0 && p.quiet != 0 && now-p.quiet >= l.cfg.SilentAfter && now-p.asked < l.forgotten()
}

// forgotten is the age of a question that nobody repeats.
func (l *Endpoint) forgotten() time.Duration { return max(l.cfg.SilentAfter/4, time.Second) }

func (l *Endpoint) cutSilent(p *peer) {
	l.cut(p, fmt.Errorf("am: rank %d answers no question since %v (Config.SilentAfter)", p.rank, l.cfg.SilentAfter))
}

// ask sends a question if one is due.
func (l *Endpoint) ask(p *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := l.port.Now(); p.down == nil && p.purse.Asks(now) {
		l.tell(p, now)
	}
	if at, ok := p.purse.Due(); ok {
		l.arm(at)
	}
}

// lookAfter has askAll look at a peer, if there is reason. The peer's lock is held.
func (l *Endpoint) lookAfter(p *peer) {
	if !p.wantsLook() {
		return
	}
	l.mu.Lock()
	l.enlist(p)
	l.mu.Unlock()
}

// wantsLook reports whether a peer ought to be among those that askAll looks at, and is not. Its lock is held.
func (p *peer) wantsLook() bool { return !p.asking && (p.full || p.purse.Restless()) }

// enlist has askAll look at a peer, with its lock and the lane's.
func (l *Endpoint) enlist(p *peer) {
	p.asking = true
	l.asking = append(l.asking, p)
}

// askAll repeats questions, and has those look whose queue was full.
func (l *Endpoint) askAll(now time.Duration) {
	l.mu.Lock()
	n := len(l.asking)
	l.mu.Unlock()
	for range n {
		l.mu.Lock()
		p := l.asking[0]
		k := copy(l.asking, l.asking[1:])
		l.asking[k] = nil
		l.asking = l.asking[:k]
		l.mu.Unlock()
		p.mu.Lock()
		if p.down == nil && p.purse.Asks(now) {
			l.tell(p, now)
		}
		if p.full && now-p.fullAt >= fullFor {
			p.full = false
			p.waiting.wake(l)
			l.wakePassing(p)
		}
		silent := l.silent(p, now)
		p.asking = false
		l.lookAfter(p)
		p.mu.Unlock()
		if silent {
			l.cutSilent(p)
		}
	}
}

// due is when serve has something to do by the passing of time alone, 0: never.
func (l *Endpoint) due(now time.Duration) (at time.Duration) {
	l.mu.Lock()
	asking := len(l.asking) > 0
	if t, ok := l.pool.Due(); ok {
		at = t
	}
	if l.waiting.Len() > 0 || len(l.late) > 0 {
		at = sooner(at, now+retryAfter)
	}
	at = sooner(sooner(at, l.owedDue), l.stallDue)
	if l.calls.awaits > 0 {
		at = sooner(at, l.pingDue)
	}
	l.mu.Unlock()
	if !asking {
		return at
	}
	l.mu.Lock()
	peers := l.asking
	for i := 0; i < len(peers) && i < 64; i++ { // the others are looked at when these are
		p := peers[i]
		if !p.mu.TryLock() {
			at = sooner(at, now+retryAfter)
			continue
		}
		if t, ok := p.purse.Due(); ok {
			at = sooner(at, t)
		}
		if p.full {
			at = sooner(at, now+retryAfter)
		}
		p.mu.Unlock()
	}
	l.mu.Unlock()
	return at
}

// sooner is the earlier of two times of which 0 is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// arm has whoever sleeps in the port's Wait come back in time.
func (l *Endpoint) arm(at time.Duration) {
	if at != 0 {
		l.armFrom(l.port.Now(), at)
	}
}

// armFrom is arm for who knows the time.
func (l *Endpoint) armFrom(now, at time.Duration) {
	for {
		old := time.Duration(l.engine.armed.Load())
		if old > now && old <= at {
			return
		}
		if l.engine.armed.CompareAndSwap(int64(old), int64(at)) {
			l.port.After(at)
			return
		}
	}
}

// letter is a reply that waits for a send buffer.
type letter struct {
	p    *peer
	o    outgoing
	args []uint64
}

// keep has a reply wait. It is bounded by what its caller has reserved for replies.
func (l *Endpoint) keep(p *peer, o *outgoing, args []uint64) error {
	x := &letter{p: p, o: *o, args: append([]uint64(nil), args...)}
	if !o.own {
		x.o.payload = append([]byte(nil), o.payload...)
		x.o.own = o.cat == long
	}
	if err := l.putLate(x); err != nil {
		return err
	}
	l.keeps(p, 1)
	l.stats.queued.Add(1)
	l.arm(l.port.Now() + retryAfter)
	return nil
}

// keeps counts the replies that wait for a peer. While more wait than this rank would itself await, it is granted no
// credits: one that takes no replies would have them fill the memory.
func (l *Endpoint) keeps(p *peer, more int) {
	l.mu.Lock()
	p.late += more
	l.pool.Bar(p.rank, p.late > l.cfg.Replies, l.port.Now())
	l.mu.Unlock()
}

// putLate puts a reply behind those that wait. Once the lane has ended it goes nowhere.
func (l *Endpoint) putLate(x *letter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		l.stats.nowhere.Add(1)
		return l.end
	}
	l.late = append(l.late, x)
	return nil
}

// sendLate sends the replies that wait, as far as there are buffers.
func (l *Endpoint) sendLate() {
	l.mu.Lock()
	n := len(l.late)
	l.mu.Unlock()
	for range n {
		l.mu.Lock()
		if len(l.late) == 0 {
			l.mu.Unlock()
			return
		}
		x := l.late[0]
		l.late = l.late[1:]
		l.mu.Unlock()
		err := l.tryReply(x.p, &x.o, x.args)
		if err == ErrNoBuffer || err == ErrQueueFull {
			if l.putLate(x) != nil || err == ErrNoBuffer {
				return
			}
			continue
		}
		l.keeps(x.p, -1)
		_ = l.concludeReply(x.p.rank, &x.o, err) // who waits is told
	}
}

// watch wakes those who are parked for too long: they know what for.
func (l *Endpoint) watch(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stallDue == 0 || now < l.stallDue {
		return
	}
	l.stallDue = 0
	for w := l.parked.First(); w != nil; w = w.links[parked].Next() {
		if w.since == 0 {
			continue
		}
		if at := w.since + l.cfg.StallAfter; at <= now {
			w.wake(l)
		} else {
			l.stallDue = sooner(l.stallDue, at)
		}
	}
}

// pingIsDue keeps the time of the next look at those of whom replies are awaited, with the lane's lock.
func (l *Endpoint) pingIsDue(now time.Duration) bool {
	if l.calls.awaits == 0 || l.cfg.PingAfter < 0 || l.mute {
		l.pingDue = 0
		return false
	}
	if l.pingDue == 0 {
		l.pingDue = now + l.cfg.PingAfter
	}
	return now >= l.pingDue
}

// pingAll sends to those of whom a reply is awaited for long: a connection on which nothing moves
// tells nothing of the death of the other end.
func (l *Endpoint) pingAll(now time.Duration) {
	l.mu.Lock()
	if !l.pingIsDue(now) {
		l.mu.Unlock()
		return
	}
	l.pingDue = now + l.cfg.PingAfter
	ranks := l.calls.silent(l.cfg.Rank, now-l.cfg.PingAfter)
	l.mu.Unlock()
	for _, rank := range ranks {
		switch l.attempt(l.known(rank), &outgoing{kind: ping}, nil, nil) {
		case ErrNoCredit, ErrNotConnected:
			// Closing an idle connection takes no credit, and tells as much. The next message opens another.
			_ = l.port.Disconnect(rank)
		}
	}
}
