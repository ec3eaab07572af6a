package conduit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
)

// FetchRequest is a request of another rank for data (MemoryConfig.Fetches). It is to be answered
// once, by any goroutine, at once or later: a rank whose data are not ready yet keeps it until they
// are.
type FetchRequest struct {
	t        *transient
	from     int
	number   uint64
	size     int
	args     []uint64
	open     *atomic.Int64 // unanswered ones of the rank
	answered atomic.Bool
}

// asks is the handler of a request.
func (t *transient) asks(c *am.Call) {
	r := &FetchRequest{t: t, from: c.From(), number: c.Arg(0), args: append([]uint64(nil), c.Args()[min(3, c.Len()):]...)}
	if n := c.Arg(1); n <= 1<<40 {
		r.size = int(n)
	}
	t.mu.Lock()
	if r.open = t.serving[r.from]; r.open == nil {
		r.open = new(atomic.Int64)
		t.serving[r.from] = r.open
	}
	t.mu.Unlock()
	f, ok := t.makers[c.Arg(2)]
	switch n := r.open.Add(1); {
	case c.Len() < 3 || r.size == 0 || n > 2*maxRequests:
		r.open.Add(-1)
		t.job.cfg.Logger.Warn("fetch", "rank", r.from, "dropped", "a request that is malformed, or one of too many", "unanswered", n-1)
	case !ok:
		go r.Fail(t.job.life, errors.New("it has no function of this name (Config.Memory.Fetches)"))
	case n > maxRequests:
		go r.Fail(t.job.life, fmt.Errorf("it has %d requests of this rank to answer already", maxRequests))
	default:
		go r.run(f)
	}
}

func (r *FetchRequest) run(f named[*FetchRequest]) {
	called(r.t.job, func() { f.call(r) }, func(failure any) {
		_ = r.Fail(r.t.job.life, fmt.Errorf("its function panicked: %v", failure)) // unless it has answered
	})
}

// called calls a function of the program's, on a goroutine that is only for that. One that ends the
// goroutine counts as one that panics.
func called(j *Job, f func(), failed func(failure any)) {
	returned := false
	defer func() {
		v := recover()
		if v == nil && !returned {
			v = "it called runtime.Goexit"
		}
		if v != nil {
			failed(v)
		}
		j.learned()
	}()
	j.learned()
	f()
	returned = true
}

// Job is the job of the rank that is asked.
func (r *FetchRequest) Job() *Job { return r.t.job }

// From is the rank that asks.
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
	err := r.t.data.Send(ctx, r.t.via(), r.from, data, r.number)
	if err != nil && !errors.As(err, new(*am.RefusedError)) && !errors.Is(err, ErrPeerDown) {
		go r.refuse(r.t.job.life, err) // it may not have been announced
	}
	return err
}

// Fail tells the rank why there are no data; of the text 512 bytes travel. It waits for a credit;
// after the end of ctx the rank is told as soon as there is one.
func (r *FetchRequest) Fail(ctx context.Context, why error) error {
	if !r.take() {
		return am.ErrAnswered
	}
	err := r.refuse(ctx, why)
	if err != nil && ctx.Err() != nil {
		go r.refuse(r.t.job.life, why)
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
	return r.t.refuse.PostWith(ctx, r.t.via(), r.from, am.Medium(text[:min(len(text), maxFetchText)]), r.number)
}
