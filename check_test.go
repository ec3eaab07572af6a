package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/fencecheck"
	"github.com/ibconduit/conduit/internal/owner"
)

// findings keeps what fence checkers report.
type findings struct {
	mu  sync.Mutex
	all []fencecheck.Report
}

func (f *findings) config() *cache.Config {
	return &cache.Config{Mapped: true, Check: true, Report: func(r fencecheck.Report) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all = append(f.all, r)
	}}
}

func (f *findings) some() []fencecheck.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// between reports whether a report names two lines by their ends, which are comments.
func (f *findings) between(a, b string) bool {
	for _, r := range f.some() {
		first, second := endOfLine(r.First), endOfLine(r.Second)
		if first == a && second == b || first == b && second == a {
			return true
		}
	}
	return false
}

func endOfLine(a fencecheck.Access) string {
	if len(a.Stack) == 0 {
		return ""
	}
	text, err := os.ReadFile(filepath.Base(a.Stack[0].File))
	if err != nil {
		return err.Error()
	}
	_, end, _ := strings.Cut(strings.Split(string(text), "\n")[a.Stack[0].Line-1], "// ")
	return end
}

// checkedJob runs a job of which a fence checker knows all ranks.
func checkedJob(t *testing.T, n int, cfg Config, fn func(ctx context.Context, j *Job, w *Worker) error) *findings {
	t.Helper()
	f := &findings{}
	cfg.Fabric, cfg.Cache, cfg.SegmentSize = FabricSHM, f.config(), 1<<20
	runLocal(t, n, cfg, worked(fn))
	return f
}

// The program of docs/cache.md. Each of its fences in turn is left out.
func TestTheCheckerFindsWhatProducersForget(t *testing.T) {
	const data, ready, words = 64, 0, 4
	for omit, lines := range map[string][2]string{"": {}, "flush": {"produced", "consumed"}, "wait": {"produced", "consumed"}} {
		f := checkedJob(t, 3, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
			p := At[int64](2, data)
			switch j.Rank() {
			case 0:
				for i := range words {
					if err := Put(w, p.Add(i), int64(i*i)); err != nil { // produced
						return err
					}
				}
				if omit != "flush" {
					if err := w.Flush(ctx); err != nil {
						return err
					}
				}
				if err := Put(w, At[uint64](1, ready), 1); err != nil {
					return err
				}
				return w.Flush(ctx)
			case 1:
				if omit != "wait" {
					if err := w.WaitUntil(ctx, ready, Equal, 1); err != nil {
						return err
					}
				}
				for i := range words {
					if _, err := Get(w, p.Add(i)); err != nil { // consumed
						return err
					}
				}
			}
			return nil
		})
		if found := f.some(); omit == "" && len(found) > 0 || omit != "" && !f.between(lines[0], lines[1]) {
			t.Errorf("without %q: %v", omit, found)
		}
	}
}

// What tells rank 1 that rank 0 has written orders its read behind that; what does not, does not.
// An atomic delivers puts, but not those that complete with Flush only; nor does the job's barrier.
func TestTheCheckerKnowsWhatAtomicsLeaveOut(t *testing.T) {
	const data, flag = 64, 0
	for name, test := range map[string]struct {
		put     func(*Worker, Ptr[int64], int64) error
		flush   bool
		wrong   bool
		barrier bool
	}{
		"put": {put: Put[int64]}, "implicit": {put: PutNBI[int64], wrong: true}, "flushed": {put: PutNBI[int64], flush: true},
		"put, flushed, barrier": {put: Put[int64], flush: true, barrier: true}, "flushed, barrier": {put: Add[int64], flush: true, barrier: true},
		"implicit, barrier": {put: PutNBI[int64], wrong: true, barrier: true}, "added, barrier": {put: Add[int64], wrong: true, barrier: true},
		"begun, barrier": {put: func(w *Worker, p Ptr[int64], v int64) error { a := FetchAddAsync(w, p, v); return a.err }, wrong: true, barrier: true}, // begun
	} {
		f := checkedJob(t, 3, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
			switch j.Rank() {
			case 0:
				if err := test.put(w, At[int64](2, data), 7); err != nil { // begun
					return err
				}
				if test.flush {
					if err := w.Flush(ctx); err != nil {
						return err
					}
				}
				if test.barrier {
					if err := j.Barrier(ctx); !errors.Is(err, ErrUnsent) {
						return err
					}
					return w.Flush(ctx)
				}
				_, err := FetchAdd(w, At[uint64](1, flag), 1)
				return err
			case 1:
				var err error
				if test.barrier {
					err = j.Barrier(ctx)
				} else {
					err = w.WaitUntil(ctx, flag, Equal, 1)
				}
				_, got := Get(w, At[int64](2, data)) // read
				return errors.Join(err, got)
			}
			if test.barrier {
				return j.Barrier(ctx)
			}
			return nil
		})
		if found := f.some(); (len(found) > 0) != test.wrong || test.wrong && !f.between("begun", "read") {
			t.Errorf("%s: %v", name, found)
		}
	}
}

