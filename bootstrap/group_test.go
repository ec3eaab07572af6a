package bootstrap

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

func TestGroupResultsAreNotShared(t *testing.T) {
	ctx := bounded(t)
	ranks := NewGroup(2)
	defer closeAll(ranks)
	own := []byte("mine")
	results := make([][][]byte, 2)
	noErrors(t, onAll(ranks, func(b Bootstrap) (err error) {
		blob := []byte("yours")
		if b.Rank() == 0 {
			blob = own
		}
		results[b.Rank()], err = b.Exchange(ctx, blob)
		return err
	}))
	results[0][0][0], results[0][1][0] = 'X', 'X'
	if string(own) != "mine" || string(results[1][0]) != "mine" || string(results[1][1]) != "yours" {
		t.Errorf("%q %q", own, results[1])
	}
}

func TestGroupDifferentCollectivesFailOnEveryRank(t *testing.T) {
	ctx := bounded(t)
	ranks := NewGroup(3)
	defer closeAll(ranks)
	for r, err := range onAll(ranks, func(b Bootstrap) error {
		if b.Rank() == 1 {
			_, err := b.Exchange(ctx, nil)
			return err
		}
		return b.Barrier(ctx)
	}) {
		if !errors.Is(err, ErrMisuse) || !strings.Contains(err.Error(), "Exchange") || !strings.Contains(err.Error(), "Barrier") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestCollectivesOfOneRankTakeTurns(t *testing.T) {
	ctx := bounded(t)
	ranks := NewGroup(2)
	defer closeAll(ranks)
	both := append(ranks[:2:2], ranks...) // two goroutines for each rank
	noErrors(t, onAll(both, func(b Bootstrap) error { return b.Barrier(ctx) }))
}

// halfBarrier is a job of two whose rank 0 is in a Barrier, which first receives the result of.
func halfBarrier(t *testing.T) (ctx context.Context, ranks []Bootstrap, first chan error) {
	ctx, ranks, first = bounded(t), NewGroup(2), make(chan error)
	t.Cleanup(func() { closeAll(ranks) })
	go func() { first <- ranks[0].Barrier(ctx) }()
	inCollective(t, ranks[0])
	return ctx, ranks, first
}

func TestAWaitForTheTurnEndsWithItsContext(t *testing.T) {
	ctx, ranks, first := halfBarrier(t)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if err := ranks[0].Barrier(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := ranks[1].Barrier(ctx); err != nil { // the job is not harmed
		t.Error(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestCloseIsIdempotentAndEndsACollective(t *testing.T) {
	_, ranks, first := halfBarrier(t)
	for range 2 {
		if err := ranks[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-first; !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestSelfIsAJobOfOne(t *testing.T) {
	b, err := New(bounded(t), Options{Lookup: env(), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.Rank() != 0 || b.Size() != 1 || b.Name() != "self" || b.JobID() == "" {
		t.Errorf("%d/%d %s %q", b.Rank(), b.Size(), b.Name(), b.JobID())
	}
	if err := checkExchanges(bounded(t), b); err != nil {
		t.Error(err)
	}
}

func TestExchangeRefusesABlobAboveTheLimit(t *testing.T) {
	b := NewGroup(1)[0]
	defer b.Close()
	if _, err := b.Exchange(bounded(t), make([]byte, MaxBlob+1)); err == nil {
		t.Error("taken")
	}
	if err := b.Barrier(bounded(t)); err != nil { // a refusal is not a failure of the job
		t.Error(err)
	}
}
