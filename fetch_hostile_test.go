package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// A set is as it was when it was posted: what is added later has no data, and takes none of others.
func TestWhatIsAddedTooLateIsNotFetched(t *testing.T) {
	onFabrics(t, 2, withFetches(withBudget(8), "echo", echoes), worked(func(ctx context.Context, j *Job, w *Worker) error {
		far := 1 - j.Rank()
		set := NewFetchSet(w)
		args := []uint64{100, 1}
		first := FetchFrom[byte](set, far, "echo", 100, args...)
		args[0] = 7 // the caller's again
		p, err := set.Post()
		if err != nil {
			return err
		}
		get, made := FetchSlice(set, At[byte](far, 0), 100), FetchFrom[byte](set, far, "echo", 100, 100, 1)
		_, again := set.Post()
		err = errors.Join(said[error](again, "posted before"), said[error](set.Each(ctx, func(*Lease) error { return nil }), "posted before"))
		l, e := p.Wait(ctx)
		if err = errors.Join(err, e); err != nil {
			return err
		}
		if get.Data() != nil || made.Data() != nil || len(first.Data()) != 100 {
			err = fmt.Errorf("%d and %d bytes that were added too late, %d before", len(get.Data()), len(made.Data()), len(first.Data()))
		}
		l.Release()
		return errors.Join(err, unheld(ctx, j), w.Barrier(ctx))
	}))
}

// Elements without a size take nothing, and data without a length arrive.
func TestFetchesOfNoBytes(t *testing.T) {
	cfg := withPayloads(withFetches(withBudget(8), "echo", echoes), "in", (*Payload).Release)
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		far := 1 - j.Rank()
		set := NewFetchSet(w)
		FetchSlice(set, At[struct{}](far, 0), 100)
		empty := FetchFrom[byte](set, far, "echo", 100, 0, 0)
		l, err := set.Submit(ctx)
		if err != nil {
			return err
		}
		if s := j.Budget().MemoryStats(); s.Leased != int64(pagepool.Size) || s.Buffers != s.Leased || len(empty.Data()) != 0 {
			err = fmt.Errorf("%d bytes: %+v", len(empty.Data()), s)
		}
		l.Release()
		none := NewFetchSet(w)
		FetchFrom[struct{}](none, far, "echo", 100)
		_, e := none.Submit(ctx)
		err = errors.Join(err, said[error](e, "0 bytes, want 1 or more"), w.Barrier(ctx)) // all have looked
		return errors.Join(err, SendPayload(ctx, w, far, "in", nil), w.Barrier(ctx), unheld(ctx, j))
	}))
}

// What holds memory when the job ends may be released later.
func TestALeaseIsReleasedAfterClose(t *testing.T) {
	var leases [2]*Lease
	onFabrics(t, 2, withFetches(withBudget(8), "echo", echoes), worked(func(ctx context.Context, j *Job, w *Worker) (err error) {
		set := NewFetchSet(w)
		FetchSlice(set, At[byte](1-j.Rank(), 0), 100)
		FetchFrom[byte](set, 1-j.Rank(), "echo", 100, 100, 1)
		leases[j.Rank()], err = set.Submit(ctx)
		return errors.Join(err, w.Barrier(ctx))
	}))
	for _, l := range leases {
		l.Release()
		l.Handover(nil)
	}
}

// A reserve serves also what other ranks write: those that wait for it have all of the rest.
func TestTheReserveHasMemoryToReceive(t *testing.T) {
	cfg := withFetches(withBudget(4), "echo", echoes)
	cfg.Memory.Budget.Reserve = 3 * int64(pagepool.Size)
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if m := j.Info().Memory; m.Receive != 7*pagepool.Size {
			return fmt.Errorf("%+v", m)
		}
		fetch := func(pages int) (*Lease, error) {
			set := NewFetchSet(w)
			f := FetchFrom[byte](set, 1-j.Rank(), "echo", pages*int(pagepool.Size), uint64(pages)*pagepool.Size, uint64(pages))
			l, err := set.Submit(ctx)
			if err == nil {
				err = samePattern(f.Data(), pages)
			}
			return l, err
		}
		for range 3 {
			first, err := fetch(4)
			if err != nil {
				return err
			}
			second, err := fetch(3)
			if err != nil {
				return err
			}
			if s := j.Budget().MemoryStats(); s.Buffers != 7*int64(pagepool.Size) || s.Reserve != 3*int64(pagepool.Size) {
				err = fmt.Errorf("%+v", s)
			}
			_, full := fetch(4)
			first.Release()
			second.Release()
			if err = errors.Join(err, said[*flow.HoldAndWaitError](full, "release")); err != nil {
				return err
			}
		}
		return errors.Join(unheld(ctx, j), w.Barrier(ctx))
	}))
}

