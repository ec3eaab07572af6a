package conduit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// withBudget is a configuration with so many pages of budget, all for claims that are not small.
func withBudget(pages int) Config {
	return Config{Memory: MemoryConfig{Budget: flow.BudgetConfig{Limit: int64(pages) * int64(pagepool.Size), Small: -1, Unscheduled: -1}}}
}

// withFetches adds functions that make data.
func withFetches(cfg Config, name string, f func(*FetchRequest)) Config {
	cfg.Memory.Fetches = map[string]func(*FetchRequest){name: f}
	return cfg
}

// echoes is a function that makes Arg(0) bytes of a pattern with seed Arg(1).
func echoes(r *FetchRequest) {
	b := make([]byte, r.Arg(0))
	pattern(b, int(r.Arg(1)))
	_ = r.Reply(context.Background(), b)
}

// soon is until for what takes milliseconds, so that a mistake shows before the test ends.
func soon(ctx context.Context, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return until(ctx, what, holds)
}

// unheld is that nothing of a budget is held, and its accounts are right.
func unheld(ctx context.Context, j *Job) error {
	err := soon(ctx, "all bytes come back", func() bool {
		s := j.Budget().MemoryStats()
		return s.Bulk+s.Small+s.Unscheduled+s.Reserve == 0 && s.Buffers == 0
	})
	return errors.Join(err, j.memory.Verify())
}

// said is nil for an error of a type that mentions every text.
func said[E error](err error, texts ...string) error {
	var e E
	if !errors.As(err, &e) {
		return fmt.Errorf("error %v, want a %T", err, e)
	}
	return wantErr(err, err, texts...)
}

func TestASetBringsItsData(t *testing.T) {
	cfg := withFetches(withBudget(64), "echo", echoes)
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		if m := j.Info().Memory; m.Pinned != (j.FabricTo(0) == FabricIBV) || m.Largest != 64*int64(pagepool.Size) || m.Receive != uint64(m.Largest) {
			return fmt.Errorf("%+v", m)
		}
		pattern(j.Segment()[:100_000], j.Rank())
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		for r := range j.Size() {
			set := NewFetchSet(w)
			far := FetchSlice(set, At[byte](r, 0), 100_000)
			words := FetchSlice(set, At[uint64](r, 800), 3)
			none := FetchSlice(set, At[uint64](r, 800), 0)
			made := FetchFrom[byte](set, r, "echo", 9000, 5000, 77)
			if far.Data() != nil || set.Bytes() != int64(pagepool.Round(100_000)+pagepool.Size+pagepool.Round(9000)) {
				return fmt.Errorf("a set of %d bytes, with data before there is a lease", set.Bytes())
			}
			lease, err := set.Submit(ctx)
			if err != nil {
				return err
			}
			want := make([]byte, 100_000)
			pattern(want, r)
			if err := samePattern(far.Data(), r); err != nil {
				return err
			}
			if got := bytesOf(words.Data()); string(got) != string(want[800:824]) || none.Data() != nil {
				return fmt.Errorf("%x, want %x", got, want[800:824])
			}
			if len(made.Data()) != 5000 {
				return fmt.Errorf("%d bytes were made, want 5000", len(made.Data()))
			}
			if err := samePattern(made.Data(), 77); err != nil {
				return err
			}
			made.Release()
			if made.Data() != nil || far.Data() == nil {
				return errors.New("the release of one fetch is that of another")
			}
			lease.Release()
			lease.Release()
			if far.Data() != nil {
				return errors.New("data after the release")
			}
		}
		return errors.Join(unheld(ctx, j), w.Barrier(ctx))
	}))
}

