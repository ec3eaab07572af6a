//go:build debug

package am_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
	"github.com/ibconduit/conduit/internal/lockrank"
)

const checked = true

// A request to itself runs its handler here, so the panic comes up here.
func TestDebugBuildPanics(t *testing.T) {
	var l []*am.Lane
	var mu lockrank.Mutex
	mu.Init(lockrank.HeapGlobal, 0)
	table := am.NewTable()
	var h *am.Handler
	post := table.Handle("posts", func(c *am.Call) { _ = h.Post(context.Background(), c.Lane(), 1) })
	poll := table.Handle("polls", func(c *am.Call) { _, _ = c.Lane().Test() })
	lock := table.Handle("keeps a lock", func(*am.Call) { mu.Lock() })
	h = table.Handle("h", func(*am.Call) {})
	l = lanes(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table})
	for _, c := range []struct {
		name string
		rule lockrank.Rule
		f    func()
	}{
		{"post in a handler", lockrank.InHandler, func() { _ = post.Post(bounded(t), l[0], 0) }},
		{"poll in a handler", lockrank.InHandler, func() { _ = poll.Post(bounded(t), l[0], 0) }},
		{"lock left by a handler", lockrank.HeldByHandler, func() { defer mu.Unlock(); _ = lock.Post(bounded(t), l[0], 0) }},
		{"wait with a lock", lockrank.HeldInWait, func() { mu.Lock(); defer mu.Unlock(); _, _ = h.Call(bounded(t), l[0], 1) }},
	} {
		func() {
			defer func() {
				var v *lockrank.Violation
				if err, _ := recover().(error); !errors.As(err, &v) || v.Rule != c.rule {
					t.Errorf("%s: %v", c.name, err)
				}
			}()
			c.f()
			t.Errorf("%s: no panic", c.name)
		}()
	}
}