// Who asks for data learns that there are none also where the answer's context has ended.
func TestAnAnswerTooLateIsAnAnswer(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	cfg := withFetches(withBudget(4), "late", func(r *FetchRequest) {
		if r.Arg(0) == 0 {
			_ = r.Fail(over, errors.New("on purpose"))
		} else {
			_ = r.Reply(over, []byte{1})
		}
	})
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		var all error
		for i, text := range []string{"on purpose", "canceled"} {
			set := NewFetchSet(w)
			FetchFrom[byte](set, 1-j.Rank(), "late", 10, uint64(i))
			_, err := set.Submit(ctx)
			all = errors.Join(all, said[*FetchError](err, text))
		}
		return errors.Join(all, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// A worker of another rank holds nothing of this one's budget.
func TestALeaseIsHandedOverWithinARank(t *testing.T) {
	var first *Worker
	cfg := withBudget(4)
	cfg.Fabric = FabricSHM
	runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 0 {
			first = w
			return errors.Join(w.Barrier(ctx), w.Barrier(ctx))
		}
		set := NewFetchSet(w)
		FetchSlice(set, At[byte](0, 0), 100)
		l, err := set.Submit(ctx)
		if err = errors.Join(err, w.Barrier(ctx)); err != nil {
			return err
		}
		l.Handover(first)
		if h := j.Budget().Holders(nil); len(h) != 1 || h[0].Name != "a set of no owner" {
			err = fmt.Errorf("held by %+v", h)
		}
		l.Release()
		return errors.Join(err, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// An adaptive budget reads the machine's memory as often as it is told to, however often idle
// memory is looked for.
func TestABudgetIsObservedAtItsInterval(t *testing.T) {
	var looks atomic.Int64 // at the clock: two for a set, one for a reading
	cfg := Config{Fabric: FabricSHM, Memory: MemoryConfig{Budget: flow.BudgetConfig{
		Adapt: &flow.AdaptConfig{Interval: time.Hour, Window: time.Hour, Floor: 1 << 20, Ceiling: 1 << 20},
		Now:   func() time.Duration { return time.Duration(looks.Add(1)) },
	}}}
	runLocal(t, 1, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		set := NewFetchSet(w)
		FetchSlice(set, At[byte](0, 0), 100)
		l, err := set.Submit(ctx)
		if err != nil {
			return err
		}
		l.Release()
		err = until(ctx, "idle memory is given back", func() bool { return j.Budget().MemoryStats().Given > 0 })
		if n := looks.Load(); n > 3 {
			err = errors.Join(err, fmt.Errorf("%d looks at the clock, in an hour's first second", n))
		}
		return errors.Join(err, unheld(ctx, j))
	}))
}

// fetchPages fetches so many pages in one piece that a rank makes.
func fetchPages(ctx context.Context, w *Worker, rank, pages int) (*Lease, error) {
	set := NewFetchSet(w)
	f := FetchFrom[byte](set, rank, "echo", pages*int(pagepool.Size), uint64(pages)*pagepool.Size, uint64(pages))
	l, err := set.Submit(ctx)
	if err == nil {
		err = samePattern(f.Data(), pages)
	}
	return l, err
}

// A small lease has a place where other ranks write, which may be all that another set lacks.
func TestASmallLeaseKeepsAPlace(t *testing.T) {
	cfg := withFetches(withBudget(16), "echo", echoes)
	cfg.Memory.Budget.Small, cfg.Memory.ReceiveSize = 2*int64(pagepool.Size), 2*int64(pagepool.Size)
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		small, err := fetchPages(ctx, w, 1-j.Rank(), 1)
		if err != nil {
			return err
		}
		_, err = fetchPages(ctx, w, 1-j.Rank(), 2)
		err = wantErr(err, ErrHoldAndWait)
		small.Release()
		large, e := fetchPages(ctx, w, 1-j.Rank(), 2)
		if err = errors.Join(err, e); e == nil {
			large.Release()
		}
		return errors.Join(err, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// With a reserve, who holds and waits is served from it also where there are bytes of the limit: in
// the rest of what other ranks write free pages may lie apart.
func TestTheReserveServesWhatLiesApart(t *testing.T) {
	cfg := withFetches(withBudget(8), "echo", echoes)
	cfg.Workers, cfg.Memory.Budget.Reserve = 4, 3*int64(pagepool.Size)
	onFabrics(t, 2, cfg, func(ctx context.Context, j *Job) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var workers [4]*Worker
		var leases [4]*Lease
		var err error
		for i, pages := range []int{2, 1, 2, 1} { // of 8
			if workers[i], err = j.NewWorker(); err != nil {
				return err
			}
			defer workers[i].Close()
			if leases[i], err = fetchPages(ctx, workers[i], 1-j.Rank(), pages); err != nil {
				return err
			}
		}
		leases[0].Release()
		leases[2].Release()
		l, err := fetchPages(ctx, workers[1], 1-j.Rank(), 3)
		if err != nil {
			return err
		}
		if s := j.Budget().MemoryStats(); s.Reserve != 3*int64(pagepool.Size) || s.Bulk != 2*int64(pagepool.Size) || s.FromReserve != 1 {
			err = fmt.Errorf("%+v", s)
		}
		l.Release()
		leases[1].Release()
		leases[3].Release()
		return errors.Join(err, j.Barrier(ctx), unheld(ctx, j))
	})
}

// Bytes of a set that is given up come back when its memory has: payloads that wait for them are
// placed at once.
func TestMemoryComesBackBeforeItsBytes(t *testing.T) {
	var asked [2]*FetchRequest
	var release = make(chan struct{})
	cfg := withPayloads(withFetches(withBudget(3), "later", func(r *FetchRequest) { asked[r.Arg(0)] = r }), "in", func(p *Payload) {
		<-release
		p.Release()
	})
	cfg.Memory.ReceiveSize = 8 * int64(pagepool.Size)
	cfg.Fabric = FabricSHM
	runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		page := int(pagepool.Size)
		if j.Rank() == 1 {
			if err := w.Barrier(ctx); err != nil {
				return err
			}
			var errs [2]error
			var all sync.WaitGroup
			for i := range errs {
				all.Go(func() { errs[i] = SendPayload(ctx, j, 0, "in", make([]byte, page)) })
			}
			all.Wait()
			close(release)
			return errors.Join(append(errs[:], w.Barrier(ctx))...)
		}
		set := NewFetchSet(w)
		FetchFrom[byte](set, 1, "later", page, 0)
		FetchSlice(set, At[byte](1, j.SegmentSize(1)), page) // beyond it
		FetchFrom[byte](set, 1, "later", page, 1)
		p, err := set.Post()
		if err == nil {
			err = w.Barrier(ctx)
		}
		if err == nil {
			err = until(ctx, "payloads wait", func() bool { return j.Budget().Stats().Waiting == 2 })
		}
		if err != nil {
			return err
		}
		_, err = p.Wait(ctx)
		err = errors.Join(said[*fabric.BoundsError](err), w.Barrier(ctx), unheld(ctx, j))
		if s := j.Budget().MemoryStats(); s.MemoryPeak > s.Limit {
			err = errors.Join(err, fmt.Errorf("%d bytes of memory, of %d", s.MemoryPeak, s.Limit))
		}
		return err
	}))
}

