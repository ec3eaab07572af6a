package conduit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ibconduit/conduit/am"
)

// A rank that breaks the protocols of transient memory gets no memory by it, and harms no fetch.
func TestHostileFetchesAndPayloads(t *testing.T) {
	var waits = make(chan *FetchRequest, 2)
	cfg := withFetches(withBudget(16), "later", func(r *FetchRequest) { waits <- r })
	cfg.Memory.Payloads = map[string]func(*Payload){"in": func(p *Payload) { p.Release() }}
	cfg.Fabric = FabricSHM
	runLocal(t, 3, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		m := j.memory
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		if j.Rank() == 0 {
			set := NewFetchSet(w)
			data := FetchFrom[byte](set, 1, "later", 100)
			lease, err := set.Submit(ctx)
			if err != nil {
				return err
			}
			err = samePattern(data.Data(), 9)
			lease.Release()
			return errors.Join(err, j.Barrier(ctx), unheld(ctx, j))
		}
		if j.Rank() == 1 {
			r := <-waits
			send := func(n int, number uint64) error {
				return said[*am.RefusedError](m.data.Send(ctx, m.via(), 0, make([]byte, n), number), "nobody waits")
			}
			err := errors.Join(send(101, r.number), send(100, r.number+1), send(10, 1<<40)) // too long, and never asked for
			if err != nil {
				return err
			}
			b := make([]byte, 100)
			pattern(b, 9)
			if err := r.Reply(ctx, b); err != nil {
				return err
			}
			err = send(100, r.number) // a second time
			return errors.Join(err, j.Barrier(ctx), unheld(ctx, j))
		}
		err := errors.Join(
			// Of the fetch that rank 0 has at rank 1.
			m.refuse.PostWith(ctx, m.via(), 0, am.Medium([]byte("no")), 1),
			said[*am.RefusedError](m.data.Send(ctx, m.via(), 0, make([]byte, 100), 1), "nobody waits"),
			// Requests that mean nothing.
			m.ask.Post(ctx, m.via(), 0), m.ask.Post(ctx, m.via(), 0, 1, 1<<63, nameHash("later")), m.ask.Post(ctx, m.via(), 0, 1, 0, 0),
			// Payloads beyond the allowance, and for nobody; what was never sent unasked, consumed.
			m.unasked.Post(ctx, m.via(), 0), m.unasked.PostWith(ctx, m.via(), 0, am.Medium(make([]byte, 1000)), 5),
			m.consumed.Post(ctx, m.via(), 0, 1<<40, 1<<63), m.consumed.Post(ctx, m.via(), 0))
		if s := j.Budget().MemoryStats(); s.Unscheduled != 0 {
			err = errors.Join(err, fmt.Errorf("%+v", s))
		}
		return errors.Join(err, j.Barrier(ctx), unheld(ctx, j))
	}))
}
