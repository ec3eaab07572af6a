package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/regcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var shm = conduit.Config{SegmentSize: 1 << 20, Fabric: conduit.FabricSHM}

// local runs a job of n ranks over shared memory.
func local(t *testing.T, n int, fn func(*conduit.Job) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := conduit.RunLocalConfig(ctx, n, shm, fn); err != nil {
		t.Fatal(err)
	}
}

// gather returns the value of every series of the collectors, by
// `name{label="value",...}` without job_id.
func gather(cs ...prometheus.Collector) (map[string]float64, error) {
	reg := prometheus.NewPedanticRegistry()
	for _, c := range cs {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	families, err := reg.Gather()
	if err != nil {
		return nil, err
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetName() != "job_id" {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
			}
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out, nil
}

// operate returns rank 0's series before and after it used a worker. The other ranks are there when
// it begins.
func operate(ctx context.Context, j *conduit.Job, use func(w *conduit.Worker) error) (before, after map[string]float64, err error) {
	if err := j.Barrier(ctx); err != nil || j.Rank() != 0 {
		return nil, nil, err
	}
	w, err := j.NewWorker()
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	c := NewCollector(j)
	if before, err = gather(c); err != nil {
		return nil, nil, err
	}
	if err := use(w); err != nil {
		return nil, nil, err
	}
	after, err = gather(c)
	return before, after, err
}

// mustGrow checks how much each series of want grew.
func mustGrow(before, after, want map[string]float64) error {
	var errs []error
	for name, w := range want {
		a, ok := after[name]
		if !ok {
			errs = append(errs, fmt.Errorf("no series %s", name))
		} else if a-before[name] != w {
			errs = append(errs, fmt.Errorf("%s grew by %v, want %v", name, a-before[name], w))
		}
	}
	for name := range after {
		if _, ok := want[name]; !ok && after[name] != before[name] {
			errs = append(errs, fmt.Errorf("%s grew from %v to %v, want no change", name, before[name], after[name]))
		}
	}
	return errors.Join(errs...)
}

func TestKnownOperationsGiveExactCounters(t *testing.T) {
	local(t, 2, func(j *conduit.Job) error {
		before, after, err := operate(t.Context(), j, func(w *conduit.Worker) error {
			word := conduit.At[int64](1, 0)
			for i := range int64(3) {
				if err := conduit.Put(w, word, i); err != nil {
					return err
				}
			}
			if v, err := conduit.Get(w, word); err != nil || v != 2 {
				return fmt.Errorf("got %d, %v", v, err)
			}
			if err := conduit.PutSlice(w, conduit.At[byte](1, 64), make([]byte, 1000)); err != nil {
				return err
			}
			for range 5 {
				if _, err := conduit.FetchAdd(w, word, 1); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || j.Rank() != 0 {
			return err
		}
		return mustGrow(before, after, map[string]float64{
			`ibconduit_operations_total{network="shm",op="put",rank="0"}`:      4,
			`ibconduit_operations_total{network="shm",op="get",rank="0"}`:      1,
			`ibconduit_operations_total{network="shm",op="atomic",rank="0"}`:   5,
			`ibconduit_operation_bytes_total{network="shm",op="put",rank="0"}`: 3*8 + 1000,
			`ibconduit_operation_bytes_total{network="shm",op="get",rank="0"}`: 8,
			`ibconduit_operations_completed_total{network="shm",rank="0"}`:     10,
			`ibconduit_transfers_total{network="shm",path="direct",rank="0"}`:  5,
		})
	})
}

func TestGaugesDescribeTheJob(t *testing.T) {
	local(t, 2, func(j *conduit.Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		got, err := gather(NewCollector(j))
		if err != nil {
			return err
		}
		for name, want := range map[string]float64{
			`ibconduit_ranks{rank="%d"}`:         2,
			`ibconduit_ranks_down{rank="%d"}`:    0,
			`ibconduit_workers_open{rank="%d"}`:  1,
			`ibconduit_segment_bytes{rank="%d"}`: 1 << 20,
			`ibconduit_job_info{bootstrap="` + j.Info().Bootstrap + `",networks="shm",rank="%d",size="2"}`: 1,
		} {
			name = fmt.Sprintf(name, j.Rank())
			if v, ok := got[name]; !ok || v != want {
				return fmt.Errorf("%s is %v (present: %v), want %v", name, v, ok, want)
			}
		}
		return j.Barrier(t.Context())
	})
}

func TestADeadRankIsCounted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	died := errors.New("died on purpose")
	err := conduit.RunLocalConfig(ctx, 2, shm, func(j *conduit.Job) error {
		if j.Rank() == 1 {
			return died
		}
		c := NewCollector(j)
		for {
			got, err := gather(c)
			if err != nil {
				return err
			}
			if got[`ibconduit_ranks_down{rank="0"}`] == 1 {
				return nil
			}
			select {
			case <-ctx.Done():
				return errors.New("rank 1's death is not counted")
			case <-time.After(time.Millisecond):
			}
		}
	})
	if !errors.Is(err, died) || strings.Contains(err.Error(), "rank 0") {
		t.Fatal(err)
	}
}

func TestNamesFollowThePrometheusConventions(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		c := NewCollector(j)
		c.members[0].sources[1] = portSource{ports: []conduit.DevicePort{{Device: "mlx5_0", Port: 1}}, read: fixedCounters}
		c.members[0].sources = append(c.members[0].sources, SourceFunc(func(add func(Figure)) {
			registrations(regcache.Stats{}, add)
			messages("shm", am.Stats{}, add)
			library("shm", am.Stats{}, add)
			heaps(conduit.HeapStats{}, 0, add)
			memory(conduit.MemoryStats{}, conduit.MemoryLayout{}, add)
		}))
		problems, err := testutil.CollectAndLint(c)
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		if n := testutil.CollectAndCount(c); n < 20 {
			t.Errorf("only %d series were linted", n)
		}
		return err
	})
}

func TestEachCacheFigureHasItsSeries(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		c := NewCollector(j)
		stats := regcache.Stats{
			Hits: 1, Misses: 2, Uncached: 3, Registered: 4, Deregistered: 5, RegisterErrors: 6, Live: 7, Dead: 8, Bytes: 9, DeadBytes: 10,
			Invalidated: 11, InvalidatedInUse: 12, Evicted: 13, Merged: 14,
		}
		c.members[0].sources = []Source{SourceFunc(func(add func(Figure)) { registrations(stats, add) })}
		got, err := gather(c)
		if err != nil {
			return err
		}
		for name, want := range map[string]float64{
			`registration_lookups_total{rank="0",result="hit"}`: 1, `registration_lookups_total{rank="0",result="miss"}`: 2,
			`registration_lookups_total{rank="0",result="uncached"}`: 3, `registrations_made_total{rank="0"}`: 4,
			`registrations_ended_total{rank="0"}`: 5, `registration_errors_total{rank="0"}`: 6,
			`registrations{rank="0",state="live"}`: 7, `registrations{rank="0",state="dead"}`: 8,
			`registered_bytes{rank="0"}`: 9, `registered_dead_bytes{rank="0"}`: 10,
			`registrations_dropped_total{rank="0",reason="invalidated"}`: 11, `registrations_invalidated_in_use_total{rank="0"}`: 12,
			`registrations_dropped_total{rank="0",reason="evicted"}`: 13, `registrations_merged_total{rank="0"}`: 14,
		} {
			if v, ok := got[prefix+name]; !ok || v != want {
				return fmt.Errorf("%s is %v (present: %v), want %v", name, v, ok, want)
			}
		}
		for _, name := range []string{`memory_events_total{event="kernel",rank="0"}`, `memory_events_total{event="map",rank="0"}`,
			`memory_events_total{event="unmap",rank="0"}`, `memory_ranges_invalidated_total{rank="0"}`, `memory_claims_refused_total{rank="0"}`, `memory_ranges_watched{rank="0"}`} {
			if _, ok := got[prefix+name]; !ok {
				return fmt.Errorf("no series %s", name)
			}
		}
		return nil
	})
}

