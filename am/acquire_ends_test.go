package am

import (
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/parttest"
)

// endings are events that end requests in the middle, as often as modelLimits.ends says, a letter
// each:
//
//	a  a request is given up at whatever it waits for, as when its context ends; no unlock is
//	x  a peer dies
//	i  an idle connection is closed
//
// Whoever has a request to a dead peer, and was woken, gives it up.
func (m *model) endings() (all []func(*model)) {
	const once = 1 // in ended, two bits for each kind of event
	may := func(kind string, shift int) bool { return strings.Count(m.ends, kind) > m.ended>>shift&3 }
	for i := range m.senders {
		s := &m.senders[i]
		if s.phase != acquires {
			continue
		}
		if op, p := m.next(s, i); m.pools.deaf[p.rank] && s.w.pending() {
			all = append(all, func(m *model) { m.giveUp(i) })
		} else if may("a", 0) && op != 'u' {
			all = append(all, func(m *model) { m.ended += once; m.giveUp(i) })
		}
	}
	for k := range m.peers {
		if may("x", 2) && !m.pools.deaf[k] {
			all = append(all, func(m *model) { m.ended += once << 2; m.die(k) })
		}
		if may("i", 4) && m.peers[k].connected && len(m.requests[k]) == 0 {
			all = append(all, func(m *model) { m.ended += once << 4; m.a.disconnect(&m.peers[k]) })
		}
	}
	return all
}

func (m *model) giveUp(i int) {
	s := &m.senders[i]
	m.a.abandon(&s.w.claim)
	s.at, s.phase = s.at+1, ready
}

// die is core.down, after the network has given back the buffers of what it had.
func (m *model) die(k int) {
	p := &m.peers[k]
	for _, x := range m.requests[k] {
		if x.buffer {
			m.pools.buffers++
		}
	}
	m.requests[k], m.answers[k], m.held[k], m.unlocks[k], m.incoming[k] = nil, nil, nil, 0, 0
	m.pools.credits[k], m.pools.unreachable[k] = 0, true
	free := 0
	for i := range m.senders {
		s := &m.senders[i]
		if s.phase != answered {
			continue
		}
		if _, q := m.next(s, i); q == p {
			s.at, s.phase = s.at+1, ready
			free++
			m.a.leavePlace(p)
		}
	}
	m.a.disconnect(p)
	m.a.unparkAll(p)
	for i := range m.senders {
		if s := &m.senders[i]; s.phase == acquires && s.w.claim.p == p && s.w.claim.needs.has(stageReply) && s.w.claim.next > stageReply {
			free++
		}
	}
	m.pools.replies, m.pools.deaf[k] = m.pools.replies+free, true
	m.a.dropShares(p)
	m.a.serve(&m.a.replies)
	m.a.serve(&m.a.buffers)
}

// Requests that are given up, peers that die and connections that close, at any step, leave
// everything to the others.
func TestEveryEndOfARequestLeavesTheRestToOthers(t *testing.T) {
	began, total, models := time.Now(), 0, 0
	for i, s := range [][]string{{"d0", "u0", "c1"}, {"c0", "c0", "c1"}, {"m0", "p0", "c1"}, {"p0", "p1", "s0"}, {"m0", "t1", "p1"}, {"c0c1", "c1p0"}} {
		for pool := range 8 {
			if (i+pool)%10 >= parttest.Of(10) {
				continue
			}
			for _, ends := range []string{"aa", "xa", "ixa"} {
				l := &modelLimits{scripts: s, replies: 1 + pool&1, credits: 1 + pool>>1&1, buffers: 1 + pool>>2, places: 1 + pool&1, shares: 1,
					ends: ends, mayRefuse: ends == "xa" && pool&3 == 0, startsConnected: ends != "xa"}
				if strings.ContainsAny(strings.Join(s, ""), "mt") && l.buffers == 1 {
					continue // a program cannot prepare all buffers
				}
				n, err := explore(l)
				if err != nil {
					t.Fatalf("%+v: %v", *l, err)
				}
				total += n
				models++
			}
		}
	}
	t.Logf("%d states of %d models, %v", total, models, time.Since(began).Round(time.Millisecond))
}
