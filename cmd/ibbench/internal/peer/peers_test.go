package peer

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// The whole command lines, since they say what is compared.
func TestEachPeerHasAToolForAPoint(t *testing.T) {
	ibv := &Comparison{Plan: &plan.Plan{Fabric: "ibv", Device: "sv0"}, Port: 1, GID: 2}
	shm := &Comparison{Plan: &plan.Plan{Fabric: "shm"}}
	const of, dev, mem = "-F -d sv0 -i 1 -x 2 -n 1000 ", " -x rc_verbs -d sv0:1 -s ", " -x posix -d memory -s "
	lat := func(op string, size int64) plan.Point {
		return plan.Point{Kind: plan.Lat, Op: op, Size: size, Depth: 1, Iters: 1000}
	}
	many := func(kind, op string, size int64, depth int) plan.Point {
		return plan.Point{Kind: kind, Op: op, Size: size, Depth: depth, Iters: 1000}
	}
	for _, c := range []struct {
		peer  string
		c     *Comparison
		pt    plan.Point
		want  string
		times float64
	}{
		{Perftest, ibv, lat(plan.Put, 8), "ib_write_lat " + of + "-s 8", 1},
		{Perftest, ibv, lat(plan.Get, 4096), "ib_read_lat " + of + "-s 4096", 1},
		{Perftest, ibv, lat(plan.AMO, 8), "ib_atomic_lat " + of + "-A FETCH_AND_ADD", 1},
		{Perftest, ibv, lat(plan.AM, 0), "ib_send_lat " + of + "-s 8", 2},
		{Perftest, ibv, many(plan.BW, plan.Put, 65536, 128), "ib_write_bw " + of + "-s 65536", 1},
		{Perftest, ibv, many(plan.BW, plan.AM, 4096, 64), "ib_send_bw " + of + "-t 64 -s 4096", 1},
		{Perftest, ibv, many(plan.Rate, plan.AMO, 8, 64), "ib_atomic_bw " + of + "-t 64 -A FETCH_AND_ADD", 1},
		{UCX, ibv, lat(plan.Put, 8), "ucx_perftest -t put_lat -D short" + dev + "8 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.Put, 4096), "ucx_perftest -t put_lat -D zcopy" + dev + "4096 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.Get, 8), "ucx_perftest -t get -D bcopy -O 1" + dev + "8 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.Get, 4096), "ucx_perftest -t get -D zcopy -O 1" + dev + "4096 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.AMO, 8), "ucx_perftest -t fadd -O 1" + dev + "8 -n 1000 -w 100", 1},
		{UCX, ibv, lat(plan.AM, 0), "ucx_perftest -t am_lat -D short" + dev + "8 -n 1000 -w 100", 2},
		{UCX, ibv, lat(plan.AM, 4096), "ucx_perftest -t am_lat -D bcopy" + dev + "4096 -n 1000 -w 100", 2},
		{UCX, shm, lat(plan.Put, 4096), "ucx_perftest -t put_lat -D bcopy" + mem + "4096 -n 1000 -w 100", 1},
		{UCX, shm, lat(plan.Get, 4096), "ucx_perftest -t get -D bcopy -O 1" + mem + "4096 -n 1000 -w 100", 1},
		{UCX, shm, many(plan.Rate, plan.AM, 0, 64), "ucx_perftest -t am_bw -D short -O 64" + mem + "8 -n 1000 -w 100", 1},
		{UCX, shm, many(plan.BW, plan.Put, 65536, 16), "ucx_perftest -t put_bw -D bcopy -O 16" + mem + "65536 -n 1000 -w 100", 1},
		{OSU, shm, lat(plan.AM, 0), "osu_latency -i 1000 -x 100 -m 8:8", 2},
		{OSU, shm, lat(plan.Get, 64), "osu_get_latency -i 1000 -x 100 -w allocate -s flush -m 64:64", 1},
		{OSU, shm, plan.Point{Kind: plan.Lat, Op: plan.Put, Ack: true, Size: 8, Depth: 1, Iters: 1000}, "osu_put_latency -i 1000 -x 100 -w allocate -s flush -m 8:8", 1},
		{OSU, shm, lat(plan.AMO, 8), "osu_fop_latency -i 1000 -x 100 -w allocate -s flush", 1},
		{OSU, shm, many(plan.BW, plan.AM, 4096, 64), "osu_bw -W 64 -i 15 -x 1 -m 4096:4096", 1},
		{OSU, shm, many(plan.BW, plan.Get, 4096, 10), "osu_get_bw -W 10 -i 100 -x 10 -w allocate -s flush -m 4096:4096", 1},
		{OSU, shm, many(plan.Rate, plan.AM, 0, 64), "osu_mbw_mr -W 64 -i 15 -x 1 -m 8:8", 1},
	} {
		got, ok := peers[c.peer].test(c.c, c.pt)
		if line := strings.Join(append([]string{got.tool}, got.args...), " "); !ok || line != c.want || got.times != c.times {
			t.Errorf("%s, %s: %s, times %g, %t; want %s, times %g", c.peer, c.pt.Name(), line, got.times, ok, c.want, c.times)
		}
	}
	ack := lat(plan.Put, 8)
	ack.Ack = true
	for _, c := range []struct {
		peer string
		pt   plan.Point
	}{{Perftest, ack}, {Perftest, lat(plan.CAS, 8)}, {UCX, ack}, {UCX, lat(plan.CAS, 8)}, {OSU, lat(plan.Put, 8)}, {OSU, lat(plan.CAS, 8)}, {OSU, many(plan.Rate, plan.AMO, 8, 64)}} {
		if got, ok := peers[c.peer].test(ibv, c.pt); ok {
			t.Errorf("%s, %s: %+v", c.peer, c.pt.Name(), got)
		}
	}
}

