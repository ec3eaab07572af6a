package am

import (
	"errors"
	"strings"
	"testing"
)

func tableOf(names ...string) *Table {
	t := NewTable()
	for _, n := range names {
		t.Handle(n, func(*Call) {})
	}
	return t
}

func TestTablesDoNotDependOnRegistrationOrder(t *testing.T) {
	a, b := tableOf("x", "y", "z"), tableOf("z", "x", "y")
	if a.Hash() != b.Hash() || a.Check(1, b.Encode()) != nil {
		t.Fatal("two tables of the same handlers differ")
	}
	if a.find(1).Name() != "y" || b.find(1).Name() != "y" || a.find(3) != nil {
		t.Fatal("the handlers are not in the order of their names")
	}
}

func TestTheFirstHandlerThatDiffersIsNamed(t *testing.T) {
	base := tableOf("get", "put", "sum")
	for _, c := range []struct {
		other       *Table
		index       int
		here, there string
	}{
		{tableOf("get", "putt", "sum"), 1, "put", "putt"},
		{tableOf("get", "put"), 2, "sum", ""},
		{tableOf("get", "put", "sum", "swap"), 3, "", "swap"},
		{tableOf(), 0, "get", ""},
	} {
		var e *TableError
		if base.Hash() == c.other.Hash() {
			t.Fatal("equal hashes")
		}
		if err := base.Check(7, c.other.Encode()); !errors.As(err, &e) || e.Rank != 7 || e.Index != c.index || e.Here != c.here || e.There != c.there {
			t.Errorf("%+v, want %d, %q and %q", err, c.index, c.here, c.there)
		} else if !strings.Contains(err.Error(), "same program") {
			t.Errorf("no remedy in %q", err)
		}
	}
	wrong := base.Encode()
	wrong[0]++
	if err := base.Check(1, wrong); err == nil || !strings.Contains(err.Error(), "versions") {
		t.Errorf("another version: %v", err)
	}
}

func TestRegistrationRefusesMistakes(t *testing.T) {
	for name, f := range map[string]func(*Table){
		"taken":    func(x *Table) { x.Handle("a", func(*Call) {}) },
		"empty":    func(x *Table) { x.Handle("", func(*Call) {}) },
		"function": func(x *Table) { x.Handle("b", nil) },
		"long":     func(x *Table) { x.Handle(strings.Repeat("x", MaxName+1), func(*Call) {}) },
		"late":     func(x *Table) { x.Hash(); x.Handle("b", func(*Call) {}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f(tableOf("a"))
		}()
	}
}
