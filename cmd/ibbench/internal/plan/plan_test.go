package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// parses checks what a parser makes of some texts, and that it refuses others.
func parses[T any](t *testing.T, parse func(string) (T, error), want map[string]T, refused ...string) {
	t.Helper()
	for in, w := range want {
		if got, err := parse(in); err != nil || !cmp.Equal(got, w) {
			t.Errorf("%q is %v, %v; want %v", in, got, err, w)
		}
	}
	for _, in := range refused {
		if got, err := parse(in); err == nil {
			t.Errorf("%q is %v, want an error", in, got)
		}
	}
}

func TestSizesAreListsAndDoublingRanges(t *testing.T) {
	parses(t, Sizes, map[string][]int64{
		"8":           {8},
		"8,4K, 1M":    {8, 4096, 1 << 20},
		"8..64":       {8, 16, 32, 64},
		"1..1":        {1},
		"3..20":       {3, 6, 12, 20},
		"8..16,100":   {8, 16, 100},
		"512K..1MiB":  {512 << 10, 1 << 20},
		"1M..1048577": {1 << 20, 1<<20 + 1},
	}, "", "0", "-8", "8..", "..8", "64..8", "8x", "8,,16", "2G", "8..16..32", "9999999999999999999")
}

func TestPayloadsAreSizesOrShort(t *testing.T) {
	parses(t, Payloads, map[string][]int64{"short,8,1K..4K": {0, 8, 1024, 2048, 4096}}, "", "0", "shorter", "short..8", "short,")
}

func TestCountsHaveALimit(t *testing.T) {
	depths := func(in string) ([]int, error) { return Counts("depth", in, 8192) }
	parses(t, depths, map[string][]int{"1..8,100": {1, 2, 4, 8, 100}}, "0", "8193", "1K", "", "a")
}

func TestPercentilesAreSortedAndUnique(t *testing.T) {
	parses(t, Percentiles, map[string][]float64{"99.9,50, p90,50": {50, 90, 99.9}}, "", "0", "100", "-1", "NaN", "Inf", "p", "50;90")
}

func TestRatesHaveDecimalSuffixes(t *testing.T) {
	parses(t, PerSecond, map[string]float64{"5000": 5000, "200k": 200e3, "1.5M": 1.5e6, "10/s": 10, "2k/s": 2000},
		"", "0", "-1", "k", "1x", "NaN", "1e99", "11G")
}

func TestProcessorListsAreTheKernels(t *testing.T) {
	parses(t, CPUs, map[string][]int{"0,2-5": {0, 2, 3, 4, 5}}, ",", "5-2", "a", "1,1", "0-", "-3", "0-99999")
}

func TestAssertionsKnowTheirUnits(t *testing.T) {
	for _, c := range []struct {
		kind, in string
		want     Assertion
	}{
		{Lat, "p99<5us", Assertion{Metric: "p99", Cmp: "<", Bound: 5000}},
		{Lat, "p99.9 <= 1.5 ms", Assertion{Metric: "p99.9", Cmp: "<=", Bound: 1.5e6}},
		{Lat, "min>10ns", Assertion{Metric: "min", Cmp: ">", Bound: 10}},
		{BW, "bw>1GB/s", Assertion{Metric: "bw", Cmp: ">", Bound: 1e9}},
		{BW, "bw>=8Gb/s", Assertion{Metric: "bw", Cmp: ">=", Bound: 1e9}},
		{BW, "bw>1MiB/s", Assertion{Metric: "bw", Cmp: ">", Bound: 1 << 20}},
		{PeerKind(Lat), "p50<1.15x", Assertion{Metric: "p50", Cmp: "<", Bound: 1.15}},
		{PeerKind(BW), "bw>0.9x", Assertion{Metric: "bw", Cmp: ">", Bound: 0.9}},
		{Cache, "ratio>=20x", Assertion{Metric: "ratio", Cmp: ">=", Bound: 20}},
		{Cache, "p90<1ms", Assertion{Metric: "p90", Cmp: "<", Bound: 1e6}},
		{Rate, "rate>1M/s", Assertion{Metric: "rate", Cmp: ">", Bound: 1e6}},
	} {
		c.want.Text = c.in
		got, err := ParseAssertion(c.in, c.kind)
		if err != nil {
			t.Errorf("%s %q: %v", c.kind, c.in, err)
		} else if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s %q: %s", c.kind, c.in, d)
		}
	}
	for kind, ins := range map[string][]string{
		Lat:           {"", "p99", "p99<5", "p99<us", "p100<5us", "p<5us", "bw>1GB/s", "p99=5us", "p99<<5us", "p99<-5us", "p99<5GB/s", "p99<NaNus"},
		BW:            {"p99<5us", "bw>1", "bw>1us", "bw>1/s"},
		Rate:          {"bw>1GB/s", "rate>1", "rate>1us"},
		Cache:         {"ratio>2", "bw>1GB/s", "messages<5us"},
		PeerKind(Lat): {"p50<5us", "p90<1x", "bw>1x"},
	} {
		for _, in := range ins {
			if got, err := ParseAssertion(in, kind); err == nil {
				t.Errorf("%s %q = %+v, want an error", kind, in, got)
			}
		}
	}
}

