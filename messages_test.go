package conduit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// everyFabric is fabrics, and the choice that Join makes itself.
func everyFabric(t *testing.T, fn func(t *testing.T, cfg Config)) {
	fabrics(t, fn)
	t.Run(FabricAuto, func(t *testing.T) { fn(t, Config{Fabric: FabricAuto, SegmentSize: 4 << 20}) })
}

// neighbour is the next rank.
func neighbour(j *Job) int { return (j.Rank() + 1) % j.Size() }

func TestMessagesOfEveryKindReachEveryRank(t *testing.T) {
	var posts, bytesPosted atomic.Uint64
	table := am.NewTable()
	sum := table.Handle("sum", func(c *am.Call) {
		n := uint64(c.From())<<32 | uint64(c.Endpoint().Rank())<<48
		for _, a := range c.Args() {
			n += a
		}
		_ = c.Reply(n)
	})
	note := table.Handle("note", func(c *am.Call) { posts.Add(1); bytesPosted.Add(uint64(len(c.Payload()))) })
	reverse := table.Handle("reverse", func(c *am.Call) {
		b := bytes.Clone(c.Payload())
		slices.Reverse(b)
		_ = c.ReplyWith(am.Medium(b))
	})
	place := table.Handle("place", func(c *am.Call) {
		off, long := c.Offset()
		if !long || samePattern(c.Payload(), c.From()) != nil {
			off = ^uint64(0)
		}
		_ = c.Reply(off)
	})
	everyFabric(t, func(t *testing.T, cfg Config) {
		const ranks = 3
		posts.Store(0)
		bytesPosted.Store(0)
		cfg.Handlers = table
		runLocal(t, ranks, cfg, worked(func(ctx context.Context, j *Job, w *Worker) error {
			for to := range ranks {
				r, err := sum.Call(ctx, w, to, 1, 2, 3)
				if want := uint64(to)<<48 | uint64(j.Rank())<<32 + 6; err != nil || r.Arg(0) != want {
					return fmt.Errorf("sum at rank %d: %#x, %w; want %#x", to, r.Arg(0), err, want)
				}
				if err := note.PostWith(ctx, w, to, am.Medium(make([]byte, 10))); err != nil {
					return err
				}
				if r, err = reverse.CallWith(ctx, w, to, am.Medium([]byte("abc"))); err != nil || string(r.Data) != "cba" {
					return fmt.Errorf("reverse at rank %d: %q, %w", to, r.Data, err)
				}
				large := make([]byte, 100_000) // its own part of the segment
				pattern(large, j.Rank())
				at := uint64(1<<20 + 200_000*j.Rank())
				if r, err = place.CallWith(ctx, w, to, am.Long(at, large)); err != nil || r.Arg(0) != at {
					return fmt.Errorf("place at rank %d: %d, %w; want %d", to, int64(r.Arg(0)), err, at)
				}
			}
			return j.Barrier(ctx)
		}))
		if p, b := posts.Load(), bytesPosted.Load(); p != ranks*ranks || b != 10*ranks*ranks {
			t.Errorf("%d posts with %d bytes were handled before Close returned, want %d with %d", p, b, ranks*ranks, 10*ranks*ranks)
		}
	})
}

