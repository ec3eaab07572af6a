package measure

import (
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

func TestAllRoundsOfAPointHaveOneBatch(t *testing.T) {
	s, pt, other := &session{clockNS: 25}, lat(plan.Get, 8), lat(plan.Get, 64)
	if b := s.operations(pt, 1000); b != 1 {
		t.Errorf("%d operations of 1000 ns to a sample", b)
	}
	first := s.operations(pt, 10)
	s.keepBatch(pt, first)
	if b := s.operations(pt, 1000); first < 100 || b != first {
		t.Errorf("%d operations to a sample, in the next round %d", first, b)
	}
	if b := s.operations(other, 1000); b != 1 {
		t.Errorf("%d operations of another point, 1000 ns each, to a sample", b)
	}
	pt.Batch = 7
	if b := s.operations(pt, 10); b != 7 {
		t.Errorf("%d operations to a sample, 7 were asked for", b)
	}
}
