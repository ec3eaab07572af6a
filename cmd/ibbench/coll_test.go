package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// checkColl tests what holds of every series of collective operations.
func checkColl(t *testing.T, s report.Series, op string, size int64, ranks int) {
	t.Helper()
	if s.Kind != "coll" || s.Op != op || s.Size != size || s.Definition != "op" || s.Result.Unit != "ns" || s.Env.Ranks != ranks ||
		s.Plan.Batch < 1 || s.Result.OpsPerSample > 1 && s.Result.OpsPerSample != s.Plan.Batch {
		t.Errorf("%s %s size %d of %d ranks: %+v", s.Kind, s.Op, s.Size, s.Env.Ranks, s.Plan)
	}
}

func collOps(t *testing.T, ranks int, further ...string) {
	t.Helper()
	args := append([]string{"coll", "--sizes", "8,40K", "--loop", "5", "--iters", "7", "--warmup", "0", "--warmup-iters", "1", "-n", fmt.Sprint(ranks)}, further...)
	all := series(t, args...)
	want := []string{"barrier", "allreduce", "allreduce", "alltoall", "alltoall", "bcast", "bcast"}
	if len(all) != len(want) {
		t.Fatalf("%d series", len(all))
	}
	for i, s := range all {
		size := []int64{40 << 10, 8}[i%2]
		if i == 0 {
			size = 0
		}
		checkColl(t, s, want[i], size, ranks)
		if s.Result.Count != 7 {
			t.Errorf("%s: %d samples, want 7", s.Op, s.Result.Count)
		}
	}
}

func TestCollectivesOverSharedMemory(t *testing.T) {
	collOps(t, 3, "--fabric", "shm")
}

func TestRanksOfALauncherMeasureCollectives(t *testing.T) {
	out, errs, code := underLauncher(t, 2, "coll", "barrier,bcast", "--size", "1K", "--loop", "10", "--iters", "10", "--warmup", "0", "--fabric", "shm", "-q")
	if code != 0 || !strings.Contains(out, "coll bcast, fabric shm") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

func TestCollFormatsHaveItsColumns(t *testing.T) {
	args := []string{"coll", "bcast", "--fabric", "shm", "--size", "4K", "--loop", "10", "--iters", "20", "--warmup", "0", "-q"}
	for format, want := range map[string][]string{
		"text":  {"coll bcast, fabric shm", "loop", "assert p50<1s: ok"},
		"csv":   {"kind,op,definition", "coll,bcast,op,shm"},
		"bench": {"BenchmarkCollBcast/fabric=shm/size=4096/ranks=2-"},
	} {
		out, errs, code := ibbench(t, append(slices.Clone(args), "--format", format, "--assert", "p50<1s")...)
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

func TestWrongCollMeasurementsAreRefused(t *testing.T) {
	exits(t, []string{"-q"}, []exit{
		{"coll frob", 2, "coll measures barrier, allreduce, alltoall, bcast"},
		{"coll allreduce --size 12", 2, "a multiple of 8"},
		{"coll alltoall --size 1G --fabric shm", 2, "more than 1G"},
		{"coll bcast --loop=-1", 2, "want 1 or more"},
		{"coll barrier --assert bw>1GB/s", 2, "percentiles"},
	})
}