// In front of the user's region lies what collective operations live on.
func TestALongBeyondTheSegmentIsRefused(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(*am.Call) {})
	back := table.Handle("back", func(c *am.Call) {
		if err := c.ReplyWith(am.Long(c.Arg(0), make([]byte, 8))); err != nil {
			_ = c.ReplyWith(am.Medium([]byte(err.Error())))
		}
	})
	everyFabric(t, func(t *testing.T, cfg Config) {
		cfg.Handlers, cfg.SegmentSize = table, 1<<16
		runLocal(t, 2, cfg, func(ctx context.Context, j *Job) error {
			to, end := neighbour(j), j.SegmentSize(neighbour(j))
			begin := j.layout.UserOffset()
			area := view{j}.Region(coll.Region)
			last := uint64(len(area.Bytes) - 1) // of a slot that no team has
			area.Bytes[last] = 0x5a
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			var bounds *BoundsError
			for _, off := range []uint64{end - 7, end, area.Off + last&^7 - begin, -begin, ^uint64(7), ^uint64(3)} {
				_, call := h.CallWith(ctx, j, to, am.Long(off, make([]byte, 8)))
				post := h.PostWith(ctx, j, to, am.Long(off, make([]byte, 8)))
				if !errors.As(call, &bounds) || !errors.As(post, &bounds) {
					return fmt.Errorf("at %d: %w, %w", off, call, post)
				}
				if r, err := back.Call(ctx, j, to, off); err != nil || !strings.Contains(string(r.Data), "segment") {
					return fmt.Errorf("a reply at %d: %q, %w", off, r.Data, err)
				}
			}
			if _, err := h.CallWith(ctx, j, to, am.Long(end-8, make([]byte, 8))); err != nil {
				return fmt.Errorf("the last bytes: %w", err)
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			if b := area.Bytes[last]; b != 0x5a {
				return fmt.Errorf("the region of the collective operations was written: %#x", b)
			}
			return nil
		})
	})
}

func TestWorkersShareMessageEndpointsInTurn(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("echo", func(c *am.Call) { _ = c.Reply() })
	everyFabric(t, func(t *testing.T, cfg Config) {
		cfg.Handlers, cfg.MessageEndpoints, cfg.Workers = table, 2, 4
		runLocal(t, 2, cfg, func(ctx context.Context, j *Job) error {
			var w [4]*Worker
			for i := range w {
				var err error
				if w[i], err = j.NewWorker(); err != nil {
					return err
				}
				defer w[i].Close()
			}
			other := neighbour(j)
			if w[0].Endpoint(other) != j.Endpoint(other) || w[1].Endpoint(other) == w[0].Endpoint(other) || w[2].Endpoint(other) != w[0].Endpoint(other) || w[3].Endpoint(other) != w[1].Endpoint(other) {
				return errors.New("workers do not take the two endpoints in turn")
			}
			for i := range w {
				for range i + 1 {
					if _, err := h.Call(ctx, w[i], other); err != nil {
						return err
					}
				}
			}
			if _, err := h.Call(ctx, j, other); err != nil { // without a worker
				return err
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			a, b := w[0].Endpoint(other).Stats(), w[1].Endpoint(other).Stats()
			if a.Calls != 1+3+1 || b.Calls != 2+4 || a.Requests != a.Calls || b.Requests != b.Calls {
				return fmt.Errorf("endpoints had %d and %d calls, %d and %d requests; want 5 and 6 of both", a.Calls, b.Calls, a.Requests, b.Requests)
			}
			// The handler of the last may have replied and not returned.
			if s := j.MessageStats()[j.FabricTo(other)]; s.Calls != 11 || s.Handled+uint64(s.Handling) != 11 {
				return fmt.Errorf("the sum has %d calls, %d handled, want 11 of each", s.Calls, s.Handled)
			}
			var bad *RankError
			if _, err := h.Call(ctx, w[0], 2); !errors.As(err, &bad) {
				return fmt.Errorf("a call to no rank: %w", err)
			}
			return j.Barrier(ctx)
		})
	})
}

func TestADeadRankEndsTheCallsToItAndOthersGoOn(t *testing.T) {
	table := am.NewTable()
	never := table.Handle("never", func(c *am.Call) { c.Defer(time.Hour) })
	echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply(c.Arg(0)) })
	died := errors.New("died on purpose")
	everyFabric(t, func(t *testing.T, cfg Config) {
		cfg.Handlers, cfg.Getenv = table, noEnv
		ctx := testContext(t)
		var waiting, going sync.WaitGroup
		waiting.Add(2)
		going.Add(2)
		err := RunLocalConfig(ctx, 3, cfg, func(j *Job) error {
			if j.Rank() == 1 {
				waiting.Wait()
				return died
			}
			defer going.Wait() // a job that has lost a rank is left without waiting for the others
			defer going.Done()
			var down *PeerDownError
			p, err := never.Start(ctx, j, 1, am.Payload{})
			waiting.Done()
			if err != nil {
				return err
			}
			if _, err := p.Wait(ctx); !errors.As(err, &down) || down.Rank != 1 {
				return fmt.Errorf("a call that was waiting: %w", err)
			}
			if _, err := echo.Call(ctx, j, 1, 1); !errors.As(err, &down) || down.Rank != 1 {
				return fmt.Errorf("a call afterwards: %w", err)
			}
			if d := j.DownRanks(); len(d) != 1 || d[1] == nil {
				return fmt.Errorf("ranks that are down: %v", d)
			}
			if err := wantErr(j.Barrier(ctx), ErrPeerDown, "rank 1"); err != nil {
				return err
			}
			r, err := echo.Call(ctx, j, 2-j.Rank(), 7)
			if err != nil || r.Arg(0) != 7 {
				return fmt.Errorf("a call to a rank that lives: %d, %w", r.Arg(0), err)
			}
			return nil
		})
		if !errors.Is(err, died) || strings.Contains(err.Error(), "rank 0:") || strings.Contains(err.Error(), "rank 2:") {
			t.Error(err)
		}
	})
}

