package plan

import "fmt"

// Coll measures the collective operations of the team of all ranks.
const Coll = "coll"

// Operations of Coll.
const (
	Barrier   = "barrier"
	AllReduce = "allreduce" // the sum of float64, in place
	AllToAll  = "alltoall"
	Bcast     = "bcast" // from rank 0
)

// CollOps are all of them, in the order in which they are measured.
var CollOps = []string{Barrier, AllReduce, AllToAll, Bcast}

// MaxCollBytes bounds a rank's buffer, and what a sample may move of it.
const MaxCollBytes = 1 << 30

// DefaultLoop is how many operations make a sample of Coll without --loop: so many that
// the clock and the barrier in front of it do not count, and a sample of long ones takes some
// milliseconds. It depends on nothing else than the point, so that both sides of a comparison have
// the same.
func DefaultLoop(size int64) int {
	const most, least, bytes = 1000, 10, 8 << 20
	return int(min(max(bytes/max(size, 1), least), most))
}

// validateColl returns the fault of a point of Coll by itself.
func (p Point) validateColl() error {
	switch p.Op {
	case Barrier:
		if p.Size != 0 {
			return fmt.Errorf("size %d: a barrier has no data", p.Size)
		}
	case AllReduce:
		if p.Size%8 != 0 {
			return fmt.Errorf("size %d: want a multiple of 8, as it is numbers of 8 bytes that are added", p.Size)
		}
	case AllToAll, Bcast:
	default:
		return fmt.Errorf("operation %q is not measured by %s", p.Op, p.Kind)
	}
	if p.Batch < 1 {
		return fmt.Errorf("%d operations per sample: want 1 or more", p.Batch)
	}
	return nil
}

// fitsRanks returns the fault of a point of Coll for a number of ranks.
func (p Point) fitsRanks(ranks int) error {
	if p.Op == AllToAll && p.Size > MaxCollBytes/int64(ranks) {
		return fmt.Errorf("size %d: %d ranks have more than 1G to exchange each", p.Size, ranks)
	}
	return nil
}

// collBytes is the memory of a segment that the plan's points of Coll need: a word for each rank,
// by which a barrier is checked.
func (p *Plan) collBytes() int64 {
	for _, pt := range p.Points {
		if pt.Kind == Coll {
			return 8 * int64(p.Ranks)
		}
	}
	return 0
}
