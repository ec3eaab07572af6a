package measure

import (
	"math/rand/v2"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// areas are the two halves of a rank's segment that a point uses.
type areas struct {
	remote uint64 // offset of what the peer reaches, the same on all ranks
	local  uint64 // offset of what this rank sends from or reads into
	size   uint64
}

func areasOf(pt plan.Point) areas {
	n := uint64(pt.Window()) * uint64(pt.Lanes)
	return areas{remote: 0, local: n, size: n}
}

// pattern fills b with bytes that depend on the seed and the rank.
func pattern(b []byte, seed uint64, rank int) {
	src := rand.NewChaCha8([32]byte{byte(rank), byte(rank >> 8), byte(seed), byte(seed >> 8), byte(seed >> 16),
		byte(seed >> 24),
		byte(seed >> 32), byte(seed >> 40), byte(seed >> 48), byte(seed >> 56)})
	_, _ = src.Read(b) // never fails
}

// prepare lays the pattern where bytes come from and zeros where they arrive, and chooses the local
// memory. The words of atomics begin at zero.
func (s *session) prepare(pt plan.Point) areas {
	a := areasOf(pt)
	seg := s.job.Segment()
	remote, local := seg[a.remote:a.remote+a.size], seg[a.local:a.local+a.size]
	if pt.Local == plan.Own {
		local = make([]byte, a.size)
	}
	s.local = local
	clear(remote)
	clear(local)
	switch pt.Op {
	case plan.Put, plan.AM:
		pattern(local, s.plan.Seed, s.job.Rank())
	case plan.Get:
		pattern(remote, s.plan.Seed, s.job.Rank())
	}
	return a
}

// expected is the pattern of a rank's area.
func (s *session) expected(a areas, rank int) []byte {
	b := make([]byte, a.size)
	pattern(b, s.plan.Seed, rank)
	return b
}

// differ counts the slots, one operation's bytes each, that are not as they should be.
func differ(got, want []byte, stride, size int64) (n int64) {
	for at := int64(0); at+size <= int64(len(want)); at += stride {
		if string(got[at:at+size]) != string(want[at:at+size]) {
			n++
		}
	}
	return n
}
