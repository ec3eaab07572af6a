//go:build !debug

package conduit

import (
	"context"
	"errors"
	"testing"

	"github.com/ibconduit/conduit/am"
)

// The goroutine that polls runs the handler: what it waited for might never be brought. The debug
// build panics.
func TestAHandlerThatWaitsForAWordGetsAnError(t *testing.T) {
	table := am.NewTable()
	var w *Worker
	errs := make(chan error, 2)
	h := table.Handle("wait", func(c *am.Call) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // so that the test ends
		errs <- w.WaitUntil(ctx, 0, Equal, 1)
		errs <- w.WaitUntil(ctx, 0, Equal, 0)
	})
	runLocal(t, 1, Config{Fabric: FabricSHM, Handlers: table, MessageEndpoints: 1}, func(ctx context.Context, j *Job) error {
		return withWorker(j, func(mine *Worker) error {
			w = mine
			_, err := h.Call(ctx, j, 0)
			return err
		})
	})
	if err := <-errs; !errors.Is(err, am.ErrInHandler) {
		t.Errorf("a handler waited: %v", err)
	}
	if err := <-errs; err != nil {
		t.Errorf("a word that is what it should be: %v", err)
	}
}