func TestWhatCannotBeFetchedIsRefused(t *testing.T) {
	cfg := withFetches(withBudget(8), "echo", func(r *FetchRequest) {
		switch r.Arg(0) {
		case 0:
			panic("on purpose")
		case 1:
			_ = r.Reply(context.Background(), make([]byte, r.Size()+1))
		case 2:
			_ = r.Fail(context.Background(), errors.New("on purpose"))
		case 3:
			runtime.Goexit()
		}
	})
	cfg.Fabric = FabricSHM
	runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		far := 1 - j.Rank()
		submit := func(add func(*FetchSet)) error {
			set := NewFetchSet(w)
			add(set)
			l, err := set.Submit(ctx)
			if err == nil {
				l.Release()
			}
			return err
		}
		made := func(name string, args ...uint64) error {
			return submit(func(s *FetchSet) { FetchFrom[byte](s, far, name, 100, args...) })
		}
		limit := 8 * int(pagepool.Size)
		return errors.Join(
			said[*FetchError](made("other"), "no function of this name"),
			said[*FetchError](made("echo", 0), "on purpose"),
			said[*FetchError](made("echo", 1), "101 bytes", "takes 100"),
			said[*FetchError](made("echo", 3), "runtime.Goexit"),
			said[*FetchError](made("echo", 2), `fetch "echo" from rank`, "on purpose"),
			wantErr(submit(func(s *FetchSet) { FetchSlice(s, At[byte](far, 0), limit+1) }), ErrSetTooLarge, "budget serves at most"),
			said[*RankError](submit(func(s *FetchSet) { FetchSlice(s, At[byte](7, 0), 8) }), "rank 7"),
			said[*RankError](submit(func(s *FetchSet) { FetchFrom[byte](s, 7, "echo", 8) }), "rank 7"),
			said[*fabric.BoundsError](submit(func(s *FetchSet) { FetchSlice(s, At[byte](far, j.SegmentSize(far)), 8) }), "leave the segment"),
			said[*TypeError](submit(func(s *FetchSet) { FetchSlice(s, At[*int](far, 0), 8) }), "pointer"),
			unheld(ctx, j), w.Barrier(ctx))
	}))
}

func TestWithoutABudgetThereAreNoSets(t *testing.T) {
	runLocal(t, 1, Config{Fabric: FabricSHM}, worked(func(ctx context.Context, j *Job, w *Worker) error {
		_, err := NewFetchSet(w).Submit(ctx)
		if j.Budget() != nil || (view{j}).Budget() != nil {
			return errors.New("a budget that nobody asked for")
		}
		return errors.Join(wantErr(err, ErrNoBudget, "IBCONDUIT_BUDGET"), wantErr(SendPayload(ctx, j, 0, "x", nil), ErrNoBudget, "ReceiveSize"))
	}))
}

// A worker that holds a set must not wait for one that it posts later, unless there is a reserve.
func TestHoldAndWaitIsRefusedByWorker(t *testing.T) {
	for _, reserve := range []int64{0, -1} {
		t.Run(fmt.Sprint(reserve), func(t *testing.T) {
			cfg := withBudget(4)
			cfg.Fabric, cfg.Memory.Budget.Reserve = FabricSHM, reserve
			runLocal(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
				fetch := func(w *Worker, pages int) (*Lease, error) {
					set := NewFetchSet(w)
					FetchSlice(set, At[byte](1-j.Rank(), 0), pages*int(pagepool.Size))
					return set.Submit(ctx)
				}
				first, err := fetch(w, 3)
				if err != nil {
					return err
				}
				second, err := fetch(w, 3)
				if reserve == 0 {
					if err := wantErr(err, ErrHoldAndWait, "a worker of rank", "release the lease before"); err != nil {
						return err
					}
					first.Handover(nil) // to whoever works on with the data
					if second, err = fetch(w, 1); err != nil {
						return err
					}
				} else if err != nil {
					return err
				}
				first.Release()
				second.Release()
				return errors.Join(unheld(ctx, j), w.Barrier(ctx))
			}))
		})
	}
}

