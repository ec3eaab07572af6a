package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// briefKernels are all kernels in sizes that take milliseconds.
var briefKernels = [][]string{
	{"seq", "reverse", "stride", "random", "chase", "gups", "indexgather", "histogram", "all-local", "--variant", "all", "--size", "300"},
	{"ptrans", "--variant", "all", "--size", "16"},
	{"ssca2-k1", "ssca2-k2", "ssca2-k3", "ssca2-k4", "--variant", "all", "--size", "5"},
	{"stencil", "md", "--size", "3", "--steps", "2"},
	{"bulk", "handoff", "--size", "2"},
}

// cacheKernels runs all kernels and tests what holds of every series.
func cacheKernels(t *testing.T, further ...string) {
	t.Helper()
	var names []string
	for _, args := range briefKernels {
		all := decoded(t, slices.Concat([]string{"cache"}, args, []string{"--rounds", "2"}, further)...)
		for i, s := range all {
			names = append(names, s.Op)
			checkKernel(t, s, i%2 == 0)
		}
	}
	for _, k := range bench.Kernels() {
		if want := 2 * max(len(k.Variants), 1); count(names, k.Name) != want {
			t.Errorf("%d series of %s, want %d", count(names, k.Name), k.Name, want)
		}
	}
}

func count(all []string, one string) (n int) {
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

func checkKernel(t *testing.T, s report.Series, base bool) {
	t.Helper()
	if s.Kind != "cache" || s.Definition != "run" || s.Result.Unit != "ns" || s.Result.Count != 2 || s.Result.Errors != 0 || s.Env == nil {
		t.Fatalf("%s: %+v, %+v, %v", s.Op, s.Result, s.Metrics, s.Notes)
	}
	silent := s.Value("cache.messages") <= 0 || s.Value("cache.bytes") <= 0
	if (s.Value("cache.base") != 0) != base || s.Text("cache.side") != map[bool]string{true: "off", false: "on"}[base] || s.Has("cache.ratio") == base ||
		silent && s.Op != "all-local" || s.Value("cache.time") <= 0 {
		t.Errorf("%s: %+v", s.Op, s.Metrics)
	}
}

func TestKernelsOverSharedMemory(t *testing.T) {
	if os.Getenv("IBCONDUIT_VM_INDEX") != "" {
		t.Skip("the host runs all kernels over shared memory")
	}
	cacheKernels(t, "--fabric", "shm")
}

// The tests of bench run all kernels over verbs.
func TestKernelsOverVerbs(t *testing.T) {
	for i, s := range decoded(t, "cache", "seq", "gups", "--fabric", "ibv", "-d", rdmatest.Device(t), "--size", "64", "--rounds", "2") {
		checkKernel(t, s, i%2 == 0)
	}
}

func TestKernelsOnMoreRanks(t *testing.T) {
	for _, n := range []string{"3", "4"} {
		for i, s := range decoded(t, "cache", "ptrans", "gups", "--fabric", "shm", "-n", n, "--size", "16", "--rounds", "2") {
			checkKernel(t, s, i%2 == 0)
		}
	}
}

func TestKernelsUnderALauncher(t *testing.T) {
	out, errs, code := underLauncher(t, 2, "cache", "seq", "--fabric", "shm", "--size", "100", "--rounds", "2", "-q")
	if code != 0 || !strings.Contains(out, "seq") || errs != "" {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

func TestKernelsInEveryFormat(t *testing.T) {
	args := []string{"cache", "ptrans", "--fabric", "shm", "--size", "8", "--rounds", "2", "-q"}
	for format, want := range map[string][]string{
		"text":  {"cache, fabric shm", "times as fast", "ptrans naive"},
		"csv":   {"side,messages,requests,bytes,hits", "cache,ptrans --variant naive,run,shm"},
		"bench": {"BenchmarkCachePtrans/fabric=shm/size=8/variant=naive/cache=off-"},
	} {
		out, errs, code := ibbench(t, append(slices.Clone(args), "--format", format)...)
		if code != 0 {
			t.Errorf("%s: exit code %d: %s", format, code, errs)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s lacks %q:\n%s", format, w, out)
			}
		}
	}
}

func TestListNamesAllKernels(t *testing.T) {
	out, _, code := ibbench(t, "cache", "list")
	for _, k := range bench.Kernels() {
		if code != 0 || !strings.Contains(out, k.Name+" ") || !strings.Contains(out, k.Unit) {
			t.Errorf("%s is not in %q, exit code %d", k.Name, out, code)
		}
	}
}

func TestWrongKernelsAreRefused(t *testing.T) {
	exits(t, []string{"-q", "--fabric", "shm"}, []exit{
		{"cache frob", 2, "seq, reverse"},
		{"cache seq --steps 3", 2, "no steps"},
		{"cache seq --variant put", 2, "no variant"},
		{"cache seq --sides off,half", 2, "off, on, passive and tiny"},
		{"cache seq --sides on,on", 2, "twice"},
		{"cache seq --rounds 0", 2, "rounds"},
		{"cache seq --assert fragmentation<2%", 2, "messages"},
		{"cache seq --policy best", 2, "admission"},
		{"cache seq --page-size 100", 2, "power of two"},
		{"cache seq --size 100 --rounds 1 --pages 8 --page-size 4096 --line-size 64 --policy duel --mapped", 0, ""},
		{"cache ssca2-k1 --size 40", 2, "want 1 to 22"},
		{"cache seq --size 100 --rounds 1 --assert ratio>0x --assert messages<=1.5x --assert p50<100s", 0, ""},
		{"cache seq --size 100 --rounds 1 --assert ratio>1000000x", 1, ""},
	})
}
