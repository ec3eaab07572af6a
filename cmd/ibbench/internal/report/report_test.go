package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var pct = []float64{50, 90, 99, 99.9}

func env(fabric string) *Env {
	e := &Env{
		Time: "2026-01-02T03:04:05Z", Kernel: "6.1.0", Arch: "amd64", CPU: "Some CPU @ 2 GHz", CPUs: 2, GoMaxProcs: 2, Go: "1.26.8",
		Commit: "0123456789abcdef", Fabric: fabric, From: "node1 rank 0", To: "node2 rank 1", Ranks: 2, Hosts: 2, Launcher: "launch", ClockNS: 25,
	}
	if fabric == "ibv" {
		e.Device = &Device{Name: "rxe0", Port: 1, Software: true, Firmware: "0.0.0", Link: "Ethernet", MTU: 4096, GIDIndex: 1, GID: "10.0.0.1", GIDType: "RoCEv2", Netdev: "veth0", NUMA: -1}
	}
	return e
}

func latency(fabric, op string, size int64, batch int, scale int64) *Series {
	div := float64(batch) * 2
	s := stats.New(1000, div, batch > 1)
	for i := range int64(1000) {
		s.Add(scale * (1000 + i%100))
	}
	s.Add(scale * 50000)
	pt := plan.Point{Kind: plan.Lat, Op: op, Size: size, Depth: 1, Lanes: 1, Duration: time.Second, Warmup: 200 * time.Millisecond, WarmupIters: 100}
	return &Series{
		Schema: Schema, Kind: pt.Kind, Op: op, Size: size, Definition: pt.Definition(), Env: env(fabric), Plan: pt,
		Result: Latency(s, pct, batch), Hist: s.Hist(),
		Intervals: []Interval{{StartNS: 0, ElapsedNS: 1e6, Count: 1001, P50: 525, Max: 25000}},
	}
}

