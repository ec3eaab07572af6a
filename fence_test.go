package conduit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
)

// recorder records what a worker does, in place of its cache.
type recorder struct {
	events []string
	refuse error // of all that goes through it
}

func (r *recorder) add(format string, args ...any) {
	r.events = append(r.events, fmt.Sprintf(format, args...))
}

// access records an access to n bytes.
func (r *recorder) access(what string, n int, off uint64, rank int) error {
	r.add("%s %d at %d of %d", what, n, off, rank)
	return r.refuse
}

func (r *recorder) ReleaseFor(ctx context.Context, rank int, off uint64, n int) error {
	if ctx.Err() != nil { // one that must not wait
		r.add("try")
	} else {
		r.add("release")
	}
	if n > 0 && r.refuse == nil {
		return r.access("write", n, off, rank)
	}
	return r.refuse
}

func (r *recorder) Acquire() { r.add("acquire") }

// recorded is a lane above one of a network.
type recorded struct {
	fabric.Lane
	r     *recorder
	begin uint64
}

func (l *recorded) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	if err := l.r.access("write", len(src), off-l.begin, peer); err != nil {
		return fabric.Done, err
	}
	return l.Lane.Put(peer, off, src, f)
}

func (l *recorded) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	if err := l.r.access("read", len(dst), off-l.begin, peer); err != nil {
		return fabric.Done, err
	}
	return l.Lane.Get(peer, off, dst, f)
}

func (l *recorded) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	what := "fetch"
	if f&fabric.Implicit != 0 {
		what = "write"
	}
	if err := l.r.access(what, int(a.Type.Size()), off-l.begin, peer); err != nil {
		return 0, fabric.Done, err
	}
	return l.Lane.Atomic(peer, off, a, f)
}

// take returns what was recorded since.
func (r *recorder) take() string {
	defer func() { r.events = nil }()
	return strings.Join(r.events, ", ")
}

// withCaches is a configuration whose workers can be recorded.
func withCaches(cfg Config) Config {
	cfg.Cache = &cache.Config{Pages: 16}
	return cfg
}

// record has a worker's operations be recorded, which go to the network then.
func record(w *Worker) *recorder {
	r := &recorder{}
	w.fence, w.lines = r, nil
	for i, l := range w.lanes {
		w.byNet[i] = &recorded{l, r, w.begin}
	}
	return r
}

// fenceHandlers are the messages of these tests.
func fenceHandlers() (table *am.Table, echo *am.Handler, large *am.Large) {
	table = am.NewTable()
	echo = table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Args()...) })
	large = table.HandleLarge("large", am.Receiver{
		Announced: func(a *am.Announcement) { _ = a.Grant(16384) },
		Ended:     func(*am.Announcement, error) {},
	})
	return table, echo, large
}

// fencing is an operation and what it must do with the fence and the lanes of its worker.
type fencing struct {
	name string
	do   func(ctx context.Context, j *Job, w *Worker, to int) error
	// of a rank that only a lane reaches, and of one whose memory is mapped here, if that differs
	want, mapped string
}

const none = "none"

