package am_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/am/amtest"
	"github.com/ibconduit/conduit/fabric"
)

// byRank is a Via with a lane for each rank, as a job on several networks is one.
type byRank []*am.Lane

func (v byRank) Lane(rank int) *am.Lane {
	if rank < 0 || rank >= len(v) {
		return v[0]
	}
	return v[rank]
}

func TestARequestGoesThroughTheLaneThatItsViaNames(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("where", func(c *am.Call) { _ = c.Reply(uint64(c.Lane().Rank()), uint64(c.From())) })
	one, other := lanes(t, amtest.NewMemory(3, 64), 3, am.Config{Table: table}), lanes(t, amtest.NewMemory(3, 64), 3, am.Config{Table: table})
	v := byRank{one[0], one[0], other[0]}
	for rank := range 3 {
		r, err := h.Call(bounded(t), v, rank)
		if err != nil || r.Arg(0) != uint64(rank) || r.Arg(1) != 0 {
			t.Errorf("rank %d answered %v, %v", rank, r.Args(), err)
		}
	}
	if a, b := one[1].Stats().Requests, one[2].Stats().Requests; a != 1 || b != 0 {
		t.Errorf("the first network brought %d requests to rank 1 and %d to rank 2, want 1 and 0", a, b)
	}
	if n := other[2].Stats().Requests; n != 1 {
		t.Errorf("the second network brought %d requests to rank 2, want 1", n)
	}
	var bad *fabric.RankError
	if err := h.Post(bounded(t), v, 3); !errors.As(err, &bad) {
		t.Errorf("a rank that does not exist: %v", err)
	}
}

func TestWithoutALaneEveryRequestIsAnErrorThatSaysWhatToDo(t *testing.T) {
	h := am.NewTable().Handle("nowhere", func(*am.Call) {})
	ctx := context.Background()
	for name, v := range map[string]am.Via{"nil": nil, "no lane": (*am.Lane)(nil), "a job without handlers": byRank{nil}} {
		_, call := h.Call(ctx, v, 0)
		_, with := h.CallWith(ctx, v, 0, am.Medium(nil))
		_, start := h.Start(ctx, v, 0, am.Payload{})
		_, prepare := h.Prepare(ctx, v, 0, 8)
		_, tryPrepare := h.TryPrepare(v, 0, 8)
		for i, err := range []error{call, with, start, prepare, tryPrepare, h.Post(ctx, v, 0), h.PostWith(ctx, v, 0, am.Medium(nil)),
			h.TryPost(v, 0), h.TryPostWith(v, 0, am.Medium(nil))} {
			if !errors.Is(err, am.ErrNoLane) {
				t.Errorf("%s, request %d: %v", name, i, err)
			}
		}
	}
}
