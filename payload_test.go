package conduit

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/pagepool"
	"github.com/ibconduit/conduit/internal/transient"
)

// withPayloads adds a function that takes payloads.
func withPayloads(cfg Config, name string, f func(*Payload)) Config {
	cfg.Memory.Payloads = map[string]func(*Payload){name: f}
	return cfg
}

// mayBeUnasked reports whether a payload to the function of that name at a rank would go unasked.
func mayBeUnasked(j *Job, rank int, name string, n int) bool {
	ok := j.memory.TakeUnasked(rank, transient.Hash(name), n)
	if ok {
		j.memory.Untake(rank, n)
	}
	return ok
}

func TestPayloadsArriveInTheBudget(t *testing.T) {
	var mu sync.Mutex
	got := map[int][]int{} // by receiver, senders
	var wrong []error
	cfg := withPayloads(withBudget(8), "in", func(p *Payload) {
		defer p.Release()
		err := samePattern(p.Data(), int(p.Arg(0)))
		s := p.Job().Budget().MemoryStats()
		if s.Peak > s.Limit || s.MemoryPeak > s.Limit {
			err = errors.Join(err, fmt.Errorf("%d bytes of %d", s.Peak, s.Limit))
		}
		mu.Lock()
		defer mu.Unlock()
		got[p.Job().Rank()] = append(got[p.Job().Rank()], p.From())
		if err != nil || len(p.Args()) != 2 {
			wrong = append(wrong, err)
		}
	})
	onFabrics(t, 3, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		const each = 20
		for i := range each {
			for r := range j.Size() {
				b := make([]byte, 1+(i*1237)%(3*int(pagepool.Size)))
				pattern(b, i)
				if err := SendPayload(ctx, w, r, "in", b, uint64(i), 9); err != nil {
					return err
				}
			}
		}
		err := until(ctx, "all arrive", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(got[j.Rank()]) >= each*j.Size()
		})
		err = errors.Join(err, unheld(ctx, j)) // the functions have released what they took
		mu.Lock()
		defer mu.Unlock()
		return errors.Join(err, errors.Join(wrong...))
	}))
}

func TestPayloadsThatCannotComeAreRefused(t *testing.T) {
	cfg := withPayloads(withBudget(4), "in", func(p *Payload) {
		switch p.Arg(0) {
		case 1:
			panic("on purpose") // it is released
		case 2:
			runtime.Goexit()
		}
		p.Release()
		p.Release()
	})
	cfg.Fabric = FabricSHM
	runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		far := 1 - j.Rank()
		refused := func(name string, n int, text string) error {
			return said[*am.RefusedError](SendPayload(ctx, w, far, name, make([]byte, n)), text)
		}
		return errors.Join(
			refused("other", 10, "no function of this name"),
			refused("in", 4*int(pagepool.Size)+1, "serves at most"),
			SendPayload(ctx, w, far, "in", make([]byte, 9000), 1),
			SendPayload(ctx, w, far, "in", make([]byte, 9000), 2),
			said[*RankError](SendPayload(ctx, w, 5, "in", nil)),
			w.Barrier(ctx), unheld(ctx, j))
	}))
}

