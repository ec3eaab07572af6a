package am

import "testing"

func TestWhoComesLaterLeavesEnoughForAllWhoWait(t *testing.T) {
	var l list
	first, second, late := &waiter{}, &waiter{}, &waiter{}
	if l.lacks(late, atPeer, 0) {
		t.Error("nobody waits, and there is something in the way")
	}
	l.add(first, atPeer)
	l.add(second, atPeer)
	for _, c := range []struct {
		name  string
		w     *waiter
		there int
		lacks bool
	}{
		{"the first", first, 0, false}, // what there is not is for others to say
		{"the second, one there", second, 1, true},
		{"the second, two there", second, 2, false},
		{"a third, two there", late, 2, true},
		{"a third, three there", late, 3, false},
		{"somebody without a place in the queue, two there", nil, 2, true},
		{"somebody without a place in the queue, three there", nil, 3, false},
	} {
		if got := l.lacks(c.w, atPeer, c.there); got != c.lacks {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
