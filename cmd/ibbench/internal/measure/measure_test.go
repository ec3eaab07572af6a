package measure

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func lat(op string, size int64) plan.Point {
	return plan.Point{Kind: plan.Lat, Op: op, Size: size, Depth: 1, Lanes: 1, Iters: 100, WarmupIters: 10}
}

func planOf(points ...plan.Point) *plan.Plan {
	return &plan.Plan{Fabric: "shm", GID: "auto", Ranks: 2, Seed: 7, Pct: []float64{50, 99}, Points: points}
}

// ranks runs fn as each rank of a job within this process.
func ranks(t *testing.T, p *plan.Plan, fn func(s *session) error) {
	t.Helper()
	cfg := conduit.Config{Fabric: p.Fabric, SegmentSize: p.SegmentSize(), Workers: p.Lanes(), QueueDepth: p.QueueDepth()}
	err := conduit.RunLocalConfig(t.Context(), p.Ranks, cfg, func(job *conduit.Job) error {
		s := &session{ctx: t.Context(), plan: p, job: job}
		if err := s.open(&report.Env{}); err != nil {
			return err
		}
		err := fn(s)
		for _, w := range s.workers {
			err = errors.Join(err, w.Close())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRanksOfOneProcessMeasureAPlan(t *testing.T) {
	p := planOf(lat(plan.Put, 8), lat(plan.Put, 24), lat(plan.Get, 100), lat(plan.AMO, 8),
		plan.Point{Kind: plan.BW, Op: plan.Put, Size: 4096, Depth: 16, Lanes: 1, Iters: 100})
	var got []*report.Series
	var members sync.WaitGroup
	errs := make([]error, 2)
	for r, boot := range bootstrap.NewGroup(2) {
		out := Events{Progress: func(string) {}, Line: func(string) {}, Series: func(s *report.Series) error {
			if r != 0 {
				return fmt.Errorf("rank %d reported", r)
			}
			got = append(got, s)
			return nil
		}}
		members.Go(func() { errs[r] = Rank(t.Context(), boot, p, out) })
	}
	members.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(p.Points) {
		t.Fatalf("%d of %d points", len(got), len(p.Points))
	}
	for i, s := range got {
		if s.Plan != p.Points[i] || s.Result.Errors != 0 || s.Result.Count != 100 || s.Result.Mean <= 0 {
			t.Errorf("%+v", s.Result)
		}
	}
}

func TestAPlanForAnotherNumberOfRanksIsRefused(t *testing.T) {
	p := planOf(lat(plan.AMO, 8))
	p.Ranks = 4
	for _, boot := range bootstrap.NewGroup(2) {
		if err := Rank(t.Context(), boot, p, Events{}); err == nil {
			t.Error("accepted")
		}
	}
}

// TestWrongBytesAreCounted plants a fault before each check: it must be seen.
func TestWrongBytesAreCounted(t *testing.T) {
	ack := lat(plan.Put, 24)
	ack.Ack = true
	own := lat(plan.Get, 24)
	own.Local = plan.Own
	for _, pt := range []plan.Point{own, lat(plan.Put, 3), lat(plan.Put, 8), lat(plan.Put, 24), ack, lat(plan.Get, 24), lat(plan.AMO, 8), lat(plan.CAS, 8)} {
		for _, fault := range []bool{false, true} {
			ranks(t, planOf(pt), func(s *session) error {
				a := s.prepare(pt)
				l := s.newLatency(pt, a, 1-s.job.Rank())
				if err := s.job.Barrier(s.ctx); err != nil {
					return err
				}
				if s.job.Rank() == 1 {
					if pt.PingPong() {
						if err := l.respond(l.messages(20, l.period > 0)); err != nil {
							return err
						}
					}
					return errors.Join(s.job.Barrier(s.ctx), s.job.Barrier(s.ctx))
				}
				if err := errors.Join(l.run(20), s.job.Barrier(s.ctx)); err != nil {
					return err
				}
				if fault {
					s.plant(pt, l)
				}
				wrong, err := s.checkLatency(pt, l)
				if err == nil && (wrong != 0) != fault {
					err = fmt.Errorf("%s size %d: %d wrong, fault planted: %v", pt.Name(), pt.Size, wrong, fault)
				}
				return err
			})
		}
	}
}

// plant changes one byte of what rank 0 will check.
func (s *session) plant(pt plan.Point, l *latency) {
	switch {
	case pt.PingPong():
		s.job.Segment()[l.begin] ^= 1
	case pt.Atomic():
		l.seq++
	default:
		l.src[len(l.src)-1] ^= 1
	}
}

func TestLocalMemoryIsOfTheSegmentOrTheProgram(t *testing.T) {
	pt := plan.Point{Kind: plan.BW, Op: plan.Put, Size: 100, Depth: 4, Lanes: 2, Iters: 10}
	for _, where := range []string{"", plan.Own} {
		pt.Local = where
		ranks(t, planOf(pt), func(s *session) error {
			a := s.prepare(pt)
			x := &throughput{s: s, pt: pt, a: a, peer: 1}
			x.open()
			me := x.me
			s.job.Segment()[a.local+uint64(pt.Window())] = 77
			if inside := me.lanes[1].local[0] == 77; inside != (where == "") {
				return fmt.Errorf("--local %q: in the segment: %v", where, inside)
			}
			return s.job.Barrier(s.ctx)
		})
	}
}

func TestThroughputsCountWrongSlots(t *testing.T) {
	for _, pt := range []plan.Point{
		{Kind: plan.BW, Op: plan.Put, Size: 100, Depth: 4, Lanes: 1, Iters: 10},
		{Kind: plan.BW, Op: plan.Get, Size: 100, Depth: 4, Lanes: 1, Iters: 10},
		{Kind: plan.BW, Op: plan.Put, Size: 100, Depth: 4, Lanes: 1, Iters: 10, Local: plan.Own},
		{Kind: plan.Rate, Op: plan.AMO, Size: 8, Depth: 4, Lanes: 1, Iters: 10},
	} {
		for _, fault := range []bool{false, true} {
			ranks(t, planOf(pt), func(s *session) error {
				a := s.prepare(pt)
				if err := s.job.Barrier(s.ctx); err != nil || s.job.Rank() == 1 {
					return errors.Join(err, s.job.Barrier(s.ctx))
				}
				x := &throughput{s: s, pt: pt, a: a, peer: 1}
				x.open()
				me := x.me
				if err := me.run(10); err != nil {
					return err
				}
				if fault {
					me.lanes[0].local[150] ^= 1 // of the second slot
					if pt.Atomic() {
						me.ops++
					}
				}
				wrong, err := x.check()
				if err == nil && (wrong != 0) != fault {
					err = fmt.Errorf("%s: %d wrong, fault planted: %v", pt.Name(), wrong, fault)
				}
				return errors.Join(err, s.job.Barrier(s.ctx))
			})
		}
	}
}

func TestTheTimedLoopsDoNotAllocate(t *testing.T) {
	ack, word := lat(plan.Put, 100), lat(plan.Put, 8)
	ack.Ack, word.Ack = true, true
	for _, pt := range []plan.Point{ack, word, lat(plan.Get, 8), lat(plan.Get, 100), lat(plan.AMO, 8), lat(plan.CAS, 8)} {
		ranks(t, planOf(pt), func(s *session) error {
			l := s.newLatency(pt, s.prepare(pt), 1)
			if err := s.job.Barrier(s.ctx); err != nil || s.job.Rank() == 1 {
				return errors.Join(err, s.job.Barrier(s.ctx))
			}
			var failed error
			// The other rank waits in the barrier, in this process: it may allocate now
			// and then, a loop of a hundred would allocate a hundred times.
			if n := testing.AllocsPerRun(10, func() { failed = errors.Join(failed, l.run(100)) }); n > 10 {
				failed = errors.Join(failed, fmt.Errorf("%s size %d: %v allocations for 100 operations", pt.Name(), pt.Size, n))
			}
			return errors.Join(failed, s.job.Barrier(s.ctx))
		})
	}
}

func TestSamplesHoldEnoughOperationsForTheClock(t *testing.T) {
	for _, c := range []struct {
		op, clock float64
		want      int
	}{
		{1000, 25, 1}, {500, 25, 1}, {499, 25, 8}, {4, 25, 1024}, {100, 25, 32}, {0.0001, 25, maxBatch}, {1, 0, 1},
	} {
		got := BatchFor(c.op, c.clock)
		if got != c.want {
			t.Errorf("%v ns with a clock of %v ns: %d operations, want %d", c.op, c.clock, got, c.want)
		}
		if got > 1 && got < maxBatch && c.clock > c.op*float64(got)/clockShare {
			t.Errorf("the clock is more than a hundredth of %d x %v ns", got, c.op)
		}
	}
}

func TestPaceKeepsToIterationsAndDuration(t *testing.T) {
	total := func(pt plan.Point, perNS float64) (n, elapsed int64) {
		p := &pace{pt: pt, perNS: perNS}
		for k := p.next(0, 0); k > 0; k = p.next(n, elapsed) {
			n += k
			elapsed += int64(float64(k) * perNS)
			if n > 1<<40 {
				t.Fatal("it does not end")
			}
		}
		return n, elapsed
	}
	for _, iters := range []int64{1, 9, 10, 1001, 5e6} {
		if n, _ := total(plan.Point{Iters: iters}, 100); n != iters {
			t.Errorf("%d of %d iterations", n, iters)
		}
	}
	if n, e := total(plan.Point{Duration: time.Second}, 1e6); n < 1000 || e < 1e9 || e > 11e8 {
		t.Errorf("%d samples in %v", n, time.Duration(e))
	}
	if n, _ := total(plan.Point{Iters: 50, Duration: time.Second}, 1e6); n != 50 {
		t.Errorf("%d of 50 iterations that end first", n)
	}
	if n, e := total(plan.Point{Iters: 1e9, Duration: time.Second}, 1e6); n > 1100 {
		t.Errorf("%d samples, %v, where the duration ends first", n, time.Duration(e))
	}
}

func TestWarmUpEndsWhenBothTimeAndCountAreReached(t *testing.T) {
	p := &pace{pt: plan.Point{Warmup: 50 * time.Millisecond, WarmupIters: 100}, perNS: 1e6}
	var done, elapsed int64
	for n := p.warm(0, 0); n > 0; n = p.warm(done, elapsed) {
		done += n
		elapsed += n * 1e6
	}
	if done < 100 || elapsed < 50e6 || elapsed > 300e6 {
		t.Errorf("%d samples, %v", done, time.Duration(elapsed))
	}
	none := &pace{}
	if none.warm(0, 0) == 0 || none.warm(firstStretch, 1) != 0 {
		t.Error("without a warm-up one short stretch is done, to learn the pace")
	}
}
