package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// checkHeap tests what holds of every series of the shared heaps.
func checkHeap(t *testing.T, s report.Series, op string, size int64, live int) {
	t.Helper()
	of := func(name string) float64 { return s.Value("heap." + name) }
	if s.Kind != "heap" || s.Op != op || s.Size != size || s.Definition != "op" || s.Result.Unit != "ns" || s.Plan.Live != live || s.Hist == nil || !s.Has("heap.blocks") {
		t.Fatalf("%s %s size %d, %s, %d live: %+v", s.Kind, s.Op, s.Size, s.Definition, s.Plan.Live, s.Metrics)
	}
	own := op == "local" || op == "churn"
	if own && of("blocks") != float64(live) || !own && of("blocks") != 0 || of("largest_free") > of("free") || of("fragmentation") < 0 || of("fragmentation") > 100 || of("meta") < 0 {
		t.Errorf("%s: %+v", op, s.Metrics)
	}
}

func heapOps(t *testing.T, further ...string) {
	t.Helper()
	for _, c := range []struct {
		args string
		live int
	}{{"local --live 50", 50}, {"churn --live 200", 200}, {"remote", 1}, {"global", 1}, {"all", 1}} {
		args := append([]string{"heap"}, append(strings.Fields(c.args), further...)...)
		all := series(t, append(args, "--sizes", "64,4K", "--heap", "4M", "--iters", "100", "--warmup", "0", "--warmup-iters", "20")...)
		if len(all) != 2 {
			t.Fatalf("%v: %d series", args, len(all))
		}
		for i, s := range all {
			checkHeap(t, s, args[1], []int64{64, 4096}[i], c.live)
			if s.Result.Count != 100 {
				t.Errorf("%v: %d samples, want 100", args, s.Result.Count)
			}
		}
	}
}

func TestHeapOverSharedMemory(t *testing.T) {
	heapOps(t, "--fabric", "shm", "-n", "3")
}

// Blocks of a heap that does not grow any more cost no message.
func TestLocalBlocksCostNoMessage(t *testing.T) {
	s := series(t, "heap", "local", "--fabric", "shm", "--size", "1K", "--iters", "5000", "--warmup", "0", "--heap", "1M", "--live", "100")[0]
	if s.Value("heap.requests") != 0 || s.Value("heap.in_use") < 100<<10 {
		t.Errorf("%+v", s.Metrics)
	}
}

func TestHeapFormatsHaveItsColumns(t *testing.T) {
	args := []string{"heap", "churn", "--fabric", "shm", "--size", "4K", "--live", "300", "--heap", "4M", "--iters", "50", "--warmup", "0", "-q"}
	for format, want := range map[string][]string{
		"text":  {"heap churn, fabric shm", "frag. %", "meta %", "assert fragmentation<100.5%: ok"},
		"csv":   {"fragmentation,meta,requests", "heap,churn,op,shm"},
		"bench": {"BenchmarkHeapChurn/fabric=shm/size=4096/live=300-"},
	} {
		out, errs, code := ibbench(t, append(slices.Clone(args), "--format", format, "--assert", "fragmentation<100.5%")...)
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

func TestWrongHeapMeasurementsAreRefused(t *testing.T) {
	exits(t, []string{"-q"}, []exit{
		{"heap local --size 64K --heap 64K", 2, "a quarter of the heap"},
		{"heap local --size 1K --live 100000", 2, "more than half of the heap"},
		{"heap local --heap 1K", 2, "want 64K to 1G"},
		{"heap local --heap 1M,2M", 2, "want one number of bytes"},
		{"heap all --live 5", 2, "--live is for local and churn"},
		{"heap frob", 2, "frob"},
		{"heap local --assert bw>1GB/s", 2, "fragmentation"},
	})
}
