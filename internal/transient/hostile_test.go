package transient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/env/envtest"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/internal/pagepool"
)

func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }

// member is one rank of a test, with a worker that is always open and has no gets.
type member struct {
	*Memory
	f       *Fetcher
	barrier func()
}

type openWorker struct{ env.Worker }

func (openWorker) Open(string) error { return nil }

// over runs f on n ranks that share memory.
func over(t *testing.T, n int, cfg Config, f func(ctx context.Context, m member) error) {
	t.Helper()
	met := sync.NewCond(new(sync.Mutex))
	arrived := 0
	barrier := func() {
		met.L.Lock()
		defer met.L.Unlock()
		arrived++
		for until := (arrived + n - 1) / n * n; arrived < until; {
			met.Wait()
		}
		met.Broadcast()
	}
	size := pagepool.Round(uint64(cfg.ReceiveSize))
	envtest.SHM(t, n, func(ctx context.Context, e env.Env) error {
		m := New(cfg)
		if _, err := m.Spec(n); err != nil {
			return err
		}
		table := am.NewLibraryTable()
		m.Declare(table)
		var names []uint64
		for name := range cfg.Payloads {
			names = append(names, Hash(name))
		}
		for r := range n {
			m.Takes(r, names)
		}
		m.Open(e, false)
		l, err := envtest.OpenLibrary(e, table, am.Config{MaxMedium: 1024, Segment: e.Region(regionName).Bytes})
		if err != nil {
			return err
		}
		barrier()
		err = f(ctx, member{m, m.NewFetcher(openWorker{}), barrier})
		err = errors.Join(err, l.Quiesce(ctx))
		barrier()
		err = errors.Join(err, l.Drain(ctx), m.unheld(ctx))
		barrier()
		m.End()
		return errors.Join(err, l.Close(), m.Close())
	}, env.Spec{Name: regionName, Size: size, Align: pagepool.Size})
}

// unheld is that no bytes of the budget are held any more.
func (m *Memory) unheld(ctx context.Context) error {
	for {
		s := m.budget.MemoryStats()
		if s.Bulk+s.Small+s.Unscheduled+s.Reserve == 0 && s.Buffers == 0 {
			return m.Verify()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %+v", ctx.Err(), s)
		case <-time.After(time.Millisecond):
		}
	}
}

// refusedFor is nil for a refusal that gives a reason.
func refusedFor(err error, reason string) error {
	if !errors.As(err, new(*am.RefusedError)) || !strings.Contains(err.Error(), reason) {
		return fmt.Errorf("error %v, want an *am.RefusedError with %q", err, reason)
	}
	return nil
}

// A rank that breaks the protocols of transient memory gets no memory by it, and harms no fetch.
func TestHostileFetchesAndPayloads(t *testing.T) {
	const pages = 16
	waits, asked, attacked := make(chan *FetchRequest, 2), make(chan struct{}), make(chan struct{})
	cfg := Config{
		Budget:      flow.BudgetConfig{Limit: pages * int64(pagepool.Size), Small: -1, Unscheduled: -1},
		ReceiveSize: pages * int64(pagepool.Size),
		Fetches:     map[string]func(*FetchRequest){"later": func(r *FetchRequest) { waits <- r }},
		Payloads:    map[string]func(*Payload){"in": (*Payload).Release},
	}
	want := strings.Repeat("data", 25)
	over(t, 3, cfg, func(ctx context.Context, m member) error {
		send := func(n int, number uint64) error {
			return refusedFor(m.data.Send(ctx, m.via(), 0, make([]byte, n), number), "nobody waits")
		}
		switch m.env.Rank() {
		case 0:
			set, data := NewFetchSet(m.f), Fetched{}
			set.From(&data, 1, "later", len(want), nil)
			err := set.Post()
			if err == nil {
				err = set.Wait(ctx)
			}
			if err != nil {
				return err
			}
			if got := string(data.Data()); got != want {
				err = fmt.Errorf("data %q", got)
			}
			set.Release()
			return err
		case 1:
			r := <-waits
			close(asked)
			<-attacked
			err := errors.Join(send(101, r.number), send(100, r.number+1), send(10, 1<<40)) // too long, and never asked for
			if err != nil {
				return err
			}
			if err := r.Reply(ctx, []byte(want)); err != nil {
				return err
			}
			return send(100, r.number) // a second time
		}
		defer close(attacked)
		<-asked
		err := errors.Join(
			// Of the fetch that rank 0 has at rank 1.
			m.refuse.PostWith(ctx, m.via(), 0, am.Medium([]byte("no")), 1),
			send(100, 1),
			// Requests that mean nothing.
			m.ask.Post(ctx, m.via(), 0), m.ask.Post(ctx, m.via(), 0, 1, 1<<63, Hash("later")), m.ask.Post(ctx, m.via(), 0, 1, 0, 0),
			// Payloads beyond the allowance, and for nobody; what was never sent unasked, consumed.
			m.unasked.Post(ctx, m.via(), 0), m.unasked.PostWith(ctx, m.via(), 0, am.Medium(make([]byte, 1000)), 5),
			m.consumed.Post(ctx, m.via(), 0, 1<<40, 1<<63), m.consumed.Post(ctx, m.via(), 0))
		if s := m.budget.MemoryStats(); s.Unscheduled != 0 {
			err = errors.Join(err, fmt.Errorf("%+v", s))
		}
		return err
	})
}
