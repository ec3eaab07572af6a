package steptest

import (
	"maps"
	"slices"
	"testing"
)

// An operation that polled in vain does not count.
func TestTheOperationWithTheFewestCounts(t *testing.T) {
	op := func(a, b int) map[string]int { return map[string]int{"a": a, "b": b} }
	c := least([]map[string]int{op(900, 10), op(100, 12), op(102, 11)})
	if c.Operations != 3 || c.Own != 112 || !maps.Equal(c.Functions, op(100, 12)) {
		t.Errorf("%+v", c)
	}
	if c := least(nil); c.Operations != 0 || c.Own != 0 {
		t.Errorf("of nothing: %+v", c)
	}
}

// On a busy machine the first operations poll in vain, one after the other.
func TestSteppingGoesOnUntilOneIsWithinBounds(t *testing.T) {
	took := func(counts ...int) (all []map[string]int) {
		for _, n := range counts {
			all = append(all, map[string]int{"a": n})
		}
		return all
	}
	for _, c := range []struct {
		all  []map[string]int
		want bool
	}{
		{took(), false},
		{took(90), false},
		{took(90, 200), true},
		{took(200, 200), false},
		{took(200, 200, 200, 100), true},
		{took(slices.Repeat([]int{101}, 2*mostTimes-1)...), false},
		{took(slices.Repeat([]int{101}, 2*mostTimes)...), true},
	} {
		if got := enough(c.all, 2, 100); got != c.want {
			t.Errorf("%d operations: enough is %v, want %v", len(c.all), got, c.want)
		}
	}
}
