package plan

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/errtext"
)

// Join measures how long jobs take to start. A point is a number of ranks, its Size; each sample
// is a job of its own, of fresh processes.
const Join = "join"

// Job is the operation of Join.
const Job = "job"

// DefStart is what a number of Join is the time of: from the launch until the last rank has come
// out of its first barrier.
const DefStart = "start"

// MaxSegment bounds the segments of Join.
const MaxSegment = 1 << 40

// validateJoin returns what is wrong with a point of Join by itself.
func (p Point) validateJoin() error {
	switch {
	case p.Op != Job:
		return fmt.Errorf("operation %q is not measured by %s", p.Op, p.Kind)
	case p.Size < 2 || p.Size > MaxRanks:
		return fmt.Errorf("%s: want 2 to %d", errtext.Count(p.Size, "rank"), MaxRanks)
	case p.Segment < 1 || p.Segment > MaxSegment:
		return fmt.Errorf("a segment of %s: want 1 to 1T", errtext.Count(p.Segment, "byte"))
	}
	return nil
}