// Short payloads come unasked when the receiver has said that they may, within the limit.
func TestShortPayloadsComeUnasked(t *testing.T) {
	const ranks, n = 2, 600
	var mu sync.Mutex
	held := map[int][]*Payload{}
	cfg := withPayloads(withBudget(64), "in", func(p *Payload) {
		mu.Lock()
		defer mu.Unlock()
		held[p.Job().Rank()] = append(held[p.Job().Rank()], p)
	})
	cfg.Memory.Budget.Unscheduled = 4 << 10
	onFabrics(t, ranks, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		far := 1 - j.Rank()
		b := make([]byte, n)
		pattern(b, 3)
		have := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(held[j.Rank()])
		}
		if err := SendPayload(ctx, w, far, "in", b); err != nil { // the first is announced
			return err
		}
		err := until(ctx, "the receiver has said what may come unasked", func() bool {
			return mayBeUnasked(j, far, "in", 0)
		})
		for range 20 {
			err = errors.Join(err, SendPayload(ctx, w, far, "in", b))
		}
		err = errors.Join(err, until(ctx, "all arrive", func() bool { return have() == 21 }))
		s := j.Budget().MemoryStats()
		if want := int64(4<<10) / n * n; s.Unscheduled != want || s.Offered != 15*int64(pagepool.Size) || s.Peak > s.Limit {
			err = errors.Join(err, fmt.Errorf("%d bytes came unasked, want %d; %d were asked for", s.Unscheduled, want, s.Offered))
		}
		mu.Lock()
		mine := held[j.Rank()]
		held[j.Rank()] = nil
		mu.Unlock()
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		for _, p := range mine {
			err = errors.Join(err, samePattern(p.Data(), 3))
			p.Release()
		}
		// Released, they may come unasked again.
		err = errors.Join(err, w.Barrier(ctx), until(ctx, "the sender knows of it", func() bool { return mayBeUnasked(j, far, "in", n) }))
		return errors.Join(err, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// Ranks that send to one have equal parts of its memory, whatever their payloads' sizes.
func TestManySendersShareOneReceiver(t *testing.T) {
	const senders, each = 3, 60
	var mu sync.Mutex
	var order []int
	bytes := map[int]int{}
	cfg := withPayloads(withBudget(8), "in", func(p *Payload) {
		mu.Lock()
		order = append(order, p.From())
		bytes[p.From()] += len(p.Data())
		mu.Unlock()
		time.Sleep(200 * time.Microsecond) // others wait meanwhile
		p.Release()
	})
	cfg.Fabric = FabricSHM
	runLocal(t, senders+1, cfg, func(ctx context.Context, j *Job) error {
		if j.Rank() == 0 {
			return errors.Join(until(ctx, "all arrive", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(order) == senders*each
			}), unheld(ctx, j))
		}
		var all sync.WaitGroup
		errs := make([]error, each)
		for i := range each {
			all.Go(func() { errs[i] = SendPayload(ctx, j, 0, "in", make([]byte, 2*pagepool.Size)) })
		}
		all.Wait()
		return errors.Join(errs...)
	})
	// In the middle, when all have some that wait, none gets much more than its part.
	middle := order[len(order)/4 : len(order)*3/4]
	for r := 1; r <= senders; r++ {
		n := len(middle) - len(slices.DeleteFunc(slices.Clone(middle), func(f int) bool { return f == r }))
		if part := len(middle) / senders; n < part*2/3 || n > part*4/3 {
			t.Errorf("rank %d has %d of %d in the middle of %v", r, n, len(middle), order)
		}
	}
}

// A payload that its sender gives up gives its place back, also where others wait behind it.
func TestAPayloadIsWithdrawn(t *testing.T) {
	cfg := withPayloads(withBudget(4), "in", (*Payload).Release)
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		full := 4 * int64(pagepool.Size)
		if err := errors.Join(j.Budget().Acquire(ctx, full), w.Barrier(ctx)); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		err := wantErr(SendPayload(short, w, 1-j.Rank(), "in", make([]byte, 5000)), context.DeadlineExceeded)
		err = errors.Join(err, soon(ctx, "the offer is withdrawn", func() bool { s := j.Budget().MemoryStats(); return s.Waiting == 0 }), w.Barrier(ctx))
		j.Budget().Release(full)
		return errors.Join(err, SendPayload(ctx, w, 1-j.Rank(), "in", make([]byte, 5000)), w.Barrier(ctx), unheld(ctx, j))
	}))
}

// The end of a budget refuses the payloads that wait for its bytes.
func TestAClosedBudgetRefusesPayloads(t *testing.T) {
	page := int64(pagepool.Size)
	onFabrics(t, 2, withPayloads(withBudget(2), "in", (*Payload).Release), worked(func(ctx context.Context, j *Job, w *Worker) error {
		b := j.Budget()
		if j.Rank() == 1 {
			err := w.Barrier(ctx)
			short, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			err = errors.Join(err, said[*am.RefusedError](SendPayload(short, w, 0, "in", make([]byte, page)), "closed"))
			return errors.Join(err, w.Barrier(ctx))
		}
		err := errors.Join(b.Acquire(ctx, 2*page), w.Barrier(ctx))
		err = errors.Join(err, soon(ctx, "the payload waits", func() bool { return b.Stats().Waiting > 0 }))
		b.Close()
		b.Release(2 * page)
		return errors.Join(err, w.Barrier(ctx), unheld(ctx, j))
	}))
}