func TestEachOnAClosedWorker(t *testing.T) {
	cfg := withBudget(4)
	cfg.Fabric = FabricSHM
	runLocal(t, 1, cfg, func(ctx context.Context, j *Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		set := NewFetchSet(w)
		FetchSlice(set, At[byte](0, 0), 100)
		err = w.Close()
		return errors.Join(err, wantErr(set.Each(ctx, func(*Lease) error { return nil }), os.ErrClosed))
	})
}

// An error of Test is the end of its set, which holds up no other.
func TestATestThatFailsEndsItsSet(t *testing.T) {
	cfg := withFetches(withBudget(4), "echo", echoes)
	cfg.Fabric = FabricSHM
	runLocal(t, 1, cfg, func(ctx context.Context, j *Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		set := NewFetchSet(w)
		FetchFrom[byte](set, 0, "echo", 100, 100, 1)
		p, err := set.Post()
		if err = errors.Join(err, w.Close()); err != nil {
			return err
		}
		_, err = p.Test()
		return errors.Join(wantErr(err, os.ErrClosed), unheld(ctx, j))
	})
}

// What a rank has of others' payloads may be released later than its job ends.
func TestAPayloadIsReleasedAfterClose(t *testing.T) {
	kept := make(chan *Payload, 32)
	cfg := withPayloads(withBudget(64), "in", func(p *Payload) { kept <- p })
	cfg.Memory.Budget.Unscheduled = 4 << 10
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		far := 1 - j.Rank()
		err := SendPayload(ctx, w, far, "in", make([]byte, 1000)) // announced
		err = errors.Join(err, until(ctx, "the receiver has said what may come unasked", func() bool {
			return mayBeUnasked(j, far, "in", 0)
		}))
		for range 3 {
			err = errors.Join(err, SendPayload(ctx, w, far, "in", make([]byte, 1000)))
		}
		return errors.Join(err, w.Barrier(ctx))
	}))
	for range len(kept) {
		p := <-kept
		p.Release()
		p.Release()
		if p.Data() != nil {
			t.Error("data of a payload that is released")
		}
	}
}

