//go:build !race && !debug

package am_test

import (
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// The network in memory allocates nothing per message, but for alarms.
func TestShortCallsAndPostsAllocateNothing(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("double", func(c *am.Call) { _ = c.Reply(2 * c.Arg(0)) })
	m := amtest.NewMemory(2, 64)
	l := endpoints(t, m, 2, am.Config{Table: table})
	ctx := bounded(t)
	call := testing.AllocsPerRun(2000, func() {
		if r, err := h.Call(ctx, l[0], 1, 21); err != nil || r.Arg(0) != 42 {
			t.Fatal(r.Arg(0), err)
		}
	})
	if call != 0 {
		t.Errorf("a call costs %v allocations", call)
	}
	post := testing.AllocsPerRun(2000, func() {
		if err := h.Post(ctx, l[0], 1, 21); err != nil {
			t.Fatal(err)
		}
	})
	if post != 0 {
		t.Errorf("a post costs %v allocations", post)
	}
	var via am.Via = byRank{l[0], l[0]}
	routed := testing.AllocsPerRun(2000, func() {
		if r, err := h.Call(ctx, via, 1, 21); err != nil || r.Arg(0) != 42 {
			t.Fatal(r.Arg(0), err)
		}
	})
	if routed != 0 {
		t.Errorf("a call through a Via that is no endpoint costs %v allocations", routed)
	}
	self := testing.AllocsPerRun(2000, func() {
		if r, err := h.Call(ctx, l[0], 0, 21); err != nil || r.Arg(0) != 42 {
			t.Fatal(r.Arg(0), err)
		}
	})
	if self != 0 {
		t.Errorf("a call to itself costs %v allocations", self)
	}
	wait := testing.AllocsPerRun(2000, func() {
		if r, p, err := h.StartWait(ctx, l[0], 1, 21); err != nil || p != nil || r.Arg(0) != 42 {
			t.Fatal(r.Arg(0), err)
		}
	})
	if wait != 0 {
		t.Errorf("a call that may outlive its wait costs %v allocations", wait)
	}
}
