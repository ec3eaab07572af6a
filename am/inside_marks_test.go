package am

import "testing"

// Where nothing tells the address of a g its number does, which begins with 1: that of the main
// goroutine.
func TestWhatAGoroutineLeavesBehindIsNobodysMark(t *testing.T) {
	for _, other := range []uintptr{1, 2, 127, 1 << 12, 1<<40 + 384} {
		s := new(inside)
		const g = 3
		s.leave(g, s.mark(g))
		if s.marked(g) {
			t.Error("who has left is inside")
		}
		if s.marked(other) {
			t.Errorf("goroutine %d is inside though it never entered", other)
		}
		x := s.mark(other)
		if !s.marked(other) {
			t.Errorf("goroutine %d is not inside", other)
		}
		y := s.mark(g)
		if x == y || !s.marked(g) || !s.marked(other) {
			t.Errorf("goroutine %d lost its mark to another", other)
		}
	}
}
