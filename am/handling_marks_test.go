package am

import "testing"

// Where nothing tells the address of a g its number does, which begins with 1: that of the main
// goroutine.
func TestWhatAGoroutineLeavesBehindIsNobodysMark(t *testing.T) {
	for _, other := range []uintptr{1, 2, 127, 1 << 12, 1<<40 + 384} {
		s := new(handlerMarks)
		marked := func(g uintptr) bool { p := s.part(g); return p.running.Load() != 0 && s.among(p, g) } // as here
		const g = 3
		s.leave(g, s.mark(g))
		if marked(g) {
			t.Error("who has left is handlerMarks")
		}
		if marked(other) {
			t.Errorf("goroutine %d is handlerMarks though it never entered", other)
		}
		x := s.mark(other)
		if !marked(other) {
			t.Errorf("goroutine %d is not handlerMarks", other)
		}
		y := s.mark(g)
		if x == y || !marked(g) || !marked(other) {
			t.Errorf("goroutine %d lost its mark to another", other)
		}
	}
}