func sweep() []*Series {
	a, b := latency("ibv", plan.Put, 8, 1, 20), latency("ibv", plan.Put, 4096, 1, 100)
	as := []plan.Assertion{must(plan.ParseAssertion("p99<50us", plan.Lat))}
	a.Check(as)
	b.Check(as)
	c := latency("shm", plan.Put, 8, 64, 1)
	c.Notes = []string{"64 operations per sample"}
	return []*Series{a, b, c}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func throughput() []*Series {
	pt := plan.Point{Kind: plan.BW, Op: plan.Get, Size: 65536, Depth: 64, Lanes: 2, Iters: 1000}
	s := &Series{Schema: Schema, Kind: pt.Kind, Op: pt.Op, Size: pt.Size, Definition: pt.Definition(), Env: env("ibv"), Plan: pt, Result: Result{
		Unit: "B/s", Count: 2000, Min: 40e6, Max: 50e6, Mean: 45e6, P: map[string]float64{"50": 46e6}, Bytes: 2000 * 65536, ElapsedNS: 2912711111, PerSecond: 686.646,
	}, Intervals: []Interval{{ElapsedNS: 1456355555, Count: 1000, Rate: 40e6}, {StartNS: 1456355555, ElapsedNS: 1456355555, Count: 1000, Rate: 50e6}}}
	s.Check([]plan.Assertion{must(plan.ParseAssertion("bw>1GB/s", plan.BW)), must(plan.ParseAssertion("rate>100/s", plan.BW))})
	pt.Kind, pt.Op, pt.Size = plan.Rate, plan.AMO, 8
	r := &Series{Schema: Schema, Kind: pt.Kind, Op: pt.Op, Size: pt.Size, Definition: pt.Definition(), Env: env("ibv"), Plan: pt, Result: Result{
		Unit: "op/s", Count: 2000, Min: 19000, Max: 21000, Mean: 20000, P: map[string]float64{"50": 20500}, Bytes: 16000, ElapsedNS: 1e8, PerSecond: 20000,
	}}
	return []*Series{s, r}
}

func peers() []*Series {
	s := latency("ibv", plan.Put, 8, 1, 20)
	s.Kind, s.Hist, s.Intervals = KindPerftest, nil, nil
	p := &Peer{
		Place: "perftest", Tool: "ib_write_lat", Version: "6.06", Args: []string{"-F", "-s", "8"}, Settings: map[string]string{"TX depth": "1"},
		Result:    Result{Unit: "ns", Count: 1000, Min: 9000, Max: 11000, Mean: 12000, P: map[string]float64{"50": 10000, "99": 90000}},
		Rounds:    []Round{{Ours: Figures{11000, 13000, 19000}, Theirs: Figures{10000, 12000, 90000}}, {Ours: Figures{1, 1, 1}, Theirs: Figures{99000, 99000, 99000}, Discarded: true}},
		Discarded: 1,
	}
	s.Peers = []*Peer{p}
	s.Metrics = Metrics{"ratio.p50": {1.1, 1.05, 1.2, ""}, "ratio.mean": {1.083, 1, 1.2, ""}, "ratio.p99": {0.211, 0.2, 0.3, ""}}
	s.Check([]plan.Assertion{must(plan.ParseAssertion("p50<1.15x", plan.PeerKind(plan.Lat)))})
	b := throughput()[0]
	b.Kind, b.Intervals, b.Asserts = KindPerftest, nil, nil
	b.Peers = []*Peer{{
		Place: "perftest", Tool: "ib_read_bw", Version: "6.06", Settings: map[string]string{"TX depth": "128"}, Result: Result{Unit: "B/s", Count: 1000, Mean: 50e6, P: map[string]float64{}},
		Rounds: []Round{{Ours: Figures{Mean: 45e6}, Theirs: Figures{Mean: 50e6}}},
	}}
	b.Metrics = Metrics{"ratio.mean": {0.9, 0.9, 0.9, ""}}
	return []*Series{s, b}
}

// messages are round trips, posts of several goroutines on several lanes, and round trips beside
// perftest's.
func messages() (all []*Series) {
	short, medium := latency("shm", plan.AM, 0, 1, 2), latency("shm", plan.AM, 4096, 1, 4)
	for _, s := range []*Series{short, medium} {
		for _, d := range declared {
			if strings.HasPrefix(d.name, "am.") {
				s.Set(d.name, 0)
			}
		}
		s.Set("am.sent", 1001)
		s.Set("am.handled", 1001)
		s.Check([]plan.Assertion{must(plan.ParseAssertion("p50<1s", plan.Lat))})
		all = append(all, s)
	}
	medium.Result.Errors = 1
	medium.Notes = []string{"ERRORS: lat am: 1 messages met no receive buffer (RNR)"}
	for _, c := range [][2]int{{1, 1}, {1, 2}, {2, 1}, {2, 2}} {
		s := throughput()[1]
		s.Op, s.Size, s.Plan.Op, s.Plan.Size, s.Plan.Lanes, s.Plan.Goroutines = plan.AM, 0, plan.AM, 0, c[0], c[1]
		s.Result.Mean *= float64(10*c[0] + c[1])
		all = append(all, s)
	}
	bw := throughput()[0]
	bw.Op, bw.Size, bw.Plan.Op, bw.Plan.Size, bw.Plan.Goroutines, bw.Asserts = plan.AM, 4096, plan.AM, 4096, 2, nil
	p := peers()[0]
	p.Op, p.Size, p.Plan.Op, p.Plan.Size = plan.AM, 0, plan.AM, 0
	p.Definition, p.Peer().Tool, p.Peer().Times = p.Plan.Definition(), "ib_send_lat", 2
	return append(all, bw, p)
}

func registrations(op string) (all []*Series) {
	assert := map[string]string{plan.Reg: "p99<1ms", plan.Hit: "allocs<=0", plan.Churn: "rss<512KiB"}[op]
	for i, fabric := range []string{"ibv", Fake} {
		if op == plan.Reg && fabric == Fake {
			continue // there is none
		}
		s := latency(fabric, op, 4096, 1+63*i, 40)
		s.Kind, s.Intervals, s.Env.To, s.Env.Ranks, s.Env.Hosts = plan.MR, nil, s.Env.From, 1, 1
		s.Plan = plan.Point{Kind: plan.MR, Op: op, Size: 4096, Duration: time.Second, Depth: 1, Lanes: 1}
		s.Definition = s.Plan.Definition()
		s.SetText("mr.registrar", []string{"rxe0", Fake}[i])
		switch op {
		case plan.Reg:
			s.SetFigures("mr.reg.register", Figures{40000, 41000, 90000})
			s.SetFigures("mr.reg.deregister", Figures{17000, 18000, 30000})
			s.SetFigures("mr.reg.copy", Figures{1300.5, 1400, 2000})
			s.Set("mr.reg.hit_ns", 27.5)
			s.Notes = []string{"crossover: somewhere"}
		case plan.Hit:
			s.Plan.Regions = 16
			s.Set("mr.hit.percent", 99.95)
			s.Set("mr.hit.allocs_per_op", 0.001)
		case plan.Churn:
			s.Plan.Regions, s.Plan.Cycles = 1000*i, 40000
			s.SetFigures("mr.churn.raw", Figures{180.5, 190, 400})
			s.SetSpread("mr.churn.overhead_ns", &Spread{60, -1.5, 75})
			s.SetFigures("mr.churn.cycle", Figures{2100, 2200, 5000})
			s.SetFigures("mr.churn.raw_cycle", Figures{2000, 2100, 4900})
			s.SetSpread("mr.churn.ratio", &Spread{1.05, 0.98, 1.2})
			for name, v := range map[string]int{"rss_growth": 64 << 10, "dead_max": 1000 * i, "stale": 0} {
				s.Set("mr.churn."+name, float64(v))
			}
		}
		s.Check([]plan.Assertion{must(plan.ParseAssertion(assert, plan.MRKind(op)))})
		all = append(all, s)
	}
	return all
}

// kernels are one kernel on two sides, one of them with a wrong result.
func kernels() (all []*Series) {
	as := []plan.Assertion{must(plan.ParseAssertion("ratio>2x", plan.Cache)), must(plan.ParseAssertion("p50<1s", plan.Cache))}
	for i, side := range []string{plan.SideOff, plan.SideOn} {
		s := latency("ibv", "ptrans", 1024, 1, int64(40-35*i))
		s.Kind, s.Intervals = plan.Cache, nil
		s.Plan = plan.Point{Kind: plan.Cache, Op: "ptrans", Size: 1024, Variant: "naive", Rounds: 21, Sides: "off,on", CacheSizes: plan.CacheSizes{Pages: 256}, Depth: 1, Lanes: 1}
		s.Definition = s.Plan.Definition()
		by := float64(1 + 7*i)
		s.Metrics = Metrics{"cache.side": {Text: side}, "cache.messages": {Value: float64(int(1 << (20 - 3*i)))}, "cache.requests": {Value: float64(int(1 << (20 - 3*i)))},
			"cache.bytes": {Value: 8 << 20}, "cache.time": {40e6 / by, 39e6 / by, 42e6 / by, ""}}
		if i == 0 {
			s.Set("cache.base", 1)
		}
		if i > 0 {
			for name, v := range map[string]float64{"hits": 917504, "misses": 131072, "prefetched": 1000, "unused": 25, "fetched": 8 << 20, "used": 7 << 20, "messages_ratio": 0.125, "bytes_ratio": 1} {
				s.Set("cache."+name, v)
			}
			s.put("cache.ratio", Metric{8.1, 7.5, 8.25, ""})
			s.Result.Errors = 1
			s.Notes = []string{"ERRORS: with the cache on bench: ptrans: rank 1: wrong result: C[1,2] is 3, want 4"}
		}
		s.Check(as)
		all = append(all, s)
	}
	return all
}

// collectives are a barrier, and a reduction beside Open MPI's.
func collectives() []*Series {
	a, b := latency("shm", plan.Barrier, 0, 1000, 1), latency("shm", plan.AllReduce, 1<<20, 10, 400)
	for _, s := range []*Series{a, b} {
		s.Kind, s.Intervals = plan.Coll, nil
		s.Plan = plan.Point{Kind: plan.Coll, Op: s.Op, Size: s.Size, Depth: 1, Lanes: 1, Iters: 20, Batch: s.Result.OpsPerSample}
		s.Definition = s.Plan.Definition()
	}
	a.Check([]plan.Assertion{must(plan.ParseAssertion("p50<1us", plan.Coll))})
	b.Hist = nil
	b.Peers = []*Peer{{Place: "mpi", Version: "4.1.4", Args: []string{"-n", "2"}, Interval: []float64{0.91, 1.04},
		Result: Result{Unit: "ns", Count: 420, OpsPerSample: 10, Min: 9000, Max: 30000, Mean: 21000, P: map[string]float64{"50": 20000, "99": 29000}},
		Rounds: []Round{{Ours: Figures{20500, 21000, 30000}, Theirs: Figures{20000, 21000, 29000}}}}}
	b.Metrics = Metrics{"ratio.p50": {1.025, 0.8, 1.3, ""}, "ratio.mean": {1, 0.9, 1.2, ""}, "ratio.p99": {1.03, 0.5, 2, ""}}
	b.Check([]plan.Assertion{must(plan.ParseAssertion("p50<=1x", plan.PeerKind(plan.Lat)))})
	return []*Series{a, b}
}

func TestOutputIsAsInTheGoldenFiles(t *testing.T) {
	for name, series := range map[string]func() []*Series{
		"mr-reg": func() []*Series { return registrations(plan.Reg) }, "mr-hit": func() []*Series { return registrations(plan.Hit) },
		"mr-churn": func() []*Series { return registrations(plan.Churn) },
		"sweep":    sweep, "single": func() []*Series { return sweep()[:1] }, "throughput": throughput, "perftest": peers, "am": messages, "coll": collectives,
		"cache": kernels,
	} {
		for _, format := range Formats {
			golden(t, name+"."+format, []byte(formatOf(t, format, pct, series()...)))
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with go test -update and look at it", err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s:\n%s", name, d)
	}
}

func TestJSONIsReadBackUnchanged(t *testing.T) {
	for _, s := range slices.Concat(sweep(), throughput(), peers(), messages(), registrations(plan.Reg), registrations(plan.Hit), registrations(plan.Churn), kernels(), collectives()) {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Series
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, &back); d != "" {
			t.Error(d)
		}
	}
}