func fixedCounters(string, int) (map[string]uint64, error) {
	return map[string]uint64{"port_xmit_data": 25, "port_rcv_data": 50, "rcvd_rnr_err": 7}, nil
}

func TestPortCountersKeepTheKernelsNames(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		c := NewCollector(j)
		c.members[0].sources = []Source{portSource{ports: []conduit.DevicePort{{Device: "mlx5_0", Port: 1}}, read: fixedCounters}}
		got, err := gather(c)
		if err != nil {
			return err
		}
		return mustGrow(nil, got, map[string]float64{
			`ibconduit_port_transmit_bytes_total{device="mlx5_0",port="1",rank="0"}`:              100,
			`ibconduit_port_receive_bytes_total{device="mlx5_0",port="1",rank="0"}`:               200,
			`ibconduit_port_events_total{device="mlx5_0",event="rcvd_rnr_err",port="1",rank="0"}`: 7,
		})
	})
}

func TestAPortWithoutCountersDoesNotFailTheScrape(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		c := NewCollector(j)
		c.members[0].sources[1] = newPortSource([]conduit.DevicePort{{Device: "no-such-device", Port: 1}})
		got, err := gather(c)
		if err == nil && got[`ibconduit_ranks{rank="0"}`] != 1 {
			err = errors.New("the other metrics are missing")
		}
		return err
	})
}

