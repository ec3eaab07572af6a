package coll

import "github.com/ibconduit/conduit/fabric"

// Counters are those of the lanes that all teams of the rank share.
func (t *Team) Counters() fabric.Counters {
	var c fabric.Counters
	for _, l := range t.teams.lanes.All() {
		c = c.Add(l.Counters().Load())
	}
	return c
}

// NumberMask are the bits of an operation's number that a rank tells the others that breaks a team.
const NumberMask = numberMask