// A set that is larger than the budget is served in parts.
func TestALargeSetIsServedInParts(t *testing.T) {
	cfg := withFetches(withBudget(6), "echo", echoes)
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		page := int(pagepool.Size)
		pattern(j.Segment()[:16*page], j.Rank())
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		far := 1 - j.Rank()
		set := NewFetchSet(w)
		var gets, made []*Fetched[byte]
		for i := range 8 {
			gets = append(gets, FetchSlice(set, At[byte](far, uint64(i*page)), page))
			made = append(made, FetchFrom[byte](set, far, "echo", page, uint64(page), uint64(i)))
		}
		var parts, seen int
		all := make([]byte, 8*page)
		err := set.Each(ctx, func(*Lease) error {
			parts++
			for i, g := range gets {
				seen += copy(all[i*page:], g.Data())
				if m := made[i].Data(); m != nil {
					seen += len(m)
					if err := samePattern(m, i); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil || parts != 3 || seen != 16*page {
			return fmt.Errorf("%d bytes in %d parts, want %d in 3: %w", seen, parts, 16*page, err)
		}
		return errors.Join(samePattern(all, far), unheld(ctx, j), w.Barrier(ctx))
	}))
}

// Data that are not ready hold up nobody but who waits for them, and a wait that is given up gives
// the bytes back.
func TestAFetchIsAnsweredWhenItsDataAreReady(t *testing.T) {
	var mu sync.Mutex
	kept := map[int]*FetchRequest{}
	cfg := withFetches(withBudget(8), "later", func(r *FetchRequest) {
		mu.Lock()
		defer mu.Unlock()
		kept[r.Job().Rank()] = r
	})
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		far := 1 - j.Rank()
		take := func() *FetchRequest {
			mu.Lock()
			defer mu.Unlock()
			r := kept[j.Rank()]
			delete(kept, j.Rank())
			return r
		}
		var r *FetchRequest
		arrived := func() error {
			return until(ctx, "a request arrives", func() bool { r = take(); return r != nil })
		}
		set := NewFetchSet(w)
		made := FetchFrom[uint64](set, far, "later", 2)
		p, err := set.Post()
		if err != nil {
			return err
		}
		if l, err := p.Test(); l != nil || err != nil {
			return fmt.Errorf("data that nobody made: %v, %v", l, err)
		}
		if err := arrived(); err != nil {
			return err
		}
		if err := r.Reply(ctx, bytesOf([]uint64{uint64(j.Rank()), 5})); err != nil {
			return err
		}
		lease, err := p.Wait(ctx)
		if err != nil {
			return err
		}
		if d := made.Data(); len(d) != 2 || d[0] != uint64(far) {
			return fmt.Errorf("data %v", d)
		}
		lease.Release()

		set = NewFetchSet(w)
		FetchFrom[uint64](set, far, "later", 2)
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_, err = set.Submit(short)
		if err := errors.Join(wantErr(err, context.DeadlineExceeded), unheld(ctx, j), w.Barrier(ctx), arrived()); err != nil {
			return err
		}
		err = r.Reply(ctx, nil)
		if !errors.As(err, new(*am.RefusedError)) {
			return fmt.Errorf("a reply that nobody waits for: %v", err)
		}
		return errors.Join(wantErr(r.Reply(ctx, nil), am.ErrAnswered), unheld(ctx, j), w.Barrier(ctx))
	}))
}

