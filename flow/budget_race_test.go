package flow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/park"
)

// elsewhere is a fetch that another goroutine ends.
type elsewhere struct {
	bytes int64
	used  *atomic.Int64
	err   error
	after time.Duration
	freed atomic.Int32
}

func (f *elsewhere) Rank() int    { return 1 }
func (f *elsewhere) Bytes() int64 { return f.bytes }
func (f *elsewhere) Cancel()      {}
func (f *elsewhere) Start(ended func(error)) {
	f.used.Add(f.bytes)
	time.AfterFunc(f.after, func() { ended(f.err) })
}
func (f *elsewhere) Free() {
	if f.freed.Add(1) > 1 {
		panic("freed twice")
	}
	f.used.Add(-f.bytes)
}

// Goroutines fetch, acquire, offer, give up and pass leases on; the memory that is in use is never
// more than the limit, and all comes back.
func TestGoroutinesShareABudget(t *testing.T) {
	const limit = 1000
	b := newBudget(t, BudgetConfig{Limit: limit, Small: 50, SmallMax: 10}, Surroundings{})
	var used atomic.Int64
	var over atomic.Int64
	look := func() {
		if n := used.Load(); n > limit {
			over.Store(n)
		}
	}
	passed := make(chan *Lease, 4)
	var consumers, all sync.WaitGroup
	consumers.Go(func() {
		for l := range passed {
			look()
			l.Release()
		}
	})
	for i := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(*seed, uint64(i)))
			o := b.NewOwner(fmt.Sprint(i), nil)
			for range 200 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(20))*time.Millisecond)
				switch rng.IntN(4) {
				case 0:
					n := rng.Int64N(300)
					if err := b.Acquire(ctx, n); err == nil {
						used.Add(n)
						look()
						used.Add(-n)
						b.Release(n)
					} else if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				case 1:
					granted := make(chan *Offer, 1)
					offer, err := b.Offer(i, rng.Int64N(300), func(o *Offer) { granted <- o })
					if err != nil {
						t.Error(err)
						break
					}
					select {
					case <-granted:
						used.Add(offer.Bytes())
						look()
						used.Add(-offer.Bytes())
					case <-ctx.Done():
					}
					offer.Release()
				default:
					s := o.NewFetchSet()
					for range 1 + rng.IntN(3) {
						f := &elsewhere{bytes: rng.Int64N(200), used: &used, after: time.Duration(rng.IntN(500)) * time.Microsecond}
						if rng.IntN(10) == 0 {
							f.err = errTransfer
						}
						s.Fetch(f)
					}
					switch l, err := s.Submit(ctx); {
					case err == nil && rng.IntN(2) == 0:
						l.Handover(nil)
						passed <- l
					case err == nil:
						look()
						l.Release()
					case !errors.Is(err, context.DeadlineExceeded) && err != errTransfer:
						t.Error(err)
					}
				}
				cancel()
			}
		})
	}
	all.Wait()
	close(passed)
	consumers.Wait()
	for held(b) > 0 { // fetches of sets that were given up
		time.Sleep(time.Millisecond)
	}
	if n := over.Load(); n != 0 || used.Load() != 0 {
		t.Errorf("%d bytes were in use, and %d are at the end", n, used.Load())
	}
	if s := b.Stats(); s.Peak > limit || s.Queued == 0 || s.Cancelled == 0 {
		t.Errorf("%+v", s)
	}
}

// poller is a parker that polls, as that of a worker's lane does: the waiter itself makes the
// progress that it waits for.
type poller struct {
	park.Channel
	poll  func()
	polls int
}

func (p *poller) Park(ctx context.Context) error {
	for {
		select {
		case <-p.Channel:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
			p.polls++
			p.poll()
		}
	}
}

func TestAWaiterPollsByItsParker(t *testing.T) {
	b := newBudget(t, bulkOnly(100), Surroundings{})
	if err := b.Acquire(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	f := &fake{bytes: 80}
	p := &poller{Channel: make(park.Channel, 1)}
	p.poll = func() {
		switch p.polls {
		case 3:
			b.Release(50) // another's progress
		case 7:
			f.ended(nil)
		}
	}
	l, err := set(b.NewOwner("worker", p).NewFetchSet(), f).Submit(t.Context())
	if err != nil || p.polls != 7 {
		t.Fatalf("%v after %d polls", err, p.polls)
	}
	l.Release()
}
