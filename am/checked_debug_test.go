//go:build debug

package am_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/lockrank"
)

const checked = true

// What handlers and callers must not do with locks and endpoints panics, and says which rule was
// broken. A request to itself runs its handler here, so the panic comes up here.
func TestDebugBuildPanics(t *testing.T) {
	var h *am.Handler
	var outer, inner, theirs lockrank.Mutex
	outer.Init(lockrank.HeapLocal, 0)
	inner.Init(lockrank.Limit, 0)
	theirs.Init(lockrank.HeapGlobal, 0)
	taken, done := make(chan struct{}), make(chan struct{})
	var keeper sync.WaitGroup
	// It ends without the lock: what a goroutine keeps is held against the one that gets its memory.
	keeper.Go(func() { theirs.Lock(); defer theirs.Unlock(); close(taken); <-done })
	defer keeper.Wait()
	defer close(done)
	<-taken
	bg := context.Background()
	table := am.NewTable()
	l := func(c *am.Call) *am.Endpoint { return c.Endpoint() }
	in := map[string]*am.Handler{} // each handler breaks the rule of its name
	for name, f := range map[string]func(c *am.Call){
		"posts":                  func(c *am.Call) { _ = h.Post(bg, l(c), 1) },
		"calls":                  func(c *am.Call) { _, _ = h.Call(bg, l(c), 1) },
		"prepares":               func(c *am.Call) { _, _ = h.Prepare(bg, l(c), 1, 1) },
		"polls":                  func(c *am.Call) { _, _ = l(c).Test() },
		"serves":                 func(c *am.Call) { _ = l(c).Serve(bg) },
		"quiesces":               func(c *am.Call) { _ = l(c).Quiesce(bg) },
		"ends requests":          func(c *am.Call) { _ = l(c).EndRequests(bg) },
		"drains":                 func(c *am.Call) { _ = l(c).Drain(bg) },
		"closes":                 func(c *am.Call) { _ = l(c).Close() },
		"leaves a lock":          func(*am.Call) { outer.Lock() },
		"inverts two locks":      func(*am.Call) { inner.Lock(); defer inner.Unlock(); outer.Lock() },
		"locks twice":            func(*am.Call) { outer.Lock(); defer outer.Unlock(); outer.Lock() },
		"unlocks what is free":   func(*am.Call) { outer.Unlock() },
		"unlocks what others do": func(*am.Call) { theirs.Unlock() },
	} {
		in[name] = table.Handle(name, f)
	}
	h = table.Handle("h", func(*am.Call) {})
	endpoint := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, CloseAfter: time.Millisecond})[0] // what panicked never ends
	handler := func(name string) func() { return func() { _ = in[name].Post(bounded(t), endpoint, 0) } }
	held := func(f func()) func() { return func() { outer.Lock(); defer outer.Unlock(); f() } }
	for _, c := range []struct {
		name string
		rule lockrank.Rule
		f    func()
	}{
		{"post in a handler", lockrank.InHandler, handler("posts")},
		{"call in a handler", lockrank.InHandler, handler("calls")},
		{"prepare in a handler", lockrank.InHandler, handler("prepares")},
		{"poll in a handler", lockrank.InHandler, handler("polls")},
		{"serve in a handler", lockrank.InHandler, handler("serves")},
		{"quiesce in a handler", lockrank.InHandler, handler("quiesces")},
		{"end requests in a handler", lockrank.InHandler, handler("ends requests")},
		{"drain in a handler", lockrank.InHandler, handler("drains")},
		{"close in a handler", lockrank.InHandler, handler("closes")},
		{"lock left by a handler", lockrank.HeldByHandler, func() { defer outer.Unlock(); handler("leaves a lock")() }},
		{"inversion in a handler", lockrank.Inversion, handler("inverts two locks")},
		{"lock taken twice in a handler", lockrank.Inversion, handler("locks twice")},
		{"unlock of a free lock in a handler", lockrank.NotHeld, handler("unlocks what is free")},
		{"unlock of another's lock in a handler", lockrank.NotHeld, handler("unlocks what others do")},
		{"call with a lock", lockrank.HeldInWait, held(func() { _, _ = h.Call(bounded(t), endpoint, 1) })},
		{"poll with a lock", lockrank.HeldInWait, held(func() { _, _ = endpoint.Test() })},
		{"serve with a lock", lockrank.HeldInWait, held(func() { _ = endpoint.Serve(bounded(t)) })},
		{"quiesce with a lock", lockrank.HeldInWait, held(func() { _ = endpoint.Quiesce(bounded(t)) })},
		{"end requests with a lock", lockrank.HeldInWait, held(func() { _ = endpoint.EndRequests(bounded(t)) })},
		{"close with a lock", lockrank.HeldInWait, held(func() { _ = endpoint.Close() })},
		{"drain with a lock", lockrank.HeldInWait, held(func() { _ = endpoint.Drain(bounded(t)) })},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				var v *lockrank.Violation
				if err, _ := recover().(error); !errors.As(err, &v) || v.Rule != c.rule {
					t.Errorf("got %v, want rule %v", err, c.rule)
				}
			}()
			c.f()
			t.Error("no panic")
		})
	}
}
