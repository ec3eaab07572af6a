package transient

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
)

// FetchRequest is a request of another rank for data (Config.Fetches). It has to be answered
// once, by any goroutine, at once or later: a rank without ready data keeps it until they
// are.
type FetchRequest struct {
	m        *Memory
	from     int
	number   uint64
	size     int
	args     []uint64
	open     *atomic.Int64 // unanswered ones of the rank
	answered atomic.Bool
}

// asks handles a request.
func (m *Memory) asks(c *am.Call) {
	r := &FetchRequest{m: m, from: c.From(), number: c.Arg(0), args: append([]uint64(nil), c.Args()[min(3, c.Len()):]...)}
	if n := c.Arg(1); n <= 1<<40 {
		r.size = int(n)
	}
	m.mu.Lock()
	if r.open = m.serving[r.from]; r.open == nil {
		r.open = new(atomic.Int64)
		m.serving[r.from] = r.open
	}
	m.mu.Unlock()
	f, ok := m.makers[c.Arg(2)]
	switch n := r.open.Add(1); {
	case c.Len() < 3 || r.size == 0 || n > 2*maxRequests:
		r.open.Add(-1)
		m.env.Logger().Warn("fetch", "rank", r.from, "dropped", "a request that is malformed, or one of too many",
			"unanswered", n-1)
	case !ok:
		go r.Fail(m.env.Context(), errors.New("it has no function of this name (Config.Memory.Fetches)"))
	case n > maxRequests:
		go r.Fail(m.env.Context(), fmt.Errorf("it has %d requests of this rank to answer already", maxRequests))
	default:
		go r.run(f)
	}
}

func (r *FetchRequest) run(f named[*FetchRequest]) {
	r.m.called(func() { f.call(r) }, func(failure any) {
		_ = r.Fail(r.m.env.Context(), fmt.Errorf("its function panicked: %v", failure)) // unless it has answered
	})
}

// From is the requesting rank.
func (r *FetchRequest) From() int { return r.from }

// Size is how many bytes it takes at most.
func (r *FetchRequest) Size() int { return r.size }

// Args are its arguments.
func (r *FetchRequest) Args() []uint64 { return r.args }

// Arg returns argument i, and 0 for one that there is not.
func (r *FetchRequest) Arg(i int) uint64 {
	if uint(i) >= uint(len(r.args)) {
		return 0
	}
	return r.args[i]
}

// Reply sends the data, at most Size bytes, and returns when they may be reused. The asking rank
// has memory for them already: Reply waits for a credit and for one answer of that rank, not for
// memory. When ctx ends first, the fetch fails. Errors: am.ErrAnswered after an answer; an
// *am.RefusedError where the rank waits for the data no more; as of [am.Large.Send].
func (r *FetchRequest) Reply(ctx context.Context, data []byte) error {
	if len(data) > r.size {
		err := fmt.Errorf("conduit: %d bytes for a fetch of rank %d that takes %d", len(data), r.from, r.size)
		return errors.Join(err, r.Fail(ctx, err))
	}
	if !r.take() {
		return am.ErrAnswered
	}
	err := r.m.data.Send(ctx, r.m.via(), r.from, data, r.number)
	if err != nil && !errors.As(err, new(*am.RefusedError)) && !errors.Is(err, fabric.ErrPeerDown) {
		go r.refuse(r.m.env.Context(), err) // it may not have been announced
	}
	return err
}

// Fail sends the rank the reason that there are no data; of the text 512 bytes travel. It waits for
// a credit; after the end of ctx it goes as soon as there is one.
func (r *FetchRequest) Fail(ctx context.Context, why error) error {
	if !r.take() {
		return am.ErrAnswered
	}
	err := r.refuse(ctx, why)
	if err != nil && ctx.Err() != nil {
		go r.refuse(r.m.env.Context(), why)
	}
	return err
}

func (r *FetchRequest) take() bool {
	if r.answered.Swap(true) {
		return false
	}
	r.open.Add(-1)
	return true
}

func (r *FetchRequest) refuse(ctx context.Context, why error) error {
	text := []byte(why.Error())
	return r.m.refuse.PostWith(ctx, r.m.via(), r.from, am.Medium(text[:min(len(text), maxFetchText)]), r.number)
}