// With all of its budget held a rank answers messages, and says who holds it.
func TestAnExhaustedBudgetHoldsUpNoReply(t *testing.T) {
	table := am.NewTable()
	sum := table.Handle("sum", func(c *am.Call) { _ = c.Reply(c.Arg(0) + c.Arg(1)) })
	cfg := withFetches(withBudget(4), "echo", echoes)
	cfg.Handlers, cfg.Memory.Budget.StallAfter = table, time.Nanosecond
	cfg.Memory.Payloads = map[string]func(*Payload){"in": (*Payload).Release}
	onFabrics(t, 2, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		full := 4 * int64(pagepool.Size)
		if err := j.Budget().Acquire(ctx, full); err != nil {
			return err
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		far := 1 - j.Rank()
		sent := make(chan error, 1)
		go func() { sent <- SendPayload(ctx, j, far, "in", make([]byte, 10000)) }()
		set := NewFetchSet(w)
		FetchFrom[byte](set, far, "echo", 100, 100, 1)
		p, err := set.Post()
		if err != nil {
			return err
		}
		if err := until(ctx, "both wait for memory", func() bool { s := j.Budget().MemoryStats(); return s.Waiting == 2 }); err != nil {
			return err
		}
		for i := range uint64(100) {
			if r, err := sum.Call(ctx, w, far, i, 1); err != nil || r.Arg(0) != i+1 {
				return fmt.Errorf("call %d: %d, %w", i, r.Arg(0), err)
			}
		}
		var stall *flow.MemoryStallError
		if err := j.Budget().Watch(); !errors.As(err, &stall) || len(stall.Holders) != 1 || stall.Holders[0].Bytes != full {
			return fmt.Errorf("a stall that names no holder: %v", err)
		}
		if err := w.Barrier(ctx); err != nil {
			return err
		}
		j.Budget().Release(full)
		lease, err := p.Wait(ctx)
		if err != nil {
			return err
		}
		lease.Release()
		return errors.Join(<-sent, w.Barrier(ctx), unheld(ctx, j))
	}))
}

// What waits for a rank that dies ends, and its bytes come back.
func TestADeathEndsFetches(t *testing.T) {
	fabrics(t, func(t *testing.T, on Config) {
		cfg := withFetches(withBudget(8), "never", func(*FetchRequest) {})
		cfg.Fabric, cfg.Device, cfg.SegmentSize, cfg.Getenv, cfg.CloseTimeout = on.Fabric, on.Device, on.SegmentSize, noEnv, time.Minute
		ctx := testContext(t)
		died := errors.New("on purpose")
		var met sync.WaitGroup // the others have left the barrier
		met.Add(2)
		err := RunLocalConfig(ctx, 3, cfg, func(j *Job) error {
			if j.Rank() == 2 {
				if err := j.Barrier(ctx); err != nil {
					return err
				}
				met.Wait()
				time.Sleep(20 * time.Millisecond)
				return died
			}
			left := sync.OnceFunc(met.Done)
			defer left()
			return withWorker(j, func(w *Worker) error {
				if err := j.Barrier(ctx); err != nil {
					return err
				}
				left()
				set := NewFetchSet(w)
				FetchFrom[byte](set, 2, "never", 100)
				FetchFrom[byte](set, 1-j.Rank(), "never", 100)
				_, err := set.Submit(ctx)
				return errors.Join(wantErr(err, ErrPeerDown, "rank 2"), unheld(ctx, j))
			})
		})
		if !errors.Is(err, died) || strings.Contains(strings.ReplaceAll(err.Error(), "rank 2: on purpose", ""), "rank 0:") {
			t.Error(err)
		}
	})
}

// rss is how much memory of this process is resident, in bytes.
func rss(t *testing.T) (n int) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var size int
	if _, err := fmt.Sscan(string(text), &size, &n); err != nil {
		t.Fatal(err)
	}
	return n * os.Getpagesize()
}

// Released memory leaves the process: of gets, and over shared memory of what others wrote.
func TestReleasedMemoryLeavesTheProcess(t *testing.T) {
	const n = 32 << 20
	fabrics(t, func(t *testing.T, on Config) {
		cfg := withFetches(withBudget(2*n/int(pagepool.Size)), "echo", echoes)
		cfg.Fabric, cfg.Device, cfg.SegmentSize = on.Fabric, on.Device, n
		if on.Fabric == FabricIBV {
			cfg.Memory.ReceiveSize = 1 << 20 // it is pinned
		}
		runLocal(t, 1, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			pattern(j.Segment(), 1) // a get of what has no memory brings none
			before := rss(t)
			set := NewFetchSet(w)
			got := FetchSlice(set, At[byte](0, 0), n)
			if on.Fabric == FabricSHM {
				FetchFrom[byte](set, 0, "echo", n, n, 3)
			}
			lease, err := set.Submit(ctx)
			if err != nil {
				return err
			}
			if err := samePattern(got.Data(), 1); err != nil {
				return err
			}
			grown := rss(t) - before
			lease.Release()
			err = soon(ctx, "idle memory is given back", func() bool {
				s := j.Budget().MemoryStats()
				return s.Idle == 0
			})
			left := rss(t) - before
			if grown < n-n/8 || left > grown-n/2 { // of the rest some may go meanwhile
				err = errors.Join(err, fmt.Errorf("%d bytes more were resident with the data, and %d are without", grown, left))
			}
			if s := j.Budget().MemoryStats(); s.MemoryPeak > s.Limit {
				err = errors.Join(err, fmt.Errorf("%d bytes had memory, of a limit of %d", s.MemoryPeak, s.Limit))
			}
			return errors.Join(err, unheld(ctx, j))
		}))
	})
}

