package steptest

import (
	"maps"
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
