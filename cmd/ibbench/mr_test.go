package main

import (
	"encoding/csv"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/memevents"
)

// needHooks skips in builds that measure no registrations; TestABuildWithoutHooksSaysSo is for
// those.
func needHooks(t *testing.T) {
	if memevents.Slots == 0 {
		t.Skip("this build has no memory events")
	}
}

var briefly = []string{"--iters", "30", "--warmup", "0", "--warmup-iters", "3"}

func mrSeries(t *testing.T, args ...string) []report.Series {
	t.Helper()
	all := decoded(t, slices.Concat([]string{"mr"}, args, briefly)...)
	for _, s := range all {
		if s.Schema != report.Schema || s.Kind != "mr" || !s.Has("mr.registrar") || s.Env.Kernel == "" || s.Result.Count != 30 || s.Result.Errors != 0 || s.Result.Min > s.Result.Max {
			t.Errorf("%v: %+v", args, s)
		}
	}
	return all
}

func TestMRSweepsSizesAndRegions(t *testing.T) {
	needHooks(t)
	for _, c := range []struct {
		args   []string
		points int
	}{
		{[]string{"hit", "--fake", "--sizes", "100,4K", "--regions", "1,8"}, 4},
		{[]string{"hit", "--fake", "--size", "1M", "--regions", "1..4"}, 3},
		{[]string{"churn", "--fake", "--cycles", "50", "--regions", "0,5"}, 2},
	} {
		all := mrSeries(t, c.args...)
		if len(all) != c.points {
			t.Fatalf("%v: %d series", c.args, len(all))
		}
		for _, s := range all {
			if s.Text("mr.registrar") != "fake" || s.Env.Fabric != "fake" || s.Env.Device != nil || s.Has("mr.hit.percent") != (s.Op == "hit") || s.Has("mr.churn.ratio") != (s.Op == "churn") {
				t.Errorf("%v: %+v", c.args, s.Metrics)
			}
			if !strings.Contains(strings.Join(s.Notes, "\n"), "fake that registers nothing") {
				t.Errorf("%v: no note says that the registrar is a fake: %q", c.args, s.Notes)
			}
		}
	}
}

func TestMRInEveryFormat(t *testing.T) {
	needHooks(t)
	for format, want := range map[string]string{"text": "regions", "csv": "overhead", "bench": "BenchmarkMrChurn/fabric=fake/size=4096/regions=5", "ndjson": `"rss_growth"`} {
		args := append([]string{"mr", "churn", "--fake", "--regions", "5", "--cycles", "20", "--format", format}, briefly...)
		out, errs, code := ibbench(t, args...)
		if code != 0 || !strings.Contains(out, want) || !strings.Contains(errs, "registers nothing: asked for") {
			t.Errorf("%s: exit code %d, %q, %q", format, code, out, errs)
		}
		if format == "csv" {
			if rows, err := csv.NewReader(strings.NewReader(out)).ReadAll(); err != nil || len(rows) != 2 {
				t.Errorf("%v, %d rows", err, len(rows))
			}
		}
	}
}

func TestMRExitCodes(t *testing.T) {
	needHooks(t)
	exits(t, append(briefly, "-q"), []exit{
		{"mr hit --fake --regions 4 --assert hits>=100% --assert p50<1s", 0, ""},
		{"mr hit --fake --regions 4 --assert p50<0.001ns", 1, ""},
		{"mr churn --fake --regions 4 --cycles 10 --assert overhead<1s --assert ratio<1000x --assert rss<1GiB", 0, ""},
		{"mr churn --fake --regions 4 --cycles 10 --assert ratio<0.0001x", 1, ""},
		{"mr hit --fake --assert overhead<1ns", 2, "no metric"},
		{"mr churn --fake --assert rss<512", 2, "number with its unit"},
		{"mr reg --fake", 2, "it needs a device"},
		{"mr reg --regions 5", 2, "hit and churn"},
		{"mr churn --origin any", 2, "--origin"},
		{"mr hit --fake --origin stack", 2, "--origin"},
		{"mr hit --fake --regions 0", 2, "a hit needs 1"},
		{"mr hit --fake --regions 60000 --size 1G", 2, "64G"},
		{"mr hit --fake --sizes 0", 2, "--sizes"},
		{"mr hit --fake --regions many", 2, "--regions"},
		{"mr churn --fake --cycles -1", 2, "cycles"},
		{"mr frob", 2, "frob"},
		{"mr reg -d no_such_device", 3, "ibbench doctor"},
		{"mr hit -d no_such_device", 3, "no_such_device"},
		{"mr hit --fake --regions 60000", 3, "a process can watch"},
	})
}

func TestMRIsOfOneProcess(t *testing.T) {
	if _, errs, code := underLauncher(t, 2, "mr", "hit", "--fake"); code != exitUsage || !strings.Contains(errs, "without a launcher") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

func TestABuildWithoutHooksSaysSo(t *testing.T) {
	if memevents.Slots > 0 {
		t.Skip("this build has memory events")
	}
	_, errs, code := ibbench(t, "mr", "hit", "--fake")
	if code != exitSetup || !strings.Contains(errs, "cgo") {
		t.Errorf("exit code %d, %q", code, errs)
	}
}

func TestMRRegistersWithTheDevice(t *testing.T) {
	dev := rdmatest.Device(t)
	regs := mrSeries(t, "reg", "-d", dev, "--sizes", "4K,1M")
	if len(regs) != 2 || !strings.Contains(strings.Join(regs[1].Notes, "\n"), "crossover: ") {
		t.Fatalf("%d series, %+v", len(regs), regs)
	}
	for _, s := range regs {
		of := func(name string) float64 { return s.Value("mr.reg." + name) }
		if s.Text("mr.registrar") != dev || s.Env.Device == nil || of("register.p50") <= 0 || of("deregister.p50") <= 0 || of("copy.p50") <= 0 || of("hit_ns") <= 0 ||
			s.Result.P["50"] < of("register.p50") {
			t.Errorf("%+v", s.Metrics)
		}
	}
	if h := mrSeries(t, "hit", "-d", dev, "--regions", "16")[0]; h.Text("mr.registrar") != dev || h.Value("mr.hit.percent") != 100 {
		t.Errorf("%+v", h.Metrics)
	}
	c := mrSeries(t, "churn", "-d", dev, "--regions", "16", "--cycles", "200")[0]
	of := func(name string) float64 { return c.Value("mr.churn." + name) }
	if c.Text("mr.registrar") != dev || !c.Has("mr.churn.stale") || of("stale") != 0 || of("dead_max") > 16 {
		t.Errorf("%+v", c.Metrics)
	}
}
