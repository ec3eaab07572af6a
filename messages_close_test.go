package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
)

func TestCloseEndsCallsAndHandlesEveryPost(t *testing.T) {
	table := am.NewTable()
	var handled, answered atomic.Uint64
	slow := table.Handle("slow", func(c *am.Call) {
		tok := c.Defer(time.Minute)
		time.AfterFunc(30*time.Millisecond, func() { _ = tok.Reply() })
	})
	post := table.Handle("post", func(*am.Call) { handled.Add(1) })
	everyFabric(t, func(t *testing.T, cfg Config) {
		const ranks, posts = 3, 300
		handled.Store(0)
		answered.Store(0)
		cfg.Handlers, cfg.CloseTimeout = table, time.Minute
		var calls sync.WaitGroup
		var jobs [ranks]*Job
		runLocal(t, ranks, cfg, func(ctx context.Context, j *Job) error {
			jobs[j.Rank()] = j
			for to := range ranks {
				p, err := slow.Start(ctx, j, to, am.Payload{})
				if err != nil {
					return err
				}
				calls.Go(func() {
					if _, err := p.Wait(ctx); err == nil {
						answered.Add(1)
					}
				})
				for range posts {
					if err := post.Post(ctx, j, to); err != nil {
						return err
					}
				}
			}
			return nil // and Close at once
		})
		calls.Wait()
		if h, a := handled.Load(), answered.Load(); h != ranks*ranks*posts || a != ranks*ranks {
			t.Errorf("%d posts were handled and %d calls answered, want %d and %d", h, a, ranks*ranks*posts, ranks*ranks)
		}
		for r, j := range jobs { // the accounts balance, and no message met a rank without a buffer for it
			for k, l := range j.messages.all {
				if s := l.Stats(); s.Check() != nil || len(j.DownRanks()) != 0 {
					t.Errorf("rank %d endpoint %d: %v; down: %v", r, k, s.Check(), j.DownRanks())
				}
			}
		}
	})
}

// A post that is sent when its target is in Close already, and does not poll, is handled all the
// same; also by a rank that has given up waiting for a call of its own.
func TestAPostToARankThatWaitsInCloseIsHandled(t *testing.T) {
	table := am.NewTable()
	var handled atomic.Uint64
	h := table.Handle("h", func(c *am.Call) { handled.Add(1); _ = c.Reply() })
	never := table.Handle("never", func(c *am.Call) { c.Defer(time.Hour) })
	fabrics(t, func(t *testing.T, cfg Config) {
		for _, unanswered := range []uint64{0, 1} {
			handled.Store(0)
			cfg.Handlers, cfg.MessageEndpoints, cfg.CloseTimeout, cfg.Messages.AttendAfter = table, 1, 8*time.Second, -1
			served, meets := make(chan struct{}), make(chan struct{})
			errs := observed(t, 2, cfg, func(ctx context.Context, j *Job, b *lastBarrier) error {
				if j.Rank() == 1 {
					b.look = sync.OnceFunc(func() { close(meets) })
					for range unanswered { // to itself, so that the other owes nothing
						if _, err := never.Start(ctx, j, 1, am.Payload{}); err != nil {
							return err
						}
					}
					return errors.Join(serveUntil(ctx, j, served), j.Close())
				}
				_, err := h.Call(ctx, j, 1) // after it there are credits
				close(served)
				return errors.Join(err, receive(ctx, meets), h.Post(am.NoWait, j, 1), j.Close())
			})
			var rest am.InFlightError
			if r := &rest; errors.As(errs[1], &r) {
				rest = *r
			}
			if errs[0] != nil || rest.Calls != int(unanswered) || (errs[1] == nil) != (unanswered == 0) || errors.Is(errs[1], context.DeadlineExceeded) {
				t.Errorf("%d calls of its own: the ranks closed with %v", unanswered, errs)
			}
			if n := handled.Load(); n != 2 {
				t.Errorf("%d calls of its own: %d of 2 requests were handled", unanswered, n)
			}
		}
	})
}

