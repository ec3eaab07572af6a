package pagepool

import "testing"

// What is given back after Close has no memory for who still waits.
func TestAClosedPoolServesNobody(t *testing.T) {
	s := New()
	r := s.NewRegion(make([]byte, 2*Size), true, unbounded)
	var off uint64
	r.Take([]int{int(2 * Size)}, func(offs []uint64) { off = offs[0] })
	r.Take([]int{1}, func([]uint64) { t.Error("memory that is gone") })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.Give(off, int(2*Size))
}
