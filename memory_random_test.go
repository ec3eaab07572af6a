package conduit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/pagepool"
)

var memorySteps = flag.Int("memory-steps", 400, "steps of each rank in the random test of transient memory")

// randomRank is a rank that does what the generator says: sets that are submitted, posted ahead,
// given up, released by others or in part; payloads; limits that change.
type randomRank struct {
	j       *Job
	rng     *rand.Rand
	page    int
	limit   int64
	done    *atomic.Int64 // sets that brought data, and payloads that arrived
	mu      sync.Mutex
	kept    []*Payload
	leases  chan *Lease // released by another goroutine
	sending sync.WaitGroup
	errs    []error
}

// tolerated are the ends that a step may have.
func tolerated(err error) bool {
	var refused *am.RefusedError
	var stall *flow.MemoryStallError
	return err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrPeerDown) ||
		errors.As(err, &refused) || errors.As(err, &stall) || errors.Is(err, am.ErrWithdrawn)
}

func (r *randomRank) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// set makes a set of a few fetches, with a check of its data and their releases one by one.
func (r *randomRank) set(w *Worker) (set *FetchSet, check func() error, releases []func()) {
	set = NewFetchSet(w)
	var checks []func() error
	for left := 1 + r.rng.IntN(4); left > 0; left-- {
		from, n := r.rng.IntN(r.j.Size()), 1+r.rng.IntN(r.page*3/2)
		if r.rng.IntN(2) == 0 {
			g := FetchSlice(set, At[byte](from, 0), n)
			checks, releases = append(checks, func() error { return samePattern(g.Data(), from) }), append(releases, g.Release)
			continue
		}
		seed := r.rng.IntN(1000)
		f := FetchFrom[byte](set, from, "echo", n, uint64(n), uint64(seed))
		checks, releases = append(checks, func() error { return samePattern(f.Data(), seed) }), append(releases, f.Release)
	}
	return set, func() (err error) {
		for _, c := range checks {
			err = errors.Join(err, c())
		}
		return err
	}, releases
}

// step is one step. Its error is a mistake.
func (r *randomRank) step(ctx context.Context, w *Worker) error {
	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Duration(r.rng.IntN(300))*time.Microsecond)
	}
	finish := func(l *Lease, check func() error, err error) error {
		if err != nil {
			if tolerated(err) {
				return nil
			}
			return err
		}
		r.done.Add(1)
		if err := check(); err != nil {
			return err
		}
		if r.rng.IntN(3) == 0 {
			l.Handover(nil)
			r.leases <- l
			return nil
		}
		l.Release()
		return nil
	}
	set, check, releases := r.set(w)
	switch r.rng.IntN(8) {
	case 0, 1, 2:
		l, err := set.Submit(ctx)
		return finish(l, check, err)
	case 3:
		c, cancel := short()
		defer cancel()
		l, err := set.Submit(c)
		return finish(l, check, err)
	case 4: // posted ahead
		p, err := set.Post()
		if err != nil {
			return err
		}
		ahead, checkAhead, _ := r.set(w)
		q, err := ahead.Post()
		if err != nil {
			p.Cancel()
			return err
		}
		if r.rng.IntN(3) == 0 {
			p.Cancel()
		} else {
			l, err := p.Wait(ctx)
			if err = finish(l, check, err); err != nil {
				q.Cancel()
				return err
			}
		}
		l, err := q.Wait(ctx)
		return finish(l, checkAhead, err)
	case 5:
		if _, err := set.Submit(ctx); err != nil {
			return finish(nil, nil, err)
		}
		for _, release := range releases {
			release()
		}
		return nil
	case 6:
		return r.j.Budget().SetLimit(r.limit + r.rng.Int64N(r.limit))
	}
	to, n, seed, c, cancel := r.rng.IntN(r.j.Size()), r.rng.IntN(3*r.page), r.rng.IntN(1000), ctx, context.CancelFunc(func() {})
	if r.rng.IntN(2) == 0 {
		c, cancel = short()
	}
	r.sending.Go(func() {
		defer cancel()
		b := make([]byte, n)
		pattern(b, seed)
		if err := SendPayload(c, r.j, to, "in", b, uint64(seed)); !tolerated(err) {
			r.fail("payload: %w", err)
		}
	})
	return nil
}

