package credit

import (
	"time"

	"github.com/ibconduit/conduit/internal/queue"
)

// account is what a Pool knows of one connected peer.
type account struct {
	holding queue.Link[account] // in Pool.holders or Pool.recalled
	queued  queue.Link[account] // in Pool.starved or Pool.wanting
	due     queue.Link[account] // in Pool.due

	// Totals of the connection; held = granted - arrived - returned.
	granted  uint32
	arrived  uint32
	returned uint32
	recall   uint32 // recalled
	acked    uint32 // of recall, as far as the peer has acted upon it

	epoch   uint32
	peer    int32
	replies uint32 // reply buffers reserved for what it will answer
	target  uint16 // how many credits it wants to hold

	counted uint16 // its part of Pool.recalling
	urgent  bool   // it waits for a grant, which goes by a control message
	answer  bool   // the next header wants an answer to the recall
	barred  bool   // it is granted nothing

	lastUse  time.Duration // last arrival or grant
	recallAt time.Duration // when it was last recalled from
	since    time.Duration // since when it is queued
}

// held is how many credits are with the peer, on the way to it, in messages on the
// way here, or on the way back.
func (a *account) held() int { return int(a.granted - a.arrived - a.returned) }

// recalling reports whether a recall has no answer yet.
func (a *account) recalling() bool { return a.recall != a.acked }

// lists are where a Pool finds its accounts.
type lists struct {
	holders   queue.List[account] // with credits, the longest unused first
	recalled  queue.List[account] // recalled from, the longest ago first
	recalling int                 // recalled credits that may still come soon
	starved   queue.List[account] // want credits and hold none
	wanting   queue.List[account] // want more than they hold
	due       queue.List[account] // a control message to them is due
}

// enqueue puts a where it belongs: in starved without credits, in wanting with fewer than it
// wants, or in no queue, as when it is barred.
func (l *lists) enqueue(a *account, now time.Duration) {
	to := &l.wanting
	switch held := a.held(); {
	case held >= int(a.target) || a.barred:
		a.queued.Leave()
		return
	case held == 0:
		to = &l.starved
	}
	if in := a.queued.In(); in != to {
		if in == nil {
			a.since = now
		}
		to.Add(&a.queued, a)
	}
}

// emptied moves a, without a credit since its last was used or given back, out of holders and up in
// the queue.
func (l *lists) emptied(a *account) {
	if a.holding.In() == &l.holders {
		a.holding.Leave()
	}
	if a.queued.In() == &l.wanting {
		l.starved.Add(&a.queued, a)
	}
}

// repeatRecall makes a control message with a's recall due.
func (l *lists) repeatRecall(a *account, now time.Duration) {
	a.recallAt, a.answer = now, true
	l.recalled.Add(&a.holding, a)
	l.due.Add(&a.due, a)
}

// expectNone counts no longer on credits recalled from a.
func (l *lists) expectNone(a *account) {
	l.recalling -= int(a.counted)
	a.counted = 0
}