// A reserve as large as the largest set need not be received whole: an adaptive budget has as much
// as the machine, and ReceiveSize is equal on all ranks.
func TestAReserveLargerThanWhatIsReceived(t *testing.T) {
	page := int64(pagepool.Size)
	cfg := withFetches(Config{Memory: MemoryConfig{ReceiveSize: 4*page + 1, Budget: flow.BudgetConfig{
		Adapt: &flow.AdaptConfig{Floor: 8 * page, Ceiling: 8 * page}, Small: -1, Reserve: -1,
	}}}, "echo", echoes)
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		first, err := fetchPages(ctx, w, 1-j.Rank(), 2)
		if err != nil {
			return err
		}
		second, err := fetchPages(ctx, w, 1-j.Rank(), 2)
		if err == nil {
			second.Release()
			set := NewFetchSet(w)
			FetchFrom[byte](set, 1-j.Rank(), "echo", int(page), 1, 1)
			FetchFrom[byte](set, 1-j.Rank(), "echo", int(page), 1, 1)
			FetchSlice(set, At[byte](1-j.Rank(), 0), 100)
			var l *Lease
			if l, err = set.Submit(ctx); err == nil {
				l.Release()
			}
			_, large := fetchPages(ctx, w, 1-j.Rank(), 3) // of 5
			err = errors.Join(err, wantErr(large, ErrSetTooLarge))
		}
		first.Release()
		return errors.Join(err, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// A rank may ask as soon as its own Join has returned, while another's goes on: what bounds that
// one's answer is there already (with the race detector).
func TestRequestsBeforeJoinReturnsHaveABound(t *testing.T) {
	cfg := withFetches(withBudget(8), "echo", echoes)
	cfg.Fabric = FabricSHM
	asked := make(chan struct{})
	runLocal(t, 2, cfg, func(ctx context.Context, j *Job) error {
		if j.Rank() == 1 {
			<-asked
			return nil
		}
		defer close(asked)
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		set := NewFetchSet(w)
		FetchFrom[byte](set, 1, "other", 100)
		_, err = set.Submit(ctx)
		return errors.Join(said[*FetchError](err, "no function of this name"), w.Close())
	})
}
