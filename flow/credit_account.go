package flow

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
	recall   uint32 // asked back
	acked    uint32 // of recall, what the peer has acted upon

	epoch   uint32
	peer    int32
	replies uint32 // reply buffers reserved for what it will answer
	target  uint16 // how many credits it wants to hold

	counted uint16 // its part of Pool.recalling
	urgent  bool   // it waits for a grant, which goes by a control message
	answer  bool   // the next header shall ask for an answer to the recall
	barred  bool   // it is granted nothing

	lastUse  time.Duration // last arrival or grant
	recallAt time.Duration // when it was last asked to give back
	since    time.Duration // since when it is queued
}

// held is how many credits are with the peer, on the way to it, in messages on the
// way here, or on the way back.
func (a *account) held() int { return int(a.granted - a.arrived - a.returned) }

// recalling reports whether a recall has no answer yet.
func (a *account) recalling() bool { return a.recall != a.acked }
