package am

import (
	"slices"
	"time"
)

// entry is what an endpoint waits for on behalf of one message: its reply, or that the network has
// read its payload.
type entry struct {
	gen   uint32
	next  int32 // free ones
	peer  int32
	at    time.Duration // since when
	needs need
	w     *waiter // waits for it; nil: the caller has given up
	keep  []byte  // payload that the endpoint owns
}

type need uint8

const (
	needReply need = 1 << iota
	needSent
	needGrant // of a large payload: a grant, or the data that was granted memory
)

// calls are an endpoint's entries, under its lock. Tokens and cookies name them: the generation in
// the upper half, the index from 1 on in the lower.
type calls struct {
	e      []entry
	free   int32 // index from 1 on
	awaits int   // entries that need a reply or a grant: their peers are pinged
	grants int   // that need a grant
	writes int   // that need Sent
}

func (c *calls) add(w *waiter, peer int, n need, keep []byte, now time.Duration) uint64 {
	if c.free == 0 {
		c.e = append(c.e, entry{})
		c.free = int32(len(c.e))
	}
	i := c.free
	e := &c.e[i-1]
	c.free = e.next
	e.gen++
	e.peer, e.at, e.needs, e.w, e.keep = int32(peer), now, n, w, keep
	c.count(n, 1)
	return uint64(e.gen)<<32 | uint64(i)
}

func (c *calls) count(n need, by int) {
	if n&(needReply|needGrant) != 0 {
		c.awaits += by
	}
	if n&needSent != 0 {
		c.writes += by
	}
}

// find returns the entry that a peer names, or nil if it has no right to.
func (c *calls) find(token uint64, peer int) *entry {
	i, gen := uint32(token), uint32(token>>32)
	if i == 0 || int64(i) > int64(len(c.e)) {
		return nil
	}
	e := &c.e[i-1]
	if e.gen != gen || e.needs == 0 || int(e.peer) != peer {
		return nil
	}
	return e
}

// settle ends a part of what entry i needs. When that was all the entry is free, and its waiter, if
// there still is one, is signaled and returned to be resumed.
func (c *calls) settle(i int32, n need) *waiter {
	e := &c.e[i-1]
	n &= e.needs
	c.count(n, -1)
	e.needs &^= n
	if n == 0 || e.needs != 0 {
		return nil
	}
	return c.release(e, i)
}

// release frees an entry that needs nothing more, and signals its waiter, if there still is one.
func (c *calls) release(e *entry, i int32) *waiter {
	w := e.w
	e.w, e.keep = nil, nil
	e.next, c.free = c.free, i
	if w != nil {
		w.token = 0
		w.state.Or(signaled | ended)
	}
	return w
}

// withdraw frees entry i: its message was not sent.
func (c *calls) withdraw(i int32) {
	e := &c.e[i-1]
	w := e.w
	e.w = nil
	c.settle(i, needReply|needSent)
	if w != nil {
		w.token = 0
	}
}

// abandon takes a waiter from its entry. False: it has ended.
func (c *calls) abandon(w *waiter) bool {
	if w.token == 0 {
		return false
	}
	c.e[index(w.token)-1].w = nil
	w.token = 0
	return true
}

// index is the entry that a token names.
func index(token uint64) int32 { return int32(uint32(token)) }

// silent are the ranks of which replies are awaited since before a time, but for one.
func (c *calls) silent(but int, since time.Duration) (ranks []int) {
	for i := range c.e {
		e := &c.e[i]
		if e.needs&(needReply|needGrant) != 0 && e.at <= since && int(e.peer) != but && !slices.Contains(ranks, int(e.peer)) {
			ranks = append(ranks, int(e.peer))
		}
	}
	return ranks
}

// endCallsLocked ends calls in flight to a rank, or to all.
func (c *core) endCallsLocked(rank int, n need, cause error, count *uint64) {
	for i := range c.calls.e {
		e := &c.calls.e[i]
		n := n & e.needs
		if n == 0 || rank >= 0 && int(e.peer) != rank {
			continue
		}
		if n&needReply != 0 {
			*count++
			if int(e.peer) != c.cfg.Rank {
				c.acquirer.leavePlace(c.known(int(e.peer)))
			}
		}
		if n&needSent != 0 {
			c.stats.written++
		}
		if e.w != nil && e.w.err == nil {
			e.w.err = cause
		}
		if w := c.calls.settle(int32(i+1), n); w != nil {
			w.resume()
		}
	}
}

// answeredLocked ends a call. p is nil for one of this rank to itself.
func (c *core) answeredLocked(p *peer, rank int, h *head, payload []byte) error {
	e := c.calls.find(h.token, rank)
	if e == nil || e.needs&needReply == 0 {
		return &MessageError{Rule: "replies to no call", Got: h.token}
	}
	if w := e.w; w != nil && h.kind == reply && h.cat != long && e.needs == needReply && p != nil { // the straight path
		c.stats.replied++
		w.answered = true
		w.set(h, payload)
		c.calls.awaits--
		e.needs = 0
		c.calls.release(e, index(h.token)).resume()
		c.acquirer.leavePlace(p)
		return nil
	}
	if h.cat == long {
		if h.off > uint64(len(c.cfg.Segment)) || uint64(h.length) > uint64(len(c.cfg.Segment))-h.off {
			return &MessageError{Rule: "writes beyond the segment", Got: h.off + uint64(h.length),
				Limit: uint64(len(c.cfg.Segment))}
		}
		payload = c.cfg.Segment[h.off : h.off+uint64(h.length) : h.off+uint64(h.length)]
	}
	if h.kind == failure {
		c.stats.failed++
	} else {
		c.stats.replied++
	}
	if w := e.w; w == nil {
		c.stats.late++
	} else if w.answered = true; h.kind == failure {
		w.err = &RemoteError{Rank: rank, Handler: w.h.name, Reason: Reason(h.args[0]), Text: string(payload)}
	} else {
		w.set(h, payload)
	}
	if w := c.calls.settle(index(h.token), needReply); w != nil {
		w.resume()
	}
	if p != nil {
		c.acquirer.leavePlace(p)
	}
	return nil
}