// The first meeting in Close is of ranks with goroutines that may still send.
func TestRequestsInCloseArriveOrAreRefused(t *testing.T) {
	table := am.NewTable()
	var handled atomic.Uint64
	h := table.Handle("h", func(c *am.Call) { handled.Add(1); _ = c.Reply() })
	fabrics(t, func(t *testing.T, cfg Config) {
		handled.Store(0)
		cfg.Handlers, cfg.Getenv, cfg.MessageEndpoints, cfg.CloseTimeout = table, noEnv, 1, time.Minute
		errs := observed(t, 2, cfg, func(ctx context.Context, j *Job, b *lastBarrier) error {
			other, meetings := 1-j.Rank(), 0
			b.look = func() {
				switch meetings++; meetings {
				case 1:
					if err := errors.Join(h.Post(ctx, j, other), h.Post(ctx, j, other)); err != nil {
						t.Error(err)
					}
				case 2:
					s := j.MessageStats()[cfg.Fabric]
					if n := s.Network.Unconfirmed; n != 0 {
						t.Errorf("rank %d: %d messages may not have arrived, and their targets close", j.Rank(), n)
					}
					if err := wantErr(h.Post(ctx, j, other), os.ErrClosed, "Close"); err != nil {
						t.Errorf("a post that would not arrive: %v", err)
					}
				}
			}
			_, err := h.Call(ctx, j, other)
			if err = errors.Join(err, j.Close()); meetings != 2 {
				t.Errorf("rank %d met the other %d times", j.Rank(), meetings)
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		if n := handled.Load(); n != 6 {
			t.Errorf("%d of 6 requests were handled", n)
		}
	})
}

func TestCloseReportsUnansweredCallsInTime(t *testing.T) {
	table := am.NewTable()
	asked := make(chan struct{}, 1)
	never := table.Handle("never", func(c *am.Call) { c.Defer(time.Hour); asked <- struct{}{} })
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Handlers, cfg.Getenv, cfg.CloseTimeout = table, noEnv, 4*time.Second
		var call error
		errs := observed(t, 2, cfg, func(ctx context.Context, j *Job, _ *lastBarrier) error {
			if j.Rank() == 1 {
				return errors.Join(receive(ctx, asked), j.Close())
			}
			p, err := never.Start(ctx, j, 1, am.Payload{})
			if err != nil {
				return err
			}
			err = j.Close()
			_, _, call = p.Test()
			return err
		})
		var rest *am.InFlightError
		if !errors.As(errs[0], &rest) || rest.Calls != 1 {
			t.Errorf("rank 0 closed with %v", errs[0])
		}
		if !errors.As(errs[1], &rest) || rest.Owed != 1 {
			t.Errorf("rank 1 closed with %v", errs[1])
		}
		for r, err := range errs {
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("rank %d did not meet the other: %v", r, err)
			}
		}
		if err := wantErr(call, os.ErrClosed); err != nil {
			t.Errorf("the call: %v", err)
		}
	})
}

func TestMessagesAfterCloseAreErrors(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(*am.Call) {})
	onFabrics(t, 1, Config{Handlers: table}, func(ctx context.Context, j *Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		if err := errors.Join(h.Post(ctx, w, 0), w.Close()); err != nil {
			return err
		}
		if err := wantErr(h.Post(ctx, w, 0), am.ErrNoEndpoint, "open"); err != nil {
			return fmt.Errorf("through a closed worker: %w", err)
		}
		if err := errors.Join(h.Post(ctx, j, 0), j.Close()); err != nil {
			return err
		}
		_, call := h.Call(ctx, j, 0)
		_, start := h.Start(ctx, j, 0, am.Payload{})
		_, prepare := h.Prepare(ctx, j, 0, 8)
		for i, err := range []error{call, start, prepare, h.Post(ctx, j, 0), h.Post(am.NoWait, j, 0)} {
			if err := wantErr(err, os.ErrClosed); err != nil {
				return fmt.Errorf("request %d through a closed job: %w", i, err)
			}
		}
		if s := j.MessageStats()[j.cfg.Fabric]; s.Posts != 2 || s.Handled != 2 {
			return fmt.Errorf("after Close %d posts and %d handled are counted, want 2 of each", s.Posts, s.Handled)
		}
		return nil
	})
}

