package envtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/fabric/shm"
	"github.com/ibconduit/conduit/internal/spin"
	"github.com/ibconduit/conduit/segment"
)

// SHM runs f on n ranks of this process that reach each other by shared memory, and fails the test
// with their errors. Their context ends after a minute.
func SHM(t testing.TB, n int, f func(ctx context.Context, e env.Env) error, specs ...env.Spec) {
	t.Helper()
	On(t, n, func(rank int, m *segment.Mapping) (fabric.Network, error) {
		return shm.New(shm.Config{Rank: rank, Size: n, Segment: m, Job: t.Name()})
	}, f, specs...)
}

// On is SHM on another network, of which open makes a rank's attachment, with m as its segment.
func On(t testing.TB, n int, open func(rank int, m *segment.Mapping) (fabric.Network, error),
	f func(ctx context.Context, e env.Env) error, specs ...env.Spec) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the ranks take more than a minute"))
	defer cancel()
	offs, size, err := layOut(specs)
	if err != nil {
		t.Fatal(err)
	}
	ranks, nets := make([]*realRank, n), make([]fabric.Network, n)
	for i := range n {
		m, err := segment.Map(segment.Config{Size: int64(size), Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if nets[i], err = open(i, m); err != nil {
			t.Fatal(err)
		}
		defer nets[i].Close()
		ranks[i] = &realRank{rank: newRank(i, n, nets[i])}
		ranks[i].sharing.SetRanks((n+runtime.NumCPU()-1)/runtime.NumCPU(), true)
		ranks[i].place(specs, offs, m.Bytes())
	}
	if err := fabrictest.Connect(ctx, nets); err != nil {
		t.Fatal(err)
	}
	each(t, n, func(i int) error { return f(ctx, ranks[i]) })
}

// each runs f for each rank at once.
func each(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := f(i); err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

// realRank is the Env of a rank that is goroutines.
type realRank struct {
	*rank
	sharing spin.Sharing
}

func (r *realRank) Host() env.Host { return env.Goroutines{} }

func (r *realRank) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	return fabric.WaitWord(ctx, &spin.Waiter{Sharing: &r.sharing}, word, c, value, stop)
}

func (r *realRank) Crowded() bool { return r.sharing.Crowded() }
