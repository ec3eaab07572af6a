package queue

import (
	"math/rand/v2"
	"testing"
)

type item struct{ key, place int }

func (x *item) Before(y *item) bool { return x.key < y.key }
func (x *item) Place() *int         { return &x.place }

func TestAHeapHasTheLeastElementFirst(t *testing.T) {
	var h Heap[*item]
	in := map[*item]bool{}
	for range 2_000 {
		x := &item{key: rand.IntN(50)}
		for y := range in { // any
			if rand.IntN(2) == 0 {
				x = y
			}
			break
		}
		switch {
		case !in[x]:
			h.Add(x)
			in[x] = true
		case rand.IntN(2) == 0:
			x.key = rand.IntN(50)
			h.Fix(x)
		default:
			h.Remove(x)
			h.Remove(x)
			delete(in, x)
		}
		if first := h.First(); h.Len() != len(in) || (first == nil) != (len(in) == 0) {
			t.Fatalf("%d elements, the first is %v, want %d", h.Len(), first, len(in))
		}
		for y := range in {
			if y.Before(h.First()) || y.place == 0 {
				t.Fatalf("%v in the heap, the first is %v", y, h.First())
			}
		}
	}
}