// fencings are all operations of a worker.
func fencings(echo *am.Handler, large *am.Large) []fencing {
	word := func(to int) Ptr[int64] { return At[int64](to, 4096) }
	buf := make([]int64, 4)
	request := "release"
	call := "release, acquire"
	atomics := func(name string, do func(w *Worker, p Ptr[int64]) error, async func(w *Worker, p Ptr[int64]) Promise[int64]) []fencing {
		return []fencing{
			{name: name, want: "fetch 8 at 4096 of TO", do: func(_ context.Context, _ *Job, w *Worker, to int) error { return do(w, word(to)) }},
			{name: name + " async", want: "fetch 8 at 4096 of TO", do: func(ctx context.Context, _ *Job, w *Worker, to int) error {
				p := async(w, word(to))
				_, err := p.Wait(ctx)
				return err
			}},
			{name: name + " tested", want: "fetch 8 at 4096 of TO", do: func(_ context.Context, _ *Job, w *Worker, to int) error {
				p := async(w, word(to))
				for {
					if done, err := p.Test(); done || err != nil {
						return err
					}
				}
			}},
		}
	}
	of := slices.Concat(
		atomics("fetch-add", func(w *Worker, p Ptr[int64]) error { _, err := FetchAdd(w, p, 1); return err },
			func(w *Worker, p Ptr[int64]) Promise[int64] { return FetchAddAsync(w, p, 1) }),
		atomics("compare-swap", func(w *Worker, p Ptr[int64]) error { _, err := CompareSwap(w, p, 1, 2); return err },
			func(w *Worker, p Ptr[int64]) Promise[int64] { return CompareSwapAsync(w, p, 1, 2) }),
		atomics("swap", func(w *Worker, p Ptr[int64]) error { _, err := Swap(w, p, 1); return err },
			func(w *Worker, p Ptr[int64]) Promise[int64] { return SwapAsync(w, p, 1) }),
		atomics("fetch-xor", func(w *Worker, p Ptr[int64]) error { _, err := FetchXor(w, p, 1); return err },
			func(w *Worker, p Ptr[int64]) Promise[int64] { return FetchXorAsync(w, p, 1) }))
	simple := func(name, want, mapped string, do func(w *Worker, to int) error) fencing {
		return fencing{name, func(_ context.Context, _ *Job, w *Worker, to int) error { return do(w, to) }, want, mapped}
	}
	waited := func(ctx context.Context, p Pending) error { return p.Wait(ctx) }
	return append(of, []fencing{
		// Puts and gets.
		simple("put", "write 8 at 4096 of TO", none, func(w *Worker, to int) error { return Put(w, word(to), 1) }),
		simple("put implicit", "write 8 at 4096 of TO", none, func(w *Worker, to int) error { return PutNBI(w, word(to), 1) }),
		simple("put slice", "write 32 at 4096 of TO", none, func(w *Worker, to int) error { return PutSlice(w, word(to), buf) }),
		simple("put slice implicit", "write 32 at 4096 of TO", none, func(w *Worker, to int) error { return PutSliceNBI(w, word(to), buf) }),
		simple("add", "write 8 at 4096 of TO", "", func(w *Worker, to int) error { return Add(w, word(to), 1) }),
		simple("max", "write 4 at 4096 of TO", "", func(w *Worker, to int) error { return Max(w, Cast[int32](word(to)), 1) }),
		simple("get", "read 8 at 4096 of TO", none, func(w *Worker, to int) error { _, err := Get(w, word(to)); return err }),
		simple("get slice", "read 32 at 4096 of TO", none, func(w *Worker, to int) error { return GetSlice(w, buf, word(to)) }),
		simple("get slice implicit", "read 32 at 4096 of TO", none, func(w *Worker, to int) error { return GetSliceNBI(w, buf, word(to)) }),
		{"put async", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			return waited(ctx, PutAsync(w, word(to), 1))
		}, "write 8 at 4096 of TO", none},
		{"put slice async", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			return waited(ctx, PutSliceAsync(w, word(to), buf))
		}, "write 32 at 4096 of TO", none},
		{"get async", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			p := GetAsync(w, word(to))
			_, err := p.Wait(ctx)
			return err
		}, "read 8 at 4096 of TO", none},
		{"get slice async", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			return waited(ctx, GetSliceAsync(w, buf, word(to)))
		}, "read 32 at 4096 of TO", none},
		{"large put", func(_ context.Context, _ *Job, w *Worker, to int) error {
			return PutSlice(w, At[byte](to, 65536), make([]byte, 1<<20)) // without a copy
		}, "write 1048576 at 65536 of TO", none},
		{"large get", func(_ context.Context, _ *Job, w *Worker, to int) error {
			return GetSlice(w, make([]byte, 1<<20), At[byte](to, 65536))
		}, "read 1048576 at 65536 of TO", none},
		{"chain", func(_ context.Context, _ *Job, w *Worker, to int) error {
			return w.Chain(func() error { return PutNBI(w, word(to), 1) })
		}, "write 8 at 4096 of TO", none},
		// What completes, or waits.
		{"flush", func(ctx context.Context, _ *Job, w *Worker, _ int) error { return w.Flush(ctx) }, "release", ""},
		simple("poll", none, "", func(w *Worker, _ int) error { return w.Poll() }),
		{"wait until, fulfilled", func(ctx context.Context, _ *Job, w *Worker, _ int) error {
			return w.WaitUntil(ctx, 512, GreaterEqual, 0)
		}, "release, acquire", ""},
		{"wait until", func(ctx context.Context, j *Job, w *Worker, _ int) error {
			go atomic.StoreUint64((*uint64)(unsafe.Pointer(&j.Segment()[520])), 1)
			return w.WaitUntil(ctx, 520, Equal, 1)
		}, "release, acquire", ""},
		// Messages.
		{"call", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			_, err := echo.Call(ctx, w, to, 1)
			return err
		}, call, ""},
		{"call of a medium", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			_, err := echo.CallWith(ctx, w, to, am.Medium([]byte{1}))
			return err
		}, call, ""},
		{"call of a long", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			_, err := echo.CallWith(ctx, w, to, am.Long(8192, make([]byte, 24)))
			return err
		}, "release, write 24 at 8192 of TO, acquire", ""},
		{"post", func(ctx context.Context, _ *Job, w *Worker, to int) error { return echo.Post(ctx, w, to) }, request, ""},
		{"post of a long", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			return echo.PostWith(ctx, w, to, am.Long(8192, make([]byte, 24)))
		}, "release, write 24 at 8192 of TO", ""},
		{"try post", func(ctx context.Context, _ *Job, w *Worker, to int) error { return echo.Post(am.NoWait, w, to) }, "try", ""},
		{"start, wait", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			p, err := echo.Start(ctx, w, to, am.Payload{})
			if err == nil {
				w.fence.(*recorder).add("started")
				_, err = p.Wait(ctx)
			}
			return err
		}, "release, started, acquire", ""},
		{"start, test", func(ctx context.Context, j *Job, w *Worker, to int) error {
			p, err := echo.Start(ctx, w, to, am.Payload{})
			if err != nil {
				return err
			}
			return until(ctx, "a reply comes", func() bool { _, done, _ := p.Test(); return done })
		}, "release, acquire", ""},
		{"prepare, commit", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			p, err := echo.Prepare(ctx, w, to, 8)
			if err == nil {
				w.fence.(*recorder).add("prepared")
				err = p.Commit(ctx)
			}
			return err
		}, "prepared, release", ""},
		{"prepare, try", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			p, err := echo.Prepare(am.NoWait, w, to, 8)
			if err == nil {
				err = p.Commit(am.NoWait)
				p.Cancel() // nothing, once it is sent
			}
			return err
		}, "try", ""},
		{"prepare, call", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			p, err := echo.Prepare(ctx, w, to, 8)
			if err == nil {
				_, err = p.CommitCall(ctx)
			}
			return err
		}, call, ""},
		{"large payload", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			return large.Send(ctx, w, to, make([]byte, 10_000))
		}, "release, release, write 10000 at 16384 of TO", ""},
		{"call through the job", func(ctx context.Context, j *Job, _ *Worker, to int) error {
			_, err := echo.Call(ctx, j, to)
			return err
		}, none, ""},
		{"call through an endpoint", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			_, err := echo.Call(ctx, w.Endpoint(to), to)
			return err
		}, none, ""},
		{"refused call", func(ctx context.Context, _ *Job, w *Worker, to int) error {
			if _, err := echo.Call(ctx, w, 99); !errors.As(err, new(*RankError)) {
				return fmt.Errorf("rank 99: %w", err)
			}
			return nil
		}, none, ""},
	}...)
}

