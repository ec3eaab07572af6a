//go:build !debug

package am_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// What the debug build panics on is an error here, however many handlers run, and whatever endpoint
// they use.
func TestManyHandlersThatCommunicateGetErrors(t *testing.T) {
	const many = 500
	table, other := am.NewTable(), am.NewTable()
	var all sync.WaitGroup
	together := make(chan struct{})
	all.Add(many)
	var another *am.Endpoint
	post := other.Handle("post", func(*am.Call) {})
	h := table.Handle("h", func(*am.Call) {
		all.Done()
		<-together
		if err := post.Post(t.Context(), another, 0); !errors.Is(err, am.ErrInHandler) {
			t.Errorf("a handler may post through another endpoint: %v", err)
		}
	})
	here := endpoints(t, amtest.NewMemory(1, 64), 1, am.Config{Table: table})[0]
	another = endpoints(t, amtest.NewMemory(1, 64), 1, am.Config{Table: other})[0]
	var calls sync.WaitGroup
	for range many {
		calls.Go(func() {
			if _, err := h.Call(t.Context(), here, 0); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(together)
	calls.Wait()
	if err := post.Post(t.Context(), another, 0); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