// Whatever ranks submit, give up, release and resize, and whoever dies: bytes are neither lost nor
// there twice, what arrives is what was asked for, and no more memory is used than the limit.
func TestRandomJobsKeepTheAccounts(t *testing.T) {
	for _, dies := range []bool{false, true} {
		name := "all live"
		if dies {
			name = "one dies"
		}
		t.Run(name, func(t *testing.T) { fabrics(t, func(t *testing.T, cfg Config) { randomJob(t, cfg, dies) }) })
	}
}

func randomJob(t *testing.T, on Config, dies bool) {
	const ranks, pages = 3, 12
	var done atomic.Int64
	all := make([]*randomRank, ranks)
	cfg := withFetches(withBudget(pages), "echo", echoes)
	cfg.Memory.Payloads = map[string]func(*Payload){"in": func(p *Payload) {
		r := all[p.Job().Rank()]
		if err := samePattern(p.Data(), int(p.Arg(0))); err != nil {
			r.fail("payload of rank %d: %w", p.From(), err)
		}
		done.Add(1)
		r.mu.Lock()
		r.kept = append(r.kept, p)
		var out []*Payload
		if len(r.kept) > 2 {
			out, r.kept = r.kept, nil
		}
		r.mu.Unlock()
		for _, p := range out {
			p.Release()
		}
	}}
	cfg.Memory.ReceiveSize = pages * int64(pagepool.Size)
	cfg.Memory.Budget.Small, cfg.Memory.Budget.Unscheduled = int64(pagepool.Size), 4096
	cfg.Fabric, cfg.Device, cfg.SegmentSize, cfg.Getenv, cfg.CloseTimeout = on.Fabric, on.Device, on.SegmentSize, noEnv, time.Minute
	ctx := testContext(t)
	died := errors.New("on purpose")
	err := RunLocalConfig(ctx, ranks, cfg, func(j *Job) error {
		r := &randomRank{j: j, rng: rand.New(rand.NewPCG(7, uint64(j.Rank()))), page: int(pagepool.Size), limit: cfg.Memory.Budget.Limit, done: &done, leases: make(chan *Lease, 64)}
		all[j.Rank()] = r
		pattern(j.Segment()[:2*r.page], j.Rank())
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		var releasing, keeping sync.WaitGroup
		releasing.Go(func() {
			for l := range r.leases {
				runtime.Gosched()
				l.Release()
			}
		})
		over := make(chan struct{})
		keeping.Go(func() { // consumers get on by themselves
			for {
				r.mu.Lock()
				out := r.kept
				r.kept = nil
				r.mu.Unlock()
				for _, p := range out {
					p.Release()
				}
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
		err := withWorker(j, func(w *Worker) error {
			for i := range *memorySteps {
				if dies && j.Rank() == 2 && i == *memorySteps/2 {
					return died
				}
				if err := r.step(ctx, w); err != nil {
					return fmt.Errorf("step %d: %w", i, err)
				}
				if s := j.Budget().MemoryStats(); s.Buffers+s.Idle+s.Acquired+s.Unscheduled > 2*r.limit {
					return fmt.Errorf("step %d: %+v", i, s)
				}
			}
			return nil
		})
		r.sending.Wait()
		close(r.leases)
		releasing.Wait()
		if err == nil && !dies {
			err = j.Barrier(ctx)
		}
		if err == nil {
			err = unheld(ctx, j)
		}
		close(over)
		keeping.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		return errors.Join(append(slices.Clip(r.errs), err)...)
	})
	if dies && errors.Is(err, died) {
		var rest []error
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			// The live leave at once: what a rank has given up, the other may not have answered yet.
			if !errors.Is(e, died) && !errors.As(e, new(*am.InFlightError)) {
				rest = append(rest, e)
			}
		}
		err = errors.Join(rest...)
	}
	if err != nil || done.Load() < int64(*memorySteps) {
		t.Errorf("%d sets and payloads had data: %v", done.Load(), err)
	}
}