// want is what an operation is to record.
func (f *fencing) wanted(mapped bool, to int) string {
	want := f.want
	if mapped {
		want = cmp.Or(f.mapped, want)
	}
	if want == none {
		return ""
	}
	return strings.ReplaceAll(want, "TO", fmt.Sprint(to))
}

func TestEachOperationFencesAsTheContractSays(t *testing.T) {
	table, echo, large := fenceHandlers()
	onFabrics(t, 2, withCaches(Config{Handlers: table}), worked(func(ctx context.Context, j *Job, w *Worker) error {
		to, r := neighbour(j), record(w)
		if j.Rank() != 0 {
			return j.Barrier(ctx)
		}
		mapped := w.lanes[j.networks.routes[to].net].Mapped(to) != nil
		for _, f := range fencings(echo, large) {
			// A call through an endpoint, to have run what came before; and no handler runs here any more.
			if _, err := echo.Call(ctx, w.Endpoint(to), to); err != nil {
				return err
			}
			w.acquire()
			r.take()
			if err := f.do(ctx, j, w, to); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			got, want := r.take(), f.wanted(mapped, to)
			if got != want { // a call acquires at the next access
				w.catchUp()
				got = strings.TrimPrefix(got+", "+r.take(), ", ")
			}
			if got != want {
				t.Errorf("%s: %q, want %q", f.name, got, want)
			}
			if err := w.Flush(ctx); err != nil {
				return err
			}
		}
		return j.Barrier(ctx)
	}))
}

// errRefused is an error of a fence.
var errRefused = errors.New("the fence refuses it")