// What a message endpoint finds out the whole job knows.
func TestARankThatAnEndpointClosesIsDown(t *testing.T) {
	table := handlerTable("h")
	cause := errors.New("it sent nonsense")
	onFabrics(t, 2, Config{Handlers: table, MessageEndpoints: 2}, func(ctx context.Context, j *Job) error {
		if err := j.Barrier(ctx); err != nil || j.Rank() == 1 {
			return err
		}
		j.messages.all[1].PeerDown(1, cause)
		if err := until(ctx, "the job knows of it", func() bool { return len(j.DownRanks()) > 0 }); err != nil {
			return err
		}
		if err := wantErr(j.DownRanks()[1], cause); err != nil {
			return err
		}
		for k, l := range j.messages.all { // the other endpoint too
			if err := until(ctx, fmt.Sprintf("endpoint %d closes one peer", k), func() bool { return l.Stats().Closed == 1 }); err != nil {
				return err
			}
		}
		return wantErr(j.Barrier(ctx), cause)
	})
}

func TestHandlersRunWhileTheirRankWaitsOrComputes(t *testing.T) {
	table := am.NewTable()
	var ran atomic.Uint64
	h := table.Handle("count", func(c *am.Call) { ran.Add(1); _ = c.Reply() })
	closes := func(context.Context, *Job, <-chan struct{}) error { return nil }
	everyFabric(t, func(t *testing.T, cfg Config) {
		for what, c := range map[string]struct {
			attend time.Duration
			busy   func(ctx context.Context, j *Job, called <-chan struct{}) error
			is     func(*Job) bool
		}{
			"in Barrier":                     {0, func(ctx context.Context, j *Job, _ <-chan struct{}) error { return j.Barrier(ctx) }, (*Job).collecting},
			"in Close":                       {0, closes, (*Job).inClose},
			"in Close, without an attendant": {-1, closes, (*Job).inClose},
			"computing":                      {0, func(_ context.Context, _ *Job, called <-chan struct{}) error { <-called; return nil }, func(*Job) bool { return true }},
		} {
			ran.Store(0)
			called, callee := make(chan struct{}), make(chan *Job, 1)
			cfg.Handlers, cfg.CloseTimeout, cfg.Messages.AttendAfter = table, time.Minute, c.attend
			runLocal(t, 2, cfg, func(ctx context.Context, j *Job) error {
				if j.Rank() == 1 {
					callee <- j
					return c.busy(ctx, j, called)
				}
				other := <-callee
				if err := until(ctx, "rank 1 is "+what, func() bool { return c.is(other) }); err != nil {
					return err
				}
				for range 3 {
					if _, err := h.Call(ctx, j, 1); err != nil {
						return fmt.Errorf("while rank 1 is %s: %w", what, err)
					}
				}
				close(called)
				if what == "in Barrier" {
					return j.Barrier(ctx)
				}
				return nil
			})
			if n := ran.Load(); n != 3 {
				t.Errorf("%s: %d handlers ran, want 3", what, n)
			}
		}
	})
}