func TestTwoJobsOfOneProcessAreDistinguished(t *testing.T) {
	local(t, 1, func(a *conduit.Job) error {
		return conduit.RunLocalConfig(t.Context(), 1, shm, func(b *conduit.Job) error {
			if a.ID() == b.ID() {
				return fmt.Errorf("both jobs are called %s", a.ID())
			}
			reg := prometheus.NewPedanticRegistry()
			if err := errors.Join(reg.Register(NewCollector(a)), reg.Register(NewCollector(b))); err != nil {
				return err
			}
			families, err := reg.Gather()
			if err != nil {
				return err
			}
			ids := make(map[string]bool)
			for _, f := range families {
				for _, m := range f.Metric {
					for _, l := range m.Label {
						if l.GetName() == "job_id" {
							ids[l.GetValue()] = true
						}
					}
				}
			}
			if len(ids) != 2 || !ids[a.ID()] || !ids[b.ID()] {
				return fmt.Errorf("series of jobs %v, want %s and %s", ids, a.ID(), b.ID())
			}
			_, err = gather(NewCollector(a, b)) // one collector over both works as well
			return err
		})
	})
}

// A scraper reads what the workers' owners write, and what closing frees.
func TestScrapedCountersNeverGoBack(t *testing.T) {
	var scrapers sync.WaitGroup
	stop := make(chan struct{})
	var failed error // of any scraper
	var once sync.Once
	local(t, 2, func(j *conduit.Job) error {
		c := NewCollector(j)
		name := fmt.Sprintf(`ibconduit_operations_total{network="shm",op="put",rank="%d"}`, j.Rank())
		scrapers.Go(func() {
			last := 0.0
			for {
				got, err := gather(c)
				if err == nil && got[name] < last {
					err = fmt.Errorf("%s went from %v to %v", name, last, got[name])
				}
				if err != nil {
					once.Do(func() { failed = err })
					return
				}
				last = got[name]
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		for range 20 {
			w, err := j.NewWorker()
			if err != nil {
				return err
			}
			for i := range int64(1000) {
				if err := conduit.Put(w, conduit.At[int64](1-j.Rank(), 0), i); err != nil {
					return err
				}
			}
			if err := w.Close(); err != nil {
				return err
			}
			if err := j.Barrier(t.Context()); err != nil {
				return err
			}
		}
		return nil
	})
	close(stop) // the jobs are closed; every scraper has one more look
	scrapers.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
}

// Close frees the lanes whose counters a scrape reads.
func TestAScrapeMayMeetClose(t *testing.T) {
	for range 200 {
		var scraped sync.WaitGroup
		local(t, 1, func(j *conduit.Job) error {
			c := NewCollector(j)
			scraped.Go(func() {
				for range 20 {
					if _, err := gather(c); err != nil {
						t.Error(err)
						return
					}
				}
			})
			return nil
		})
		scraped.Wait()
	}
}

func TestAScrapeAfterCloseShowsTheFinalCounters(t *testing.T) {
	var c *Collector
	local(t, 1, func(j *conduit.Job) error {
		c = NewCollector(j)
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		return errors.Join(conduit.Put(w, conduit.At[int64](0, 0), 1), w.Close())
	})
	got, err := gather(c)
	if err != nil {
		t.Fatal(err)
	}
	if v := got[`ibconduit_operations_total{network="shm",op="put",rank="0"}`]; v != 1 {
		t.Errorf("%v puts after Close, want 1", v)
	}
	if v := got[`ibconduit_workers_open{rank="0"}`]; v != 0 {
		t.Errorf("%v workers open after Close", v)
	}
}

func TestAnAddedSourceGetsTheJobsLabels(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		c := NewCollector(j)
		src := SourceFunc(func(add func(Figure)) {
			add(Figure{Name: "cache_hits_total", Help: "Hits.", Labels: []string{"kind", "line"}, Value: 5})
			add(Figure{Name: "pool_free_bytes", Help: "Free.", Kind: Gauge, Value: 9})
		})
		if err := c.Add(j, src); err != nil {
			return err
		}
		got, err := gather(c)
		if err != nil {
			return err
		}
		if got[`ibconduit_cache_hits_total{kind="line",rank="0"}`] != 5 || got[`ibconduit_pool_free_bytes{rank="0"}`] != 9 {
			return fmt.Errorf("got %v", got)
		}
		if NewCollector().Add(j, src) == nil {
			return errors.New("a source of a job that the collector does not know was accepted")
		}
		return nil
	})
}

func TestAMalformedFigureSpoilsOnlyItself(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		c := NewCollector(j)
		err := c.Add(j, SourceFunc(func(add func(Figure)) {
			add(Figure{Name: "odd_total", Help: "Odd.", Labels: []string{"without_value"}})
		}))
		if err != nil {
			return err
		}
		h, err := Handler(c)
		if err != nil {
			return err
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		if body := rec.Body.String(); rec.Code != http.StatusOK || !strings.Contains(body, "ibconduit_ranks{") || strings.Contains(body, "odd") {
			return fmt.Errorf("status %d:\n%s", rec.Code, body)
		}
		return nil
	})
}