func TestTheCheckerKnowsWhatOrdersRanks(t *testing.T) {
	table := am.NewTable()
	var heard atomic.Bool
	note := table.Handle("note", func(c *am.Call) { heard.Store(true); _ = c.Reply() })
	flag := At[uint64](1, 8)
	one := func(j *Job) []int { return make([]int, j.Size()) }
	for _, c := range []struct {
		name    string
		ordered bool
		by      func(ctx context.Context, j *Job, w *Worker) error
	}{
		{"worker's barrier", true, func(ctx context.Context, _ *Job, w *Worker) error { return w.Barrier(ctx) }},
		{"job's barrier", true, func(ctx context.Context, j *Job, w *Worker) error { return errors.Join(w.Flush(ctx), j.Barrier(ctx)) }},
		{"broadcast of the writer", true, func(ctx context.Context, _ *Job, w *Worker) error { return w.Broadcast(ctx, 0, make([]byte, 4)) }},
		{"broadcast of the reader", false, func(ctx context.Context, _ *Job, w *Worker) error { return w.Broadcast(ctx, 1, make([]byte, 4)) }},
		{"reduction to the reader", true, func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), coll.Reduce(ctx, j.Team(), 1, one(j), coll.Sum))
		}},
		{"reduction to the writer", false, func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), coll.Reduce(ctx, j.Team(), 0, one(j), coll.Sum))
		}},
		{"scan", true, func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), coll.Scan(ctx, j.Team(), one(j), coll.Sum))
		}},
		{"barrier of two teams", false, func(ctx context.Context, j *Job, w *Worker) error {
			flushed := w.Flush(ctx)
			team, err := j.Team().Split(ctx, j.Rank(), 0)
			err = errors.Join(flushed, err)
			if j.Rank() == 0 { // behind the split
				err = errors.Join(err, Put(w, At[uint64](2, 64), 2), w.Flush(ctx))
			}
			return errors.Join(err, team.Barrier(ctx), team.Free(ctx))
		}},
		{"team's barrier without a release", false, func(ctx context.Context, j *Job, _ *Worker) error { return j.Team().Barrier(ctx) }},
		{"team's barrier", true, func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), j.Team().Barrier(ctx))
		}},
		{"all-reduce", true, func(ctx context.Context, j *Job, w *Worker) error {
			return errors.Join(w.Flush(ctx), AllReduce(ctx, j, one(j), coll.Sum))
		}},
		{"atomics", true, func(ctx context.Context, j *Job, w *Worker) error {
			one := uint64(0)
			if j.Rank() == 0 {
				one = 1
			}
			for {
				n, err := FetchAdd(w, flag, one)
				if err != nil || j.Rank() != 1 || n > 0 {
					return err
				}
			}
		}},
		{"a message", true, func(ctx context.Context, j *Job, w *Worker) error {
			if j.Rank() == 0 {
				return note.Post(ctx, w, 1)
			}
			return until(ctx, "the message comes", func() bool { return j.Rank() != 1 || heard.Load() })
		}},
		{"a call by the reader", true, func(ctx context.Context, j *Job, w *Worker) error {
			err := j.Team().Barrier(ctx) // in some order, which the release comes behind
			if j.Rank() == 0 {
				err = errors.Join(err, w.Flush(ctx))
				heard.Store(true)
			}
			if j.Rank() == 1 {
				err = errors.Join(err, until(ctx, "the writer has released", heard.Load))
				_, called := note.Call(ctx, w, 0)
				err = errors.Join(err, called)
			}
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			heard.Store(false)
			f := checkedJob(t, 3, Config{Handlers: table}, func(ctx context.Context, j *Job, w *Worker) error {
				p := At[uint64](2, 64)
				var err error
				if j.Rank() == 0 {
					err = Put(w, p, 1) // written
				}
				err = errors.Join(err, c.by(ctx, j, w))
				if j.Rank() == 1 {
					_, got := Get(w, p) // read
					err = errors.Join(err, got)
				}
				return errors.Join(err, w.Flush(ctx), j.Barrier(ctx))
			})
			if found := f.some(); c.ordered != (len(found) == 0) {
				t.Errorf("ordered: %t; found %v", c.ordered, found)
			}
		})
	}
}

