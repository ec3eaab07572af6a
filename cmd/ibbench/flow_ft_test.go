package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/bench"
)

func TestFTPrintsItsTables(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	r := flowJSON[ftReport](t, "ft", "--quick", "--limit", "0", "-o", file("a.txt"), "-o", file("a.csv"), "-o", file("a.svg"))
	if r.Kind != "flow-ft" || r.Class != "S" || len(r.Ample) != 3 || len(r.Limits) != 0 || len(r.Parts) != 6 {
		t.Fatalf("%+v", r)
	}
	for _, run := range append(r.Ample, r.Parts...) {
		if run.Failed != "" || run.Elapsed <= 0 || run.Received <= 0 || run.Peak > run.Sizes.InFlight {
			t.Errorf("%+v", run)
		}
	}
	for name, want := range map[string]string{"a.txt": "8 tokens", "a.csv": `flow,"ft, class S",iteration,shm,`, "a.svg": "parts of a rank"} {
		if text, err := os.ReadFile(file(name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %q in %s: %v", want, text, err)
		}
	}
}

// Runs in memory groups say what a rank has anyway, and with enough memory have no faults to speak
// of.
func TestFTWithinAMemoryGroup(t *testing.T) {
	if testing.Short() {
		t.Skip("it swaps for some seconds")
	}
	grouped(t)
	r := flowJSON[ftReport](t, "ft", "--class", "W", "--tokens", "4", "--parts-of", "none", "--limits", "512M")
	if len(r.Ample) != 2 || len(r.Limits) != 2 || len(r.Knee) != 2 || r.Ample[0].Sizes.InFlight <= r.Ample[1].Sizes.InFlight {
		t.Fatalf("%+v", r)
	}
	for _, run := range r.Ample { // what a rank has anyway differs by megabytes between runs
		if r.Knee[run.Arm] != run.Before+run.Sizes.Persistent+run.Sizes.InFlight {
			t.Errorf("the knee of %s at %d: %+v", run.Arm, r.Knee[run.Arm], run)
		}
	}
	for _, run := range append(r.Ample, r.Limits...) {
		if run.Failed != "" || run.Before <= 0 || run.Faults > 100 {
			t.Errorf("%+v", run)
		}
	}
}

func TestAllToAllComparesItsWays(t *testing.T) {
	r := flowJSON[allToAllReport](t, "alltoall", "--quick")
	if r.Kind != "flow-alltoall" || len(r.Points) != 3 || len(r.Sides) != len(bench.AllToAllSides(2, 1)) {
		t.Fatalf("%+v", r)
	}
	for _, p := range r.Points {
		for _, s := range r.Sides {
			if p.Micros[s.Name] <= 0 || p.Micros[s.Name] > p.Median[s.Name] {
				t.Errorf("%s, %d bytes: least %v, median %v", s.Name, p.Size, p.Micros[s.Name], p.Median[s.Name])
			}
		}
	}
}

func TestNonsenseOfFTAndAllToAllIsRefused(t *testing.T) {
	for _, args := range [][]string{
		{"ft", "--parts", "3"}, {"ft", "--parts", "0"}, {"ft", "--tokens", "0"}, {"ft", "--iterations", "99"}, {"ft", "-n", "3"}, {"ft", "--parts-of", "x"},
		{"ft", "--limits", "x"}, {"ft", "--limits", "0"}, {"ft", "--duration", "0s"}, {"alltoall", "--most", "-1s"}, {"ft", "--class", "Z"}, {"alltoall", "--rounds", "0"}, {"alltoall", "--sizes", "8M"}, {"alltoall", "--limit", "1G"},
	} {
		if _, errs, code := ibbench(t, append([]string{"flow"}, args...)...); code != exitUsage || errs == "" {
			t.Errorf("%v: exit code %d, %q", args, code, errs)
		}
	}
}
