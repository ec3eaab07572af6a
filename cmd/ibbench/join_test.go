package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestJobsOfTwoAndFourRanksAreStarted(t *testing.T) {
	all := series(t, "join", "-n", "2,4", "--rounds", "3", "--fabric", "shm", "--segment", "64K")
	if len(all) != 2 {
		t.Fatalf("%d series", len(all))
	}
	for i, s := range all {
		ranks := int64(2 << i)
		if s.Kind != "join" || s.Op != "job" || s.Size != ranks || s.Env.Ranks != int(ranks) || s.Definition != "start" || s.Result.Count != 3 || len(s.Rounds) != 3 || s.Plan.Segment != 64<<10 {
			t.Errorf("%+v", s)
		}
		for _, step := range []string{"launch", "bootstrap", "join", "barrier"} {
			if v := s.Value("join." + step); v < 0 || v == 0 && step != "barrier" || v > s.Result.Max {
				t.Errorf("%d ranks: %s of %v in %+v", ranks, step, v, s.Result)
			}
		}
	}
}

func TestOneStartIsTheSumOfItsSteps(t *testing.T) {
	s := series(t, "join", "-n", "2", "--rounds", "1", "--fabric", "shm")[0]
	if sum := s.Value("join.launch") + s.Value("join.bootstrap") + s.Value("join.join") + s.Value("join.barrier"); sum != s.Result.Mean {
		t.Errorf("%+v are %g, and the whole %g", s.Metrics, sum, s.Result.Mean)
	}
}

func TestJoinFormatsHaveItsColumns(t *testing.T) {
	dir := t.TempDir()
	args := []string{"join", "-n", "2,4", "--rounds", "1", "--fabric", "shm", "-q", "--assert", "p50<1m"}
	for _, name := range []string{"txt", "csv", "bench", "ndjson"} {
		args = append(args, "-o", filepath.Join(dir, "starts."+name))
	}
	args[slices.Index(args, "p50<1m")] = "p50<60s"
	if _, errs, code := ibbench(t, args...); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for name, want := range map[string][]string{
		"txt":   {"join job, fabric shm", "bootstrap", "assert p50<60s: ok"},
		"csv":   {"segment,launch,bootstrap,join,barrier", "join,job,start,shm"},
		"bench": {"BenchmarkJoinJob/fabric=shm/size=2/ranks=2-", "size=4/ranks=4-"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, "starts."+name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s lacks %q:\n%s", name, w, text)
			}
		}
	}
	results, page := filepath.Join(dir, "starts.ndjson"), filepath.Join(dir, "r.html")
	if out, errs, code := ibbench(t, "compare", results, results); code != 0 || !strings.Contains(out, "join job segment 1048576 ranks 4 shm") || !strings.Contains(out, "too few rounds") {
		t.Errorf("compare: exit code %d: %s%s", code, out, errs)
	}
	if _, errs, code := ibbench(t, "report", results, "-o", page); code != 0 {
		t.Fatalf("report: exit code %d: %s", code, errs)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"time to start", ">bootstrap<", ">ranks<", "on 1 host,"} {
		if !strings.Contains(string(text), w) {
			t.Errorf("the page lacks %q", w)
		}
	}
}

func TestWrongJoinsAreRefused(t *testing.T) {
	exits(t, []string{"-q"}, []exit{
		{"join -n 1", 2, "want 2 to 4096"},
		{"join -n 2,x", 2, "--ranks"},
		{"join --rounds 0", 2, "want 1 to 1000"},
		{"join --segment 0", 2, "a segment of 0 bytes"},
		{"join --timeout 0s", 2, "want a time above 0"},
		{"join --fabric frob", 2, "want ibv, shm or auto"},
		{"join --assert bw>1GB/s", 2, "percentiles"},
		{"join --assert p50<1ns --fabric shm -n 2 --rounds 1", 1, ""},
		{"join --timeout 1ms --fabric shm -n 2", 3, "not started and ended within 1ms"},
	})
	_, errs, code := underLauncher(t, 2, "join", "-q")
	if code != exitUsage || !strings.Contains(errs, "run it without a launcher") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