// As versions 5.6 to 7.0 print them.
const (
	osuLatency = "# OSU MPI_Put Latency Test v5.8\n# Window creation: MPI_Win_allocate\n# Synchronization: MPI_Win_flush\n# Size          Latency (us)\n8                       0.24\n"
	osuNewer   = "\n# OSU MPI Latency Test v7.0\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n8                       1.57\n"
	osuBW      = "# OSU MPI Bandwidth Test v5.8\n# Size      Bandwidth (MB/s)\n4096                 3250.50\n"
	osuRate    = "# OSU MPI Multiple Bandwidth / Message Rate Test v5.6.3\n# [ pairs: 1 ] [ window size: 64 ]\n# Size                  MB/s        Messages/s\n8                      73.66        9207798.75\n"
)

func TestTheRowOfOSUIsReadExactly(t *testing.T) {
	for _, c := range []struct {
		text string
		pt   plan.Point
		want float64
		name string
	}{
		{osuLatency, plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8}, 240, "OSU MPI_Put Latency Test v5.8"},
		{osuNewer, plan.Point{Kind: plan.Lat, Op: plan.AM}, 1570, "OSU MPI Latency Test v7.0"},
		{osuBW, plan.Point{Kind: plan.BW, Op: plan.AM, Size: 4096}, 3250.5e6, "OSU MPI Bandwidth Test v5.8"},
		{osuRate, plan.Point{Kind: plan.Rate, Op: plan.AM}, 8 * 9207798.75, "OSU MPI Multiple Bandwidth / Message Rate Test v5.6.3"},
	} {
		c.pt.Iters = 100
		got, err := parseOSU(c.text, c.pt)
		if err != nil || got.Figures != (report.Figures{Mean: c.want}) || got.Iters != 100 || got.Settings["Benchmark"] != c.name {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
	}
}

func TestOtherOutputOfOSUIsAnError(t *testing.T) {
	for text, want := range map[string]string{
		"": "no row of 8 bytes", osuBW: "no row of 8 bytes",
		"8 0.24\n":                               "no unit that is known",
		"# Size Latency (us)\n8 x\n":             "not a figure",
		"# Size Latency (us)\n8 -1\n":            "not a figure",
		"# Size MB/s Messages/s\n8 73.66 0.00\n": "not a figure",
	} {
		if _, err := parseOSU(text, plan.Point{Kind: plan.Lat, Op: plan.AM}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Of a tool without percentiles the means are compared, and nothing is made up for the rest.
func TestWithoutPercentilesMeansAreCompared(t *testing.T) {
	x := &contest{
		tool: "osu_latency", times: 2, point: plan.Point{Kind: plan.Lat, Op: plan.AM, Iters: 100},
		theirs: &Output{Iters: 100}, series: []*report.Series{{Result: report.Result{Unit: "ns"}}},
	}
	for _, ours := range []float64{110, 120, 130, 140, 150, 160} {
		x.rounds = append(x.rounds, report.Round{Theirs: report.Figures{Mean: 100}, Ours: report.Figures{P50: 10, Mean: ours, P99: 999}})
	}
	s := x.report([]bool{true, true, true, true, true, true}, "4.1.4")
	want := report.Metrics{"ratio.mean": {Value: 1.35, Low: 1.1, High: 1.6}, "ratio.best": {Value: 1.1}, "ratio.interval": {Low: 1.1, High: 1.6}}
	if d := cmp.Diff(want, s.Metrics); d != "" {
		t.Error(d)
	}
	if p := s.Peer().Result; len(p.P) != 0 || p.Min != 100 || p.Mean != 100 || s.Result.P["50"] != 10 || s.Peer().Times != 2 {
		t.Errorf("%+v of %+v", p, s.Result)
	}
	if d := cmp.Diff([]bool{true, true, false}, judge([]report.Round{{Theirs: report.Figures{Mean: 10}}, {Theirs: report.Figures{Mean: 11}}, {Theirs: report.Figures{Mean: 30}}})); d != "" {
		t.Error(d)
	}
}

func TestMissingPeersSayHowToInstallThem(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, c := range map[string]struct {
		err  error
		says string
	}{Perftest: {ErrMissing, "apt-get install perftest"}, UCX: {ErrNoUCX, "apt-get install ucx-utils"}, OSU: {ErrNoOSU, "no Debian package has them"}} {
		pt := plan.Point{Kind: plan.Lat, Op: plan.Get, Size: 8, Depth: 1, Lanes: 1, Chain: 1, Iters: 10}
		x := &Comparison{Peer: name, Plan: &plan.Plan{Fabric: "shm", Points: []plan.Point{pt}}}
		if _, err := x.Run(t.Context()); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzOutputOfOSUIsReadOrRefused(f *testing.F) {
	for _, s := range []string{osuLatency, osuNewer, osuRate} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if o, err := parseOSU(s, plan.Point{Kind: plan.Lat, Op: plan.AM}); err == nil && !(o.Figures.Mean > 0) {
			t.Errorf("%q: %+v", s, o)
		}
	})
}