func TestFiguresOfSingleOperationsAreIntegers(t *testing.T) {
	whole, parts := latency("ibv", plan.Put, 8, 1, 7), latency("shm", plan.Put, 8, 64, 1)
	for _, v := range []float64{whole.Result.Min, whole.Result.Mean, whole.Result.P["50"]} {
		if v != float64(int64(v)) {
			t.Errorf("%v ns is not an integer", v)
		}
	}
	if v := parts.Result.P["50"]; v == float64(int64(v)) {
		t.Errorf("%v ns of one in 64 operations was rounded", v)
	}
}

func TestFilesSayTheirFormatBySuffix(t *testing.T) {
	dir := t.TempDir()
	for suffix, begins := range map[string]string{".json": "[", ".ndjson": "{", ".csv": "kind,", ".txt": "lat put", ".bench": "goos:", ".JSON": "["} {
		path := filepath.Join(dir, "r"+suffix)
		f, err := Create(path, pct)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Add(sweep()[0]), f.Close()); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), begins) {
			t.Errorf("%s begins with %.20q, %v", path, b, err)
		}
	}
	for _, path := range []string{"r.html", "r.png", "r", "r.toml"} {
		if _, err := Create(filepath.Join(dir, path), pct); err == nil || !strings.Contains(err.Error(), ".json") {
			t.Errorf("%s: %v should name the suffixes that exist", path, err)
		}
	}
}