func TestNothingBeginsWhereItsFenceFails(t *testing.T) {
	table, echo, large := fenceHandlers()
	onFabrics(t, 2, withCaches(Config{Handlers: table}), worked(func(ctx context.Context, j *Job, w *Worker) error {
		to, r := neighbour(j), record(w)
		handled := j.MessageStats()
		if j.Rank() == 0 {
			mapped := w.lanes[j.networks.routes[to].net].Mapped(to) != nil
			r.refuse = errRefused
			for _, f := range fencings(echo, large) {
				if f.wanted(mapped, to) == "" {
					continue
				}
				if err := f.do(ctx, j, w, to); !errors.Is(err, errRefused) {
					return fmt.Errorf("%s: %w", f.name, err)
				}
			}
			r.refuse = nil
			if n := w.Stats()[j.FabricTo(to)]; n.Puts+n.Gets+n.Atomics != w.direct.Puts+w.direct.Gets {
				return fmt.Errorf("operations were begun: %+v", n)
			}
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		for name, s := range j.MessageStats() {
			if s.Requests != handled[name].Requests {
				return fmt.Errorf("%d messages were sent", s.Requests-handled[name].Requests)
			}
		}
		return j.Barrier(ctx)
	}))
}

func TestAWorkersCollectivesFence(t *testing.T) {
	onFabrics(t, 3, withCaches(Config{}), worked(func(ctx context.Context, j *Job, w *Worker) error {
		r, buf := record(w), make([]byte, 100)
		for _, do := range []func() error{
			func() error { return w.Barrier(ctx) },
			func() error { return w.Broadcast(ctx, 1, buf) },
			func() error { _, err := w.AllGather(ctx, buf); return err },
		} {
			r.take()
			if err := do(); err != nil {
				return err
			}
			if got := r.take(); got != "release, acquire" {
				return fmt.Errorf("%q", got)
			}
			r.refuse = errRefused // and yet the others get through
			err := do()
			r.refuse = nil
			if got := r.take(); !errors.Is(err, errRefused) || got != "release, acquire" {
				return fmt.Errorf("%q, %w", got, err)
			}
		}
		return nil
	}))
}

// What a rank learns without a worker reaches each at its next access.
func TestAWorkerCatchesUpAtItsNextAccess(t *testing.T) {
	table := am.NewTable()
	ready, began, goOn := make(chan struct{}), make(chan struct{}), make(chan struct{})
	slow := table.Handle("slow", func(c *am.Call) {
		began <- struct{}{}
		<-goOn
	})
	onFabrics(t, 2, withCaches(Config{Handlers: table}), worked(func(ctx context.Context, j *Job, w *Worker) error {
		to, r := neighbour(j), record(w)
		if j.Rank() != 0 {
			<-ready
			_, err := slow.Call(ctx, j, to)
			return errors.Join(err, j.Barrier(ctx))
		}
		access := func(what, want string) error {
			r.take()
			w.catchUp() // as an access does, which on mapped memory is not told of
			w.catchUp()
			if got := r.take(); got != want {
				return fmt.Errorf("%s: %q, want %q", what, got, want)
			}
			return nil
		}
		w.acquire()
		if err := access("at first", ""); err != nil {
			return err
		}
		ready <- struct{}{}
		<-began
		if err := access("a handler began", "acquire"); err != nil {
			return err
		}
		e := j.members.generation.Load()
		goOn <- struct{}{}
		if err := until(ctx, "the handler ends", func() bool { return j.members.generation.Load() != e }); err != nil {
			return err
		}
		if err := errors.Join(access("a handler ended", "acquire"), j.Barrier(ctx), access("a barrier", "acquire")); err != nil {
			return err
		}
		if w.lanes[j.networks.routes[to].net].Mapped(to) != nil {
			return nil
		}
		j.learned()
		_, err := Get(w, At[int64](to, 64))
		if got := r.take(); err != nil || got != "acquire, read 8 at 64 of 1" {
			return fmt.Errorf("a get: %q, %w", got, err)
		}
		return nil
	}))
}

func TestACloseReleases(t *testing.T) {
	runLocal(t, 1, withCaches(Config{SegmentSize: 4096, Fabric: FabricSHM}), func(_ context.Context, j *Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		r := record(w)
		r.refuse = errRefused
		if err := w.Close(); !errors.Is(err, errRefused) {
			return fmt.Errorf("writes are lost, and Close says %w", err)
		}
		if got := r.take(); got != "release" {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
}
