package peer

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func captured(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The files are what perftest 6.06 printed on Soft-RoCE.
func TestCapturedOutputIsReadExactly(t *testing.T) {
	for name, want := range map[string]Output{
		"write_lat_8.txt":   {Size: 8, Iters: 1000, Min: 13420, Max: 1536780, Figures: report.Figures{P50: 15020, Mean: 18170, P99: 140660}},
		"read_lat_8.txt":    {Size: 8, Iters: 500, Min: 18320, Max: 2041670, Figures: report.Figures{P50: 18930, Mean: 27470, P99: 168390}},
		"atomic_lat.txt":    {Size: 8, Iters: 500, Min: 17990, Max: 2189480, Figures: report.Figures{P50: 26100, Mean: 33640, P99: 470740}},
		"write_bw.txt":      {Size: 65536, Iters: 200, Max: 42.79 * (1 << 20), Figures: report.Figures{Mean: 41.44 * (1 << 20)}},
		"read_bw.txt":       {Size: 65536, Iters: 200, Max: 49.71 * (1 << 20), Figures: report.Figures{Mean: 45.66 * (1 << 20)}},
		"write_lat_few.txt": {Size: 8, Iters: 5, Min: 19550, Max: 119840, Figures: report.Figures{P50: 26780, Mean: 26780, P99: 119840}},
	} {
		got, err := Parse(captured(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-6*math.Max(1, a) })
		if d := cmp.Diff(want, *got, near, cmp.FilterPath(func(p cmp.Path) bool { return p.String() == "Settings" }, cmp.Ignore())); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestSettingsAreReadTwoToALine(t *testing.T) {
	o, err := Parse(captured(t, "write_bw.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"Dual-port": "OFF", "Device": "rxe0", "TX depth": "128", "CQ Moderation": "1", "Mtu": "4096[B]",
		"Max inline data": "0[B]", "rdma_cm QPs": "OFF", "ibv_wr* API": "OFF", "Data ex. method": "Ethernet",
	} {
		if got := o.Settings[key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

func TestOutputWithoutFiguresIsAnErrorThatQuotesIt(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "no table",
		captured(t, "unknown_device.txt"): "Unable to find the Infiniband/RoCE device",
		" #bytes #iterations    t_min[usec]\n 8 1000\n":                         "2 figures below 3 columns",
		" #bytes #iterations t_min[usec]\n 8 1000 nan\n":                        "not a figure",
		" #bytes #iterations t_min[usec]\n 8 1000 5\n":                          "no column t_max[usec]",
		" #bytes #iterations t_min[usec] t_max[usec]\n------\n 8 1000 -5 5.0\n": "not a figure",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

// perftest takes the root of a sum that rounding has made negative.
func TestADeviationThatIsNoNumberIsNoError(t *testing.T) {
	text := " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%percentile[usec]   99.9%percentile[usec]\n" +
		" 8       20000          25.50          1203.00      28.25              29.00            -nan            75.00                   nan\n"
	o, err := Parse(text)
	if err != nil || o.Figures.P50 != 28250 || o.Figures.P99 != 75000 || o.Iters != 20000 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := Parse(strings.Replace(text, "28.25", "-nan", 1)); err == nil || !strings.Contains(err.Error(), "t_typical") {
		t.Errorf("a figure that is read: %v", err)
	}
}

// perftest 25.01 calls its unit by its right name.
func TestTheNewerNameOfTheUnitIsKnown(t *testing.T) {
	text := " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n" +
		" 4096       100              58.22              51.50                0.013185\n"
	o, err := Parse(text)
	if err != nil || o.Figures.Mean != 51.5*(1<<20) || o.Max != 58.22*(1<<20) || o.Iters != 100 {
		t.Errorf("%+v, %v", o, err)
	}
}

func FuzzParseFindsFiguresOrSaysWhyNot(f *testing.F) {
	for _, n := range []string{"write_lat_8.txt", "write_bw.txt", "unknown_device.txt"} {
		f.Add(captured(f, n))
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := Parse(s)
		if err != nil {
			return
		}
		for _, v := range []float64{o.Figures.Mean, o.Figures.P50, o.Figures.P99, o.Min, o.Max} {
			if !(v >= 0) || math.IsInf(v, 0) {
				t.Errorf("figure %v from %q", v, s)
			}
		}
	})
}

func rounds(p50 ...float64) (out []report.Round) {
	for _, v := range p50 {
		out = append(out, report.Round{Theirs: report.Figures{P50: v, Mean: v, P99: v}, Ours: report.Figures{P50: 2 * v, Mean: 3 * v, P99: 4 * v}})
	}
	return out
}

func TestARoundFarOffTheMedianIsDiscarded(t *testing.T) {
	for _, c := range []struct {
		p50  []float64
		want []bool
	}{
		{[]float64{10, 11, 12, 100, 9}, []bool{true, true, true, false, true}},
		{[]float64{10, 10, 4.9, 10}, []bool{true, true, false, true}},
		{[]float64{10, 15, 10}, []bool{true, true, true}},               // exactly half is not more
		{[]float64{10, 200, 10, 210}, []bool{true, false, true, false}}, // a machine that was busy half of the time
		{[]float64{7}, []bool{true}},
		{nil, []bool{}},
	} {
		if d := cmp.Diff(c.want, judge(rounds(c.p50...))); d != "" {
			t.Errorf("%v: %s", c.p50, d)
		}
	}
}

func TestRatiosAreMediansOfTheRoundsThatCount(t *testing.T) {
	x := &contest{
		tool: "ib_write_lat", times: 1, point: plan.Point{Kind: plan.Lat, Op: plan.Put, Size: 8, Iters: 100},
		theirs: &Output{Iters: 100}, series: []*report.Series{{Result: report.Result{Unit: "ns"}}},
		rounds: []report.Round{
			{Theirs: report.Figures{P50: 10, Mean: 10, P99: 10}, Ours: report.Figures{P50: 11, Mean: 20, P99: 30}},
			{Theirs: report.Figures{P50: 1000, Mean: 1000, P99: 1000}, Ours: report.Figures{P50: 1, Mean: 1, P99: 1}},
			{Theirs: report.Figures{P50: 20, Mean: 20, P99: 20}, Ours: report.Figures{P50: 26, Mean: 20, P99: 20}},
			{Theirs: report.Figures{P50: 10, Mean: 10, P99: 10}, Ours: report.Figures{P50: 12, Mean: 20, P99: 20}},
		},
	}
	s := x.report([]bool{true, false, true, true}, "6.06")
	if d := cmp.Diff(report.Metrics{
		"ratio.p50":  {Value: 1.2, Low: 1.1, High: 1.3},
		"ratio.mean": {Value: 2, Low: 1, High: 2},
		"ratio.p99":  {Value: 2, Low: 1, High: 3},
		"ratio.best": {Value: 1.1},
	}, s.Metrics); d != "" {
		t.Error(d)
	}
	if p := s.Peer(); p.Discarded != 1 || !p.Rounds[1].Discarded || s.Result.P["50"] != 12 || p.Result.P["50"] != 10 || s.Result.Count != 300 {
		t.Errorf("%+v %+v", p, s.Result)
	}
}

// script writes a stand-in for a perftest tool: a shell script in which $server
// is set on the server's side and $port holds the port.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ib_write_lat")
	text := "#!/bin/bash\nport=$2\nserver=1\n[ \"${@: -1}\" = 127.0.0.1 ] && server=\n" + body
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAServerThatFailsIsQuoted(t *testing.T) {
	for _, to := range []string{">&2", ""} {
		p := Pair{Path: script(t, "echo IB device rxe7 not found "+to+"; exit 1"), Timeout: 20 * time.Second}
		if _, err := p.Text(t.Context()); err == nil || !strings.Contains(err.Error(), "IB device rxe7 not found") {
			t.Errorf("%q: %v", to, err)
		}
	}
}

func TestAPairThatHangsIsEndedWithinItsTime(t *testing.T) {
	// The server never listens.
	p := Pair{Path: script(t, "echo $$ >\"$(dirname \"$0\")/pid\"; exec sleep 1000"), Timeout: 300 * time.Millisecond}
	var b []byte
	for len(b) == 0 { // a slow machine ends the script before it has begun: more time then
		_, err := p.Text(t.Context())
		if err == nil || !strings.Contains(err.Error(), "not finished within "+p.Timeout.String()) {
			t.Fatal(err)
		}
		if b, err = os.ReadFile(filepath.Join(filepath.Dir(p.Path), "pid")); err != nil && p.Timeout > time.Minute {
			t.Fatal(err)
		}
		p.Timeout *= 2
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); !os.IsNotExist(err) {
		t.Errorf("process %d is still there", pid)
	}
}

func TestACancelledRunSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := Pair{Path: script(t, "exec sleep 1000"), Timeout: time.Minute}
	if _, err := p.Text(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestListeningSocketsAreFoundWithoutDialling(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if !listening("/proc/net/tcp", port) {
		t.Error("a listening socket was not found")
	}
	_ = l.Close()
	if listening("/proc/net/tcp", port) {
		t.Error("a closed socket was found")
	}
}

func TestAMissingToolSaysHowToInstallIt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := find("ib_write_lat", ErrMissing); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "apt-get install perftest") {
		t.Error(err)
	}
}