// A measurement that cannot begin leaves earlier results alone.
func TestResultsStayUntilOthersCome(t *testing.T) {
	for suffix, empty := range map[string]string{".json": "[]\n", ".ndjson": "", ".csv": "", ".txt": "", ".bench": ""} {
		path := filepath.Join(t.TempDir(), "r"+suffix)
		write := func(series ...*Series) string {
			t.Helper()
			f, err := Create(path, pct)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range series {
				err = errors.Join(err, f.Add(s))
			}
			err = errors.Join(err, f.Close())
			text, failed := os.ReadFile(path)
			if err = errors.Join(err, failed); err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		if got := write(); got != empty {
			t.Errorf("%s: nothing is written as %q", suffix, got)
		}
		two := write(sweep()[:2]...)
		if got := write(); got != two {
			t.Errorf("%s: earlier results are lost: %.80q", suffix, got)
		}
		one := write(sweep()[0])
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if want := write(sweep()[0]); one != want {
			t.Errorf("%s: over earlier results %.80q is written, want %.80q", suffix, one, want)
		}
	}
}

func TestWriteErrorsAreReported(t *testing.T) {
	for _, format := range Formats {
		w, err := New(format, broken{}, pct)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Add(sweep()[0]), w.Close()); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", format, err)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestAnAssertedFigureDiffersFromItsBound(t *testing.T) {
	s := &Series{Result: Result{Unit: "ns"}}
	for v, want := range map[float64]string{12345: "12.35 us", 12341: "12.34 us, 12341 beside 12340", 12340: "12.34 us"} {
		if got := s.outcome(Assert{Text: "p50<12.34us", Value: v, Bound: 12340}); got != want {
			t.Errorf("%v ns: %q, want %q", v, got, want)
		}
	}
}

func TestAFailedAssertionIsSeen(t *testing.T) {
	s := sweep()[1] // p50 of 4096 bytes: 50 us and more
	if !s.Failed() || s.Asserts[0].OK {
		t.Errorf("%+v", s.Asserts)
	}
	if sweep()[0].Failed() {
		t.Error("an assertion that holds has failed")
	}
}

func TestWrongMessagesFailWithoutAnAssertion(t *testing.T) {
	all := messages()
	if all[0].Failed() || !all[1].Failed() {
		t.Errorf("failed: %v, %v", all[0].Failed(), all[1].Failed())
	}
}

// formatOf writes series in a format.
func formatOf(t *testing.T, name string, pct []float64, all ...*Series) string {
	t.Helper()
	var out bytes.Buffer
	w, err := New(name, &out, pct)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		err = errors.Join(err, w.Add(s))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