func TestNonsenseBudgetsAreRefused(t *testing.T) {
	budget := func(b flow.BudgetConfig) Config { return Config{Memory: MemoryConfig{Budget: b}} }
	for _, c := range []struct {
		cfg  Config
		env  string
		want []string
	}{
		{budget(flow.BudgetConfig{Limit: 1 << 55}), "", []string{"a budget of 32.0 PiB", "has"}},
		{budget(flow.BudgetConfig{Limit: 1 << 20, Small: 1 << 20}), "", []string{"1.0 MiB for small claims"}},
		{budget(flow.BudgetConfig{Limit: 1 << 20, Adapt: &flow.AdaptConfig{}}), "", []string{"a limit of 1.0 MiB that is also to adapt"}},
		{budget(flow.BudgetConfig{Adapt: &flow.AdaptConfig{Floor: 1 << 50}}), "", []string{"a floor of 1.0 PiB"}},
		{budget(flow.BudgetConfig{Small: 5}), "", []string{"without Limit and Adapt"}},
		{Config{Memory: MemoryConfig{ReceiveSize: -1}}, "", []string{"Memory.ReceiveSize is -1"}},
		{Config{Memory: MemoryConfig{ReceiveSize: 1 << 20}}, "", []string{"without a budget"}},
		{Config{Memory: MemoryConfig{Payloads: map[string]func(*Payload){"x": nil}}}, "", []string{"Memory.Budget is none"}},
		{Config{Memory: MemoryConfig{Budget: flow.BudgetConfig{Limit: 1 << 20, Small: -1, Reserve: 1 << 20}, ReceiveSize: 1 << 20}}, "", []string{"Memory.ReceiveSize is 1048576, want more than 1048576 bytes"}},
		{budget(flow.BudgetConfig{Limit: 1 << 20, Reserve: 1 << 55}), "", []string{"a reserve of 32.0 PiB"}},
		{Config{}, "IBCONDUIT_BUDGET=-5", []string{`IBCONDUIT_BUDGET is "-5"`}},
		{Config{}, "IBCONDUIT_BUDGET=12x", []string{`IBCONDUIT_BUDGET is "12x"`}},
		{Config{}, "IBCONDUIT_BUDGET=0", []string{`IBCONDUIT_BUDGET is "0"`, "adaptive"}},
		{Config{}, "IBCONDUIT_BUDGET=much", []string{`IBCONDUIT_BUDGET is "much"`}},
		{Config{}, "IBCONDUIT_BUDGET=1M IBCONDUIT_RECEIVE_SIZE=much", []string{`IBCONDUIT_RECEIVE_SIZE is "much"`}},
	} {
		c.cfg.Getenv = variables(c.env)
		j, err := Join(t.Context(), c.cfg)
		if err == nil {
			t.Errorf("%+v %s: it joined", c.cfg.Memory.Budget, c.env)
			_ = j.Close()
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
}

// All ranks learn of a rank whose budget is refused; the number of pages of one is not to be had.
func TestARankWithoutItsBudgetSaysSo(t *testing.T) {
	good, bad := withBudget(100), withBudget(100)
	bad.Memory.Budget.Limit = 1 << 55
	for i, err := range failToJoin(t, good, bad) {
		if err == nil || !strings.Contains(err.Error(), "a budget of 32.0 PiB") {
			t.Errorf("rank %d: %v", i, err)
		}
	}
	none := Config{}
	for i, err := range failToJoin(t, withFetches(good, "x", echoes), none) {
		if err == nil || !strings.Contains(err.Error(), "conduit.receive") {
			t.Errorf("rank %d: %v", i, err)
		}
	}
}

// An adaptive budget works without privileges, and its decisions are kept.
func TestAnAdaptiveBudgetObserves(t *testing.T) {
	cfg := Config{Fabric: FabricSHM, Getenv: variables("IBCONDUIT_BUDGET=adaptive")}
	runLocal(t, 1, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
		b := j.Budget()
		if b.Interval() <= 0 || b.Largest() <= 0 || b.Stats().Limit <= b.Largest() {
			return fmt.Errorf("an adaptive budget: %+v", b.Stats())
		}
		set := NewFetchSet(w)
		FetchSlice(set, At[byte](0, 0), 1<<20)
		l, err := set.Submit(ctx)
		if err != nil {
			return err
		}
		l.Release()
		return unheld(ctx, j)
	}))
}

