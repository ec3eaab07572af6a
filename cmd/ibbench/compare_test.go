package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// Results with rounds, compared with themselves and with others that are twice as slow.
func TestCompareFindsWhatIsSlower(t *testing.T) {
	dir := t.TempDir()
	old, slow, one := filepath.Join(dir, "old.json"), filepath.Join(dir, "slow.ndjson"), filepath.Join(dir, "one.json")
	if _, errs, code := ibbench(t, "lat", "get", "--fabric", "shm", "--sizes", "8,64", "--rounds", "4", "--iters", "200", "--warmup", "0", "--pct", "90", "-q", "-o", old); code != 0 {
		t.Fatal(errs)
	}
	all, err := report.Read(old)
	if err != nil || len(all) != 2 || len(all[0].Rounds) != 4 || len(all[1].Rounds) != 4 {
		t.Fatalf("%v, %v", all, err)
	}
	f, err := os.Create(slow)
	if err != nil {
		t.Fatal(err)
	}
	e := json.NewEncoder(f)
	for _, s := range all {
		for i := range s.Rounds {
			s.Rounds[i].P50 *= float64(3 + i)
		}
		if err := e.Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := ibbench(t, "lat", "get", "--fabric", "shm", "--size", "8", "--iters", "50", "--warmup", "0", "-q", "-o", one); code != 0 {
		t.Fatal(errs)
	}
	for _, c := range []struct {
		name, args string
		code       int
		says       []string
	}{
		{"itself", old + " " + old, exitOK, []string{"lat get size 8 shm", "no difference"}},
		{"slower", old + " " + slow, exitFailed, []string{"slower"}},
		{"faster", slow + " " + old, exitOK, []string{"faster"}},
		{"slower within the threshold", "--threshold 900 " + old + " " + slow, exitOK, []string{"no difference"}},
		{"one run", old + " " + one, exitOK, []string{"too few rounds", "--rounds 7", "only in the first: lat get size 64 shm"}},
		{"JSON", "--format json " + old + " " + slow, exitFailed, []string{`"verdict": "slower"`}},
		{"no file", old + " " + dir + "/none.json", exitUsage, []string{"no such file"}},
		{"no results", old + " /proc/self/status", exitUsage, []string{"no results of ibbench as JSON"}},
		{"unknown figure", "--metrics p42 " + old + " " + old, exitUsage, []string{"p50, mean, p99"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, errs, code := ibbench(t, append([]string{"compare"}, strings.Fields(c.args)...)...)
			for _, s := range c.says {
				if !strings.Contains(out+errs, s) {
					t.Errorf("it does not say %q", s)
				}
			}
			if code != c.code || t.Failed() {
				t.Errorf("exit code %d, want %d:\n%s%s", code, c.code, out, errs)
			}
		})
	}
}

func TestReportIsWrittenOfResults(t *testing.T) {
	dir := t.TempDir()
	results, page := filepath.Join(dir, "r.json"), filepath.Join(dir, "r.html")
	if _, errs, code := ibbench(t, "lat", "get", "--fabric", "shm", "--sizes", "8,64", "--iters", "200", "--warmup", "0", "-q", "-o", results); code != 0 {
		t.Fatal(errs)
	}
	out, errs, code := ibbench(t, "report", results, "-o", page, "--title", "R & D")
	text, err := os.ReadFile(page)
	if code != exitOK || err != nil || !strings.Contains(out, "2 results in 1 section") || !strings.Contains(string(text), "<h1>R &amp; D</h1>") {
		t.Errorf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	exits(t, nil, []exit{
		{"report " + results, 2, "--output"},
		{"report " + results + " -o " + dir + "/r.pdf", 2, "FILE.html"},
		{"report " + dir + "/none.json -o " + page, 2, "no such file"},
		{"report " + results + " -o /no/such/directory/r.html", 3, "no such file"},
	})
}

func TestComparingFiguresOf0SaysSo(t *testing.T) {
	old := filepath.Join(t.TempDir(), "old.json")
	if _, errs, code := ibbench(t, "lat", "get", "--fabric", "shm", "--size", "8", "--iters", "50", "--warmup", "0", "-q", "-o", old); code != 0 {
		t.Fatal(errs)
	}
	all, err := report.Read(old)
	if err != nil {
		t.Fatal(err)
	}
	all[0].Result.P["50"] = 0
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(old, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	exits(t, nil, []exit{
		{"compare " + old + " " + old, 2, "have nothing to compare: lat get size 8 shm: its p50 in the first is 0 or was not reported, and no change can be told; measure more operations per sample (lat --batch)"},
	})
}
