package am

import (
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// controlsDue sends the control messages that the pool names, and returns peers that are silent for
// too long.
func (e *emitter) controlsDue(now time.Duration) (silent []*peer) {
	last := -1
	for {
		e.mu.Lock()
		e.pool.Tick(now)
		rank, ok := e.pool.NextControl()
		e.mu.Unlock()
		if !ok || rank == last { // the network refused, or the peer died meanwhile
			return silent
		}
		last = rank
		p := e.known(rank)
		e.control(p, now)
		if e.isSilent(p, now) { // others miss the credits that it holds
			silent = append(silent, p)
		}
	}
}

// control sends a control message.
func (e *emitter) control(p *peer, now time.Duration) {
	p.sending.Lock()
	defer p.sending.Unlock()
	e.mu.Lock()
	e.controlLocked(p, now)
}

// controlLocked is control with the peer's sending lock, and with the endpoint's, which is given
// up.
func (e *emitter) controlLocked(p *peer, now time.Duration) {
	if p.down != nil || p.credits.Epoch() == 0 {
		e.mu.Unlock()
		return
	}
	h := head{kind: control}
	e.pool.Fill(p.rank, &h.credit, now)
	p.credits.FillControl(&h.credit, now)
	if h.credit.Answer {
		if p.silentAt == 0 || now-p.askedAt >= e.forgotten() {
			p.silentAt = now
		}
		p.askedAt = now
	}
	e.mu.Unlock()
	h.encode(p.text[:headSize], e.hash, nil)
	e.stats.controls.Add(1)
	switch err := e.net.Note(p.rank, p.text[:headSize]); {
	case errors.Is(err, fabric.ErrPeerDown): // the network knew it before it had the endpoint
		e.peerDown(p.rank, err)
	case err != nil && !errors.Is(err, fabric.ErrAgain):
		e.report(p.rank, fmt.Errorf("am: control message: %w", err)) // it may get lost in any case
	}
}

// isSilent reports whether a peer has no answer for too long to questions that are still repeated:
// a lost one that is not repeated says nothing.
func (e *emitter) isSilent(p *peer, now time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cfg.SilentAfter > 0 && p.silentAt != 0 && now-p.silentAt >= e.cfg.SilentAfter && now-p.askedAt < e.forgotten()
}

// forgotten is the age of a question that is not repeated.
func (e *emitter) forgotten() time.Duration { return max(e.cfg.SilentAfter/4, time.Second) }

// askLocked sends a peer a question for credits if one is due. The peer's sending lock is held.
func (e *emitter) askLocked(p *peer) {
	e.mu.Lock()
	now := e.net.Now()
	if at, ok := p.credits.Due(); ok {
		e.armFrom(now, at)
	}
	if p.down == nil && p.credits.Asks(now) {
		e.controlLocked(p, now)
		return
	}
	e.mu.Unlock()
}

// askAll repeats questions, and serves requests whose queue was full. It returns peers that are
// silent for too long.
func (e *emitter) askAll(now time.Duration) (silent []*peer) {
	e.mu.Lock()
	n := len(e.asking)
	e.mu.Unlock()
	for range n {
		e.mu.Lock()
		p := e.asking[0]
		k := copy(e.asking, e.asking[1:])
		e.asking[k] = nil
		e.asking = e.asking[:k]
		p.asking = false
		asks := p.down == nil && p.credits.Asks(now)
		e.mu.Unlock()
		if asks {
			e.control(p, now)
		}
		e.mu.Lock()
		if p.full && now-p.fullAt >= fullFor {
			e.acquirer.roomAt(p)
		}
		e.enlistLocked(p)
		e.mu.Unlock()
		if e.isSilent(p, now) {
			silent = append(silent, p)
		}
	}
	return silent
}

// askDueLocked is when askAll has something to do by the passing of time alone; 0: never.
func (e *emitter) askDueLocked(now time.Duration) (at time.Duration) {
	for _, p := range e.asking[:min(len(e.asking), 64)] { // the others are looked at when these are
		if t, ok := p.credits.Due(); ok {
			at = sooner(at, t)
		}
		if p.full {
			at = sooner(at, now+retryAfter)
		}
	}
	return at
}
