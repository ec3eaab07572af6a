package flow

import (
	"time"

	"github.com/ibconduit/conduit/internal/queue"
)

// account is what a Pool knows of one connected peer.
type account struct {
	links [numLinks]queue.Link[account]

	// Totals of the connection; held = granted - arrived - returned.
	granted  uint32
	arrived  uint32
	returned uint32
	recall   uint32 // asked back
	acked    uint32 // of recall, what the peer has acted upon

	epoch   uint32
	peer    int32
	replies uint32 // reply buffers reserved for what it will answer
	target  uint16 // how many credits it wants to hold

	counted uint16 // its part of Pool.recalling
	urgent  bool   // it waits for a grant: tell it by a control message
	answer  bool   // the next header shall ask for an answer to the recall
	barred  bool   // it is granted nothing

	lastUse  time.Duration // last arrival or grant
	recallAt time.Duration // when it was last asked to give back
	since    time.Duration // since when it is in a queue
}

// held is how many credits are with the peer, on the way to it, in messages on the
// way here, or on the way back.
func (a *account) held() int { return int(a.granted - a.arrived - a.returned) }

// recalling reports whether the peer has not yet said what it did about a recall.
func (a *account) recalling() bool { return a.recall != a.acked }

// Each account can be in one list of each kind.
const (
	holding  = iota // holders, or recalled
	queueing        // hungry, or topping
	sending         // out
	numLinks
)

// list is a queue of accounts, through their links of one kind.
type list struct {
	queue.List[account]
	kind int
}

// add puts a at the end, out of whatever list of the kind it is in.
func (l *list) add(a *account) { l.Add(&a.links[l.kind], a) }

// leave takes a out of its list of the kind, if it is in one.
func (a *account) leave(kind int) { a.links[kind].Leave() }

func (a *account) isIn(l *list) bool { return a.links[l.kind].In() == &l.List }