// Two jobs in one process know nothing of each other.
func TestTwoJobsLiveInOneProcess(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		var both sync.WaitGroup
		for job := range uint64(2) {
			table := am.NewTable()
			if job == 1 {
				table.Handle("a", func(*am.Call) {}) // so that indexes differ
			}
			name := table.Handle("name", func(c *am.Call) { _ = c.Reply(job) })
			stranger := am.NewTable().Handle("name", func(*am.Call) {})
			c := cfg
			c.Handlers = table
			both.Go(func() {
				runLocal(t, 2, c, worked(func(ctx context.Context, j *Job, w *Worker) error {
					for i := range uint64(50) {
						if r, err := name.Call(ctx, j, neighbour(j)); err != nil || r.Arg(0) != job {
							return fmt.Errorf("job %d was answered by job %d: %w", job, r.Arg(0), err)
						}
						if err := errors.Join(Put(w, At[uint64](neighbour(j), 0), 1000*job+i), w.Barrier(ctx)); err != nil {
							return err
						}
						if v, err := Get(w, At[uint64](j.Rank(), 0)); err != nil || v != 1000*job+i {
							return fmt.Errorf("job %d reads %d, %w", job, v, err)
						}
						if err := w.Barrier(ctx); err != nil {
							return err
						}
					}
					if err := stranger.Post(ctx, j, 0); err == nil || !strings.Contains(err.Error(), "another table") {
						return fmt.Errorf("a handler of another table: %w", err)
					}
					return nil
				}))
			})
		}
		both.Wait()
	})
}

// A handler must not wait: what it waits for might wait for it.
func TestAHandlerThatWaitsForTheJobGetsAnError(t *testing.T) {
	if lockrank.Checked {
		t.Skip("the debug build panics, as am's TestDebugBuildPanics shows")
	}
	table := am.NewTable()
	var job atomic.Pointer[Job]
	waits := table.Handle("waits", func(c *am.Call) {
		j := job.Load()
		barrier := j.Barrier(context.Background())
		if err := errors.Join(wantErr(barrier, am.ErrInHandler), wantErr(j.Close(), am.ErrInHandler)); err != nil {
			panic(err) // which the caller gets
		}
	})
	runLocal(t, 2, Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Handlers: table}, func(ctx context.Context, j *Job) error {
		if j.Rank() == 0 {
			job.Store(j)
			if _, err := waits.Call(ctx, j, 0); err != nil {
				return err
			}
		}
		return j.Barrier(ctx) // works
	})
}

// serveUntil polls for messages until done is closed.
func serveUntil(ctx context.Context, j *Job, done <-chan struct{}) error {
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-done:
			cancel(enough)
		case <-ctx.Done():
		}
	}()
	if err := j.Endpoint(j.Rank()).Serve(ctx); !errors.Is(err, enough) {
		return err
	}
	return nil
}

// BenchmarkMessage measures an empty call to another rank: through an endpoint, and through what
// has one.
func BenchmarkMessage(b *testing.B) {
	table := am.NewTable()
	h := table.Handle("h", func(*am.Call) {})
	cfg := Config{Fabric: os.Getenv("IBCONDUIT_FABRIC"), SegmentSize: 1 << 20, Handlers: table, MessageEndpoints: 1}
	if cfg.Fabric == "" {
		cfg.Fabric = FabricSHM
	}
	cfg.Messages.SpinFor = time.Minute
	ctx, done := b.Context(), make(chan struct{})
	err := RunLocalConfig(ctx, 2, cfg, func(j *Job) error {
		if j.Rank() == 1 {
			return serveUntil(ctx, j, done)
		}
		defer close(done)
		return withWorker(j, func(w *Worker) error {
			for _, c := range []struct {
				name string
				via  am.Via
			}{{"endpoint", j.Endpoint(1)}, {"worker", w}, {"job", j}, {"self by endpoint", j.Endpoint(0)}, {"self by worker", w}} {
				to := 1
				if strings.HasPrefix(c.name, "self") {
					to = 0
				}
				b.Run(c.name, func(b *testing.B) {
					for b.Loop() {
						if _, err := h.Call(ctx, c.via, to); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			return nil
		})
	})
	if err != nil {
		b.Fatal(err)
	}
}