// lateWorker has gets that end when its worker flushes. Parts of those that begin with an error are
// in flight.
type lateWorker struct {
	env.Worker
	failed   error
	flushing bool
}

func (w *lateWorker) Get(int, uint64, []byte) (env.Get, error) { return lateGet{w}, w.failed }

type lateGet struct{ w *lateWorker }

func (g lateGet) Wait(ctx context.Context) (bool, error) {
	if g.w.flushing {
		return true, nil
	}
	<-ctx.Done()
	return false, ctx.Err()
}

func (g lateGet) Test() (bool, error) { return g.w.flushing, nil }

// What a set that was given up had in flight, and what failed in part, ends with a flush.
func TestAFlushEndsGetsThatWereGivenUp(t *testing.T) {
	cfg := withBudget(8)
	cfg.Fabric = FabricSHM
	for _, failed := range []error{nil, errors.New("on purpose")} {
		runLocal(t, 1, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			late := &lateWorker{Worker: workerView{w}, failed: failed}
			w.fetches = j.memory.NewFetcher(late)
			for range 2 {
				set := NewFetchSet(w)
				FetchSlice(set, At[byte](0, 0), 100)
				short, cancel := context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
				_, err := set.Submit(short)
				if err := wantErr(err, cmp.Or(failed, context.DeadlineExceeded)); err != nil {
					return err
				}
			}
			if s := j.Budget().MemoryStats(); s.Bulk != 2*int64(pagepool.Size) || s.Buffers != s.Bulk {
				return fmt.Errorf("memory of gets in flight came back: %+v", s)
			}
			late.flushing = true
			if err := w.Flush(ctx); err != nil {
				return err
			}
			return unheld(ctx, j)
		}))
	}
}

// A handler fetches nothing: the data may need a message to arrive.
func TestAHandlerDoesNotFetch(t *testing.T) {
	if owner.Checked {
		t.Skip("the debug build panics")
	}
	var w *Worker
	table := am.NewTable()
	h := table.Handle("fetch", func(c *am.Call) {
		set := NewFetchSet(w)
		FetchSlice(set, At[byte](0, 0), 8)
		_, err := set.Submit(context.Background())
		_ = c.ReplyWith(am.Medium([]byte(fmt.Sprint(err))))
	})
	cfg := withBudget(8)
	cfg.Fabric, cfg.Handlers = FabricSHM, table
	runLocal(t, 1, cfg, worked(func(ctx context.Context, j *Job, own *Worker) error {
		w = own
		r, err := h.Call(ctx, j, 0)
		if err != nil || !strings.Contains(string(r.Data), am.ErrInHandler.Error()) {
			return fmt.Errorf("%q, %w", r.Data, err)
		}
		return unheld(ctx, j)
	}))
}
