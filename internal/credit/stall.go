package credit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Holder is one peer's part of a pool, to explain why others wait.
type Holder struct {
	Peer     int
	Credits  int           // held: with the peer, in messages, or on the way
	Replies  int           // reply buffers that wait for it
	Idle     time.Duration // since it last used or got a credit
	Recalled bool          // from, without an answer yet
	Wants    int           // credits that it wants in addition
	Waiting  time.Duration // for how long it has been wanting them
}

// Holders appends the peers that hold or want something to dst, those that hold most first.
func (p *Pool) Holders(dst []Holder, now time.Duration) []Holder {
	first := len(dst)
	for peer, e := range p.peers.All() {
		a := e.account
		if a == nil {
			continue
		}
		h := Holder{Peer: peer, Credits: a.held(), Replies: int(a.replies), Idle: now - a.lastUse, Recalled: a.recalling()}
		if a.queued.In() != nil {
			h.Wants, h.Waiting = int(a.target)-h.Credits, now-a.since
		}
		if h.Credits > 0 || h.Replies > 0 || h.Wants > 0 {
			dst = append(dst, h)
		}
	}
	slices.SortStableFunc(dst[first:], func(a, b Holder) int {
		return cmp.Compare(b.Credits+b.Replies, a.Credits+a.Replies)
	})
	return dst
}

// Describe is one line about where the pool's buffers are, for a watchdog's error.
func (p *Pool) Describe(now time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d credits free, %d held, %d taken by messages and not posted again; "+
		"%d of %d reply buffers free, %d reserved",
		p.free, p.cfg.Credits, p.held, p.bare, p.replies.free, p.cfg.Replies, p.replies.reserved)
	const most = 8
	holders := p.Holders(nil, now)
	for _, h := range holders[:min(most, len(holders))] {
		fmt.Fprintf(&b, "; peer %d holds %d credits and %d replies, idle for %v", h.Peer, h.Credits, h.Replies, h.Idle)
		if h.Recalled {
			b.WriteString(", does not answer the recall")
		}
		if h.Wants > 0 {
			fmt.Fprintf(&b, ", wants %d more for %v", h.Wants, h.Waiting)
		}
	}
	if n := len(holders) - most; n > 0 {
		fmt.Fprintf(&b, "; and %d more peers", n)
	}
	return b.String()
}
