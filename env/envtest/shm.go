package envtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/shm"
	"github.com/ibconduit/conduit/segment"
)

// SHM runs f on n ranks of this process that reach each other by shared memory, and fails the test
// with their errors. Their context ends after a minute.
func SHM(t testing.TB, n int, f func(ctx context.Context, e env.Env) error, specs ...env.Spec) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the ranks take more than a minute"))
	defer cancel()
	offs, size, err := layOut(specs)
	if err != nil {
		t.Fatal(err)
	}
	ranks, nets := make([]*shmRank, n), make([]*shm.Network, n)
	addrs := make([][]byte, n)
	for i := range n {
		m, err := segment.Map(segment.Config{Size: int64(size), Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if nets[i], err = shm.New(shm.Config{Rank: i, Size: n, Segment: m, Job: t.Name()}); err != nil {
			t.Fatal(err)
		}
		defer nets[i].Close()
		addrs[i] = nets[i].Addr()
		ranks[i] = &shmRank{newRank(i, n, nets[i])}
		ranks[i].place(specs, offs, m.Bytes())
	}
	each(t, n, func(i int) error { return nets[i].Connect(ctx, addrs, nil) })
	if t.Failed() {
		return
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

// shmRank is the Env of a rank that is goroutines.
type shmRank struct{ *rank }

func (r *shmRank) Host() env.Host { return env.Goroutines{} }

func (r *shmRank) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	return env.WaitWord(ctx, word, c, value, stop)
}