// A handler that does not end holds memory that it may touch: Close says so and leaves it mapped,
// until it is called again.
func TestCloseKeepsTheSegmentForAHandler(t *testing.T) {
	table := am.NewTable()
	begun, end := make(chan struct{}), make(chan struct{})
	h := table.Handle("h", func(*am.Call) { close(begun); <-end })
	ctx := testContext(t)
	j, err := Join(ctx, Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Getenv: noEnv, Handlers: table, MessageEndpoints: 1,
		CloseTimeout: 20 * time.Millisecond, Messages: am.Config{CloseAfter: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	posted := make(chan error, 1)
	go func() { posted <- h.Post(ctx, j, 0) }() // a rank's request to itself runs the handler here
	<-begun
	for range 2 {
		if err := wantErr(j.Close(), ErrBusy, "1 handlers run", "close again"); err != nil {
			t.Error(err)
		}
		j.Segment()[0] = 1 // still there
	}
	close(end)
	if err := <-posted; err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := messageHandles(); n != 0 {
		t.Errorf("%d handles of endpoints are left", n)
	}
}

// Endpoints that are closed have no error any more when Close is called again for another one.
func TestCloseAgainCountsAllEndpointsCalls(t *testing.T) {
	table := am.NewTable()
	begun, end := make(chan struct{}), make(chan struct{})
	hang := table.Handle("hang", func(*am.Call) { close(begun); <-end })
	never := table.Handle("never", func(c *am.Call) { c.Defer(time.Hour) })
	ctx := testContext(t)
	j, err := Join(ctx, Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Getenv: noEnv, Handlers: table, MessageEndpoints: 2,
		CloseTimeout: 20 * time.Millisecond, Messages: am.Config{CloseAfter: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := never.Start(ctx, j.messages.all[0], 0, am.Payload{}); err != nil {
		t.Fatal(err)
	}
	posted := make(chan error, 1)
	go func() { posted <- hang.Post(ctx, j.messages.all[1], 0) }()
	<-begun
	if err := wantErr(j.Close(), ErrBusy, "1 handlers run", "close again"); err != nil {
		t.Error(err)
	}
	close(end)
	if err := <-posted; err != nil {
		t.Error(err)
	}
	for range 2 {
		var rest *am.InFlightError
		if err := j.Close(); !errors.As(err, &rest) || rest.Calls != 1 || errors.Is(err, ErrBusy) {
			t.Errorf("%v, want the call that got no reply", err)
		}
	}
}

// Close itself polls, and may run the handler.
func TestCloseEndsThoughItsHandlerDoesNot(t *testing.T) {
	for name, attend := range map[string]time.Duration{"attendant": time.Hour, "none": -1} { // neither is quicker than Close
		t.Run(name, func(t *testing.T) {
			fabrics(t, func(t *testing.T, cfg Config) {
				table := am.NewTable()
				end := make(chan struct{})
				hang := table.Handle("hang", func(*am.Call) { <-end })
				echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply() })
				cfg.Handlers, cfg.Getenv, cfg.CloseTimeout, cfg.MessageEndpoints = table, noEnv, 4*time.Second, 1
				cfg.Messages = am.Config{AttendAfter: attend, CloseAfter: time.Second} // an attendant looks every 0.1 s whether it is to end
				served, idle, posted := make(chan struct{}), make(chan struct{}), make(chan struct{})
				errs := observed(t, 2, cfg, func(ctx context.Context, j *Job, _ *lastBarrier) error {
					if j.Rank() == 1 {
						err := serveUntil(ctx, j, served)
						close(idle)
						err = errors.Join(err, receive(ctx, posted), j.Close())
						close(end)
						if err := until(ctx, "the handler's end", func() bool { return j.Close() == nil }); err != nil {
							t.Error(err)
						}
						return err
					}
					_, err := echo.Call(ctx, j, 1) // after it there are credits
					close(served)
					err = errors.Join(err, receive(ctx, idle), hang.Post(ctx, j, 1))
					close(posted)
					return errors.Join(err, j.Close())
				})
				if err := wantErr(errs[1], ErrBusy, "1 handlers run", "close again"); err != nil || errs[0] != nil {
					t.Errorf("the ranks closed with %v", errs)
				}
			})
		})
	}
}

// odd is a network with endpoints that are not as others.
type odd struct {
	fabric.Messenger
	change func(fabric.Endpoint) fabric.Endpoint
}

func (n odd) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	p, err := n.Messenger.NewEndpoint(i, cfg)
	return n.change(p), err
}

// uncertain confirms no message.
type uncertain struct{ fabric.Endpoint }

func (p uncertain) Stats() fabric.EndpointStats {
	s := p.Endpoint.Stats()
	s.Unconfirmed = 3
	return s
}

// noisy is never silent.
type noisy struct{ fabric.Endpoint }

func (p noisy) Poll(events []fabric.Event, _ time.Duration) (int, error) {
	events[0] = fabric.Event{Kind: fabric.NoteArrived, Data: []byte("noise")}
	return 1, nil
}

func TestCloseReportsMessagesThatMayBeLost(t *testing.T) {
	table := am.NewTable()
	table.Handle("h", func(*am.Call) {})
	for op, change := range map[string]func(fabric.Endpoint) fabric.Endpoint{
		"end requests with 0 calls, 0 writes, 3 messages":            func(p fabric.Endpoint) fabric.Endpoint { return uncertain{p} },
		"drain was given up before all that had arrived was handled": func(p fabric.Endpoint) fabric.Endpoint { return noisy{p} },
	} {
		j, err := Join(testContext(t), Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Getenv: noEnv, Handlers: table, MessageEndpoints: 1, CloseTimeout: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		l, err := am.Open(odd{amtest.NewMemory(1, 64).Rank(0), change}, 0, am.Config{Size: 1, Table: table})
		if err != nil {
			t.Fatal(err)
		}
		if err := j.messages.all[0].Close(); err != nil {
			t.Fatal(err)
		}
		j.messages.all[0] = l
		err = j.Close()
		if !errors.As(err, new(*am.InFlightError)) || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), op) {
			t.Errorf("want one that says %q: %v", op, err)
		}
	}
}

func TestCloseOfOneRankIsNilWithoutContext(t *testing.T) {
	table := am.NewTable()
	table.Handle("h", func(*am.Call) {})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	err := RunLocalConfig(ctx, 1, Config{Fabric: FabricSHM, Getenv: noEnv, Handlers: table}, func(*Job) error { cancel(); return nil })
	if err != nil {
		t.Error(err)
	}
}

// A message that arrives while the others still open their endpoints waits for them, on the device
// too.
func TestManyJobsInARowLeaveNothingBehind(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("h", func(c *am.Call) { _ = c.Reply() })
	fabrics(t, func(t *testing.T, cfg Config) {
		cfg.Handlers, cfg.MessageEndpoints = table, 2
		for range 5 {
			runLocal(t, 3, cfg, func(ctx context.Context, j *Job) error {
				_, err := h.Call(ctx, j, neighbour(j))
				return err
			})
			if n := messageHandles(); n != 0 {
				t.Fatalf("%d objects of endpoints are left", n)
			}
		}
	})
}
