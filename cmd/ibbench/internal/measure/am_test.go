package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

func sending(kind string, size int64, lanes, goroutines int) plan.Point {
	return plan.Point{Kind: kind, Op: plan.AM, Size: size, Depth: 16, Lanes: lanes, Goroutines: goroutines, Iters: 200}
}

// pair is a job of two ranks of this process, each with handlers of its own.
func pair(t *testing.T, p *plan.Plan, fn func(s *session) error, change ...func(*conduit.Config)) {
	t.Helper()
	errs := make([]error, 2)
	var members sync.WaitGroup
	for r, boot := range bootstrap.NewGroup(2) {
		members.Go(func() {
			s := &session{ctx: t.Context(), plan: p, messages: newMessages()}
			cfg := conduit.Config{Bootstrap: boot, Fabric: p.Fabric, SegmentSize: p.SegmentSize(), Workers: p.Lanes()}
			s.messages.configure(&cfg, p)
			for _, f := range change {
				f(&cfg)
			}
			if s.job, errs[r] = conduit.Join(t.Context(), cfg); errs[r] != nil {
				return
			}
			errs[r] = s.open(&report.Env{})
			if errs[r] == nil {
				errs[r] = fn(s)
			}
			errs[r] = errors.Join(errs[r], s.close(nil))
		})
	}
	members.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestWrongMessagesAreCounted plants a fault on one side: rank 0 must report it.
func TestWrongMessagesAreCounted(t *testing.T) {
	for name, plant := range map[string]func(m *messages){
		"none": func(*messages) {},
		"a payload has other bytes": func(m *messages) {
			x := m.posts.Load()
			m.posts.Store(&posts{inbox: x.inbox, want: append([]byte{x.want[0] + 1}, x.want[1:]...)})
		},
		"a request too many": func(m *messages) {
			if err := m.take.Post(t.Context(), m.endpoints[0], 0, 1<<40); err != nil {
				t.Error(err)
			}
		},
	} {
		pt := sending(plan.BW, 100, 1, 2)
		pair(t, planOf(pt), func(s *session) error {
			peer, active := s.peerOf(pt)
			if err := s.prepareMessages(pt, s.prepare(pt), peer); err != nil {
				return err
			}
			x := &throughput{s: s, pt: pt, a: areasOf(pt), peer: peer}
			if active {
				x.open()
			} else {
				plant(s.messages)
			}
			if err := s.job.Barrier(s.ctx); err != nil {
				return err
			}
			if _, err := x.send(130); err != nil {
				return err
			}
			series := &report.Series{}
			if err := s.auditMessages(pt, series); err != nil {
				return err
			}
			if s.job.Rank() == 0 && (series.Result.Errors != 0) != (name != "none") {
				return fmt.Errorf("%s: %d errors, %+v, %q", name, series.Result.Errors, series.Metrics, series.Notes)
			}
			return s.job.Barrier(s.ctx)
		})
	}
}

// calling is a pair whose rank 1 serves while rank 0 runs fn.
func calling(t *testing.T, pt plan.Point, fn func(s *session, l *latency) error, change ...func(*conduit.Config)) {
	t.Helper()
	pair(t, planOf(pt), func(s *session) error {
		peer := 1 - s.job.Rank()
		if err := s.prepareMessages(pt, s.prepare(pt), peer); err != nil {
			return err
		}
		if s.job.Rank() == 1 {
			return errors.Join(s.messages.serve(s.ctx), s.job.Barrier(s.ctx))
		}
		if err := fn(s, s.newCalls(pt, peer)); err != nil {
			return err
		}
		return s.job.Barrier(s.ctx)
	}, change...)
}

func TestRepliesThatAreNotTheRequestsOwnAreCounted(t *testing.T) {
	for _, size := range []int64{0, 100} {
		calling(t, lat(plan.AM, size), func(s *session, l *latency) error {
			c := l.calls
			if err := c.repeat(s.ctx, 3); err != nil || c.wrong != 0 {
				return fmt.Errorf("%d wrong, %w", c.wrong, err)
			}
			c.m.echo = c.m.taken // answers with something else
			if err := c.repeat(s.ctx, 3); err != nil || c.wrong != 3 {
				return fmt.Errorf("%d of 3 wrong replies were counted, %w", c.wrong, err)
			}
			return c.m.finish(s.ctx, 1)
		})
	}
}

func TestASumOfNumbersTellsALostPostFromADoubleOne(t *testing.T) {
	var b inbox
	for i := range uint64(1000) {
		if b.sum.Load() != inboxAfter(i) {
			t.Fatalf("after %d posts", i)
		}
		b.sum.Add(i<<32 + 1)
	}
	b.sum.Add(3<<32 + 1)        // 3 twice
	b.sum.Add(^uint64(4 << 32)) // 4 lost: minus (4<<32 + 1)
	if b.sum.Load() == inboxAfter(1000) {
		t.Error("one post that came twice hides one that was lost")
	}
}

func TestMessagesNeedTheEndpointsOfThePlan(t *testing.T) {
	pt := sending(plan.Rate, 0, 2, 2)
	pair(t, planOf(pt), func(s *session) error {
		err := s.messages.open(append(s.workers[:1:1], s.workers[0]), 1-s.job.Rank(), 2)
		if err == nil || !strings.Contains(err.Error(), "fewer message endpoints") {
			return fmt.Errorf("two workers with one endpoint: %v", err)
		}
		return errors.Join(s.messages.open(s.workers, 1-s.job.Rank(), 2), s.job.Barrier(s.ctx))
	})
}

func TestAShortCallAllocatesNothing(t *testing.T) {
	if !allocationsCount {
		t.Skip("this build's checks allocate")
	}
	calling(t, lat(plan.AM, 0), func(s *session, l *latency) error {
		if err := l.calls.repeat(s.ctx, 100); err != nil {
			return err
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := l.calls.repeat(s.ctx, 2000)
		runtime.ReadMemStats(&after)
		// Both ranks are of this process: what they do besides is counted, too.
		if n := after.Mallocs - before.Mallocs; err != nil || n > 400 {
			return fmt.Errorf("%d allocations for 2000 calls: %v", n, err)
		}
		return l.calls.m.finish(s.ctx, l.calls.peer)
	}, func(cfg *conduit.Config) { cfg.Messages.SpinFor = time.Minute }) // unparking allocates
}

// The leader does not wait for who serves: the end of a second stretch may come while the first is
// not seen yet.
func TestTwoStretchesMayEndBeforeOneIsSeen(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	m := newMessages()
	m.onOver(nil)
	m.onOver(nil)
	for range 2 {
		if err := m.serve(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