func TestAnAssertionAtItsBoundNeedsEquality(t *testing.T) {
	for cmp, want := range map[string][3]bool{"<": {true, false, false}, "<=": {true, true, false}, ">": {false, false, true}, ">=": {false, true, true}} {
		a := Assertion{Cmp: cmp, Bound: 10}
		if got := [3]bool{a.Holds(9), a.Holds(10), a.Holds(11)}; got != want {
			t.Errorf("9, 10, 11 %s 10: %v, want %v", cmp, got, want)
		}
	}
}

func valid() *Plan {
	return &Plan{Fabric: "shm", Ranks: 2, Pct: []float64{50}, Points: []Point{
		{Kind: Lat, Op: Put, Size: 8, Depth: 1, Lanes: 1, Iters: 10},
		{Kind: BW, Op: Get, Size: 64 << 10, Depth: 64, Lanes: 4, Duration: time.Second},
	}}
}

func TestAPlanSurvivesItsEncoding(t *testing.T) {
	p := valid()
	got, err := Decode(p.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(p, got); d != "" {
		t.Error(d)
	}
}

func TestTheSegmentHoldsBothAreasOfTheLargestPoint(t *testing.T) {
	p := valid()
	// 4 lanes, 1 MiB each, once for the peer and once for itself.
	if got := p.SegmentSize(); got != 8<<20 {
		t.Errorf("segment of %d bytes", got)
	}
	for _, pt := range p.Points {
		if need := 2 * pt.Window() * int64(pt.Lanes); need > p.SegmentSize() {
			t.Errorf("%s needs %d", pt.Name(), need)
		}
	}
}

func TestImpossiblePlansAreRefusedWithTheReason(t *testing.T) {
	for want, spoil := range map[string]func(*Plan){
		"a measurement needs a peer": func(p *Plan) { p.Ranks = 1 },
		"cannot be paired":           func(p *Plan) { p.Ranks = 3 },
		"want ibv, shm or auto":      func(p *Plan) { p.Fabric = "tcp" },
		"nothing to measure":         func(p *Plan) { p.Points = nil },
		"atomics work on 8 bytes":    func(p *Plan) { p.Points[0].Op, p.Points[0].Size = AMO, 16 },
		"one operation in flight":    func(p *Plan) { p.Points[0].Depth = 4 },
		"not measured by bw":         func(p *Plan) { p.Points[1].Op = AMO },
		"want 1 byte":                func(p *Plan) { p.Points[0].Size = 0 },
		"neither a number":           func(p *Plan) { p.Points[0].Iters = 0 },
		"--rate needs":               func(p *Plan) { p.Points[1].PerSecond = 5 },
		"--local is for put and get": func(p *Plan) { p.Points[0].Op, p.Points[0].Local = AMO, Own },
		"is for am":                  func(p *Plan) { p.Points[1].Goroutines = 2 },
		"a latency is that of one":   func(p *Plan) { p.Points[0].Op, p.Points[0].Goroutines = AM, 1 },
		"0 goroutines":               func(p *Plan) { p.Points[1].Op = AM },
		"use rate am":                func(p *Plan) { p.Points[1].Op, p.Points[1].Size, p.Points[1].Goroutines = AM, 0, 1 },
		"64 message endpoints":       func(p *Plan) { p.Points[1].Op, p.Points[1].Lanes, p.Points[1].Goroutines = AM, 65, 1 },
		"want short":                 func(p *Plan) { p.Points[0].Op, p.Points[0].Size = AM, MaxMedium+1 },
		"one depth at a time": func(p *Plan) {
			p.Points[1].Op, p.Points[1].Goroutines = AM, 1
			p.Points = append(p.Points, p.Points[1])
			p.Points[2].Depth = 32
		},
		"0 rounds":              func(p *Plan) { p.Points[1] = Point{Kind: Cache, Op: "seq", Sides: "off,on"} },
		"want a list of off":    func(p *Plan) { p.Points[1] = Point{Kind: Cache, Op: "seq", Sides: "half", Rounds: 2} },
		"no kernel":             func(p *Plan) { p.Points[1] = Point{Kind: Cache, Sides: "off", Rounds: 2} },
		"local memory \"heap\"": func(p *Plan) { p.Points[1].Local = "heap" },
	} {
		p := valid()
		spoil(p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := valid().Validate(); err != nil {
		t.Error(err)
	}
}

func TestDefinitionsSayWhatANumberIs(t *testing.T) {
	for want, pt := range map[string]Point{
		DefHalf: {Kind: Lat, Op: Put},
		DefOp:   {Kind: Lat, Op: Put, Ack: true},
		DefRTT:  {Kind: Lat, Op: AM},
		DefRate: {Kind: BW, Op: Put},

		DefCache: {Kind: Cache, Op: "seq"},
	} {
		if got := pt.Definition(); got != want {
			t.Errorf("%+v: %s, want %s", pt, got, want)
		}
	}
	if got := (Point{Kind: Lat, Op: Put, PerSecond: 100}).Definition(); got != DefRTT {
		t.Errorf("a paced ping-pong: %s", got)
	}
}

func TestEndpointsAreOpenedForTheLargestPoint(t *testing.T) {
	p := valid()
	if m := p.Messages(); m.Endpoints != 0 {
		t.Errorf("a plan without messages wants %+v", m)
	}
	p.Points = append(p.Points, Point{Kind: Lat, Op: AM, Size: 100, Depth: 1, Lanes: 1, Iters: 1},
		Point{Kind: Rate, Op: AM, Size: 8, Depth: 32, Lanes: 4, Goroutines: 8, Iters: 1})
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if m := p.Messages(); m != (Messages{Endpoints: 4, Medium: 100, Depth: 32}) {
		t.Errorf("%+v", m)
	}
}

func FuzzParsersNeverAcceptWhatTheyCannotMean(f *testing.F) {
	for _, s := range []string{"8..1M", "50,99.9", "p99<5us", "bw>1GB/s", "200k", "0-3", "1..64"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if sizes, err := Sizes(s); err == nil {
			for _, n := range sizes {
				if n < 1 || n > MaxSize {
					t.Errorf("size %d from %q", n, s)
				}
			}
		}
		if ps, err := Percentiles(s); err == nil && !slices.IsSorted(ps) {
			t.Errorf("percentiles %v from %q", ps, s)
		}
		for _, kind := range []string{Lat, BW, Rate} {
			if a, err := ParseAssertion(s, kind); err == nil && (a.Metric == "" || !finite(a.Bound) || a.Bound < 0) {
				t.Errorf("%s assertion %+v from %q", kind, a, s)
			}
		}
		if r, err := PerSecond(s); err == nil && !(r > 0 && finite(r)) {
			t.Errorf("rate %v from %q", r, s)
		}
		if sizes, err := Payloads(s); err == nil && slices.Min(sizes) < 0 {
			t.Errorf("payloads %v from %q", sizes, s)
		}
		_, _ = CPUs(s)
		_, _ = Counts("depth", s, MaxDepth)
		_, _ = Decode(s)
	})
}