// A lock of an atomic word orders what it guards; memory that is freed and allocated is new.
func TestTheCheckerKnowsLocksAndHeaps(t *testing.T) {
	f := checkedJob(t, 3, Config{HeapSize: 64 << 10}, func(ctx context.Context, j *Job, w *Worker) error {
		lock, guarded := At[uint64](0, 1<<17), At[uint64](2, 1<<17+64)
		for range 20 {
			for {
				old, err := CompareSwap(w, lock, 0, 1)
				if err != nil {
					return err
				}
				if old == 0 {
					break
				}
			}
			v, err := Get(w, guarded)
			err = errors.Join(err, Put(w, guarded, v+1))
			if _, swapped := Swap(w, lock, 0); err != nil || swapped != nil {
				return errors.Join(err, swapped)
			}
			p, err := Alloc[uint64](ctx, j, 4)
			if err == nil {
				err = errors.Join(Put(w, p, 1), Free(ctx, j, p))
			}
			if err != nil {
				return err
			}
		}
		err := j.Barrier(ctx)
		v, got := Get(w, guarded)
		if v != 60 {
			err = errors.Join(err, fmt.Errorf("60 additions under a lock make %d", v))
		}
		return errors.Join(err, got, j.Barrier(ctx))
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}

// A rank that others do not wait for in AllAlloc hears of what they wrote there before it called.
func TestTheCheckerKnowsWhoAllocatesLate(t *testing.T) {
	told := make(chan struct{})
	f := checkedJob(t, 3, Config{HeapSize: 64 << 10}, func(ctx context.Context, j *Job, w *Worker) error {
		if j.Rank() == 1 && !owner.Checked { // in the debug build all wait for all
			select {
			case <-told:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		p, err := AllAlloc[uint64](ctx, j, 3, 8)
		if err != nil {
			return err
		}
		switch j.Rank() {
		case 0:
			err = errors.Join(Put(w, p.On(2), 7), w.Flush(ctx), Put(w, p.On(1), 1), w.Flush(ctx))
			close(told)
		case 1:
			err = w.WaitUntil(ctx, p.Offset(), Equal, 1)
			if v, got := Get(w, p.On(2)); v != 7 {
				err = errors.Join(err, got, fmt.Errorf("rank 2 has %d", v))
			}
		}
		return errors.Join(err, j.Barrier(ctx))
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}

// Own memory counts where the program tells of it.
func TestTheCheckerIsToldOfOwnMemory(t *testing.T) {
	for _, fenced := range []bool{true, false} {
		f := checkedJob(t, 2, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
			if j.Rank() == 0 {
				NoteStore(w, At[uint64](0, 64), 2) // stored
			}
			NoteStore(w, At[uint64](1-j.Rank(), 64), 2) // nothing: it is another's
			if fenced {
				if err := w.Barrier(ctx); err != nil {
					return err
				}
			}
			var err error
			if j.Rank() == 1 {
				_, err = Get(w, At[uint64](0, 72)) // got
			}
			NoteLoad(w, At[uint64](j.Rank(), 72), 1)
			return errors.Join(err, j.Barrier(ctx))
		})
		if found := f.some(); fenced && len(found) > 0 || !fenced && !f.between("stored", "got") {
			t.Errorf("with a fence: %t; found %v", fenced, found)
		}
	}
}

// Ranks that do not share a process find what their caches have kept too long.
func TestTheCheckerSamplesWhatIsCached(t *testing.T) {
	for _, acquires := range []bool{true, false} {
		f, boots, done := &findings{}, bootstrap.NewGroup(2), make(chan struct{})
		var written atomic.Uint64
		for _, err := range joinEach(t, 2, func(r int) Config {
			return Config{Fabric: FabricSHM, Cache: f.config(), SegmentSize: 1 << 16, Bootstrap: boots[r]}
		}, func(ctx context.Context, j *Job) error {
			err := withWorker(j, func(w *Worker) error {
				if j.Rank() == 0 {
					for v := uint64(1); ; v++ {
						atomic.StoreUint64(wordOf(j, 8), v)
						written.Store(v)
						select {
						case <-done:
							return nil
						default:
						}
					}
				}
				defer close(done)
				for i := range 4000 {
					for at := written.Load(); i == 1 && written.Load() < at+2; { // since the first get
						runtime.Gosched()
					}
					if _, err := Get(w, At[uint64](0, 64)); err != nil { // again and again
						return err
					}
					if _, err := Get(w, At[uint64](0, 128)); err != nil { // what nobody writes
						return err
					}
					if acquires {
						if err := w.Acquire(); err != nil {
							return err
						}
					}
				}
				return nil
			})
			return errors.Join(err, j.Close())
		}) {
			if err != nil {
				t.Error(err)
			}
		}
		found := f.some()
		if acquires {
			if len(found) > 0 {
				t.Errorf("with an acquire before each get: %v", found)
			}
			continue
		}
		if len(found) != 1 || endOfLine(found[0].Second) != "again and again" || found[0].First.Kind != fencecheck.KindUnknown {
			t.Errorf("found %v", found)
		}
	}
}

func TestTheCheckerIsAskedForByAVariable(t *testing.T) {
	for _, c := range []struct {
		given           *cache.Config
		variable, check string
		want            func(c *cache.Config) bool
	}{
		{nil, "", "", func(c *cache.Config) bool { return c == nil }},
		{nil, "", "0", func(c *cache.Config) bool { return c == nil }},
		{nil, "", "1", func(c *cache.Config) bool { return c.Check && c.Pages == 0 }},
		{nil, "pages=7", "1", func(c *cache.Config) bool { return c.Check && c.Pages == 7 }},
		{&cache.Config{Pages: 5}, "pages=7", "1", func(c *cache.Config) bool { return c.Check && c.Pages == 5 }},
	} {
		env := &environment{lookup: func(key string) (string, bool) {
			return map[string]string{"IBCONDUIT_CACHE": c.variable, "IBCONDUIT_CACHE_CHECK": c.check}[key], true
		}}
		cfg := Config{Cache: c.given}
		if cfg.cacheDefaults(env); env.err != nil || !c.want(cfg.Cache) {
			t.Errorf("%+v: %+v, %v", c, cfg.Cache, env.err)
		}
		if c.given != nil && c.given.Check {
			t.Error("the caller's configuration has changed")
		}
	}
	env := &environment{lookup: func(key string) (string, bool) { return "maybe", key == "IBCONDUIT_CACHE_CHECK" }}
	if (&Config{}).cacheDefaults(env); env.err == nil {
		t.Error("a value that means nothing is accepted")
	}
}

// What has passed the cache by is there.
func TestTheCheckerKnowsWhatPassedBy(t *testing.T) {
	f := checkedJob(t, 3, Config{}, func(ctx context.Context, j *Job, w *Worker) error {
		p := At[uint64](2, 4096)
		var err error
		if j.Rank() == 0 {
			err = PutSlice(w, p, make([]uint64, 1024))
		}
		if err = errors.Join(err, j.Barrier(ctx)); j.Rank() == 1 {
			_, got := Get(w, p)
			err = errors.Join(err, got)
		}
		return err
	})
	if found := f.some(); len(found) > 0 {
		t.Error(found)
	}
}
