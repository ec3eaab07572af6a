package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/memgroup"
	"github.com/ibconduit/conduit/internal/racetest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// flowJSON runs a command for JSON, and returns its runs.
func flowJSON(t *testing.T, args ...string) (all []*report.Series) {
	t.Helper()
	out, errs, code := ibbench(t, append([]string{"flow"}, append(args, "--format", "json", "-q")...)...)
	if code != 0 || errs != "" {
		t.Fatalf("%v: exit code %d, standard error %q", args, code, errs)
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %v in %q", args, err, out)
	}
	return all
}

// grouped skips a test where no memory group can be made, unless the machine is known to allow it
// (hack/test.sh). A VM has all that it takes, if it was given swap space.
func grouped(t *testing.T) {
	t.Helper()
	if racetest.Enabled {
		t.Skip("the race detector takes memory, too: the plain build measures what fits")
	}
	g, err := memgroup.Make("ibbench-test", 64<<20)
	if err == nil {
		err = g.Remove()
	}
	if err == nil && memgroup.FreeSwap() < 128<<20 {
		var s *memgroup.Swap
		if s, err = memgroup.MakeSwap(t.TempDir(), 16<<20); err == nil {
			err = s.Remove()
		}
	}
	if err == nil {
		return
	}
	if os.Getenv("IBCONDUIT_REQUIRE_MEMGROUP") == "1" || os.Getenv("IBCONDUIT_VM_INDEX") != "" {
		t.Fatalf("IBCONDUIT_REQUIRE_MEMGROUP=1, or a VM, which needs -swap 512M: %v", err)
	}
	t.Skipf("no limited memory here (IBCONDUIT_REQUIRE_MEMGROUP is not 1): %v", err)
}

func TestJacobiHasARowOfEachArmAndSize(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	all := flowJSON(t, "jacobi", "--limit", "0", "--edge", "8", "--iterations", "3", "--arms", strings.Join(bench.JacobiArms, ","),
		"--sizes", "2,3", "--tokens", "1,6", "-o", file("a.txt"), "-o", file("a.csv"))
	if len(all) != 10 {
		t.Fatalf("%d runs", len(all))
	}
	for _, s := range all {
		if s.Text("flow.failed") != "" || s.Result.Mean <= 0 || s.Value("flow.peak") <= 0 || int64(s.Value("flow.arrays")) < s.Size*2*2*4096 {
			t.Errorf("%+v, %+v", s.Result, s.Metrics)
		}
	}
	text, err := os.ReadFile(file("a.txt"))
	for _, want := range []string{"7 points of cubes of 8^3", "sizes in cubes along x", "normal", "adaptive", "1 token", "6 tokens"} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %q in %s: %v", want, text, err)
		}
	}
	if text, err := os.ReadFile(file("a.csv")); err != nil || strings.Count(string(text), "\n") != 11 {
		t.Errorf("%s: %v", text, err)
	}
}

// of is the run of an arm.
func of(all []*report.Series, arm string) *report.Series {
	if i := slices.IndexFunc(all, func(s *report.Series) bool { return s.Text("flow.arm") == arm }); i >= 0 {
		return all[i]
	}
	return nil
}

func TestWithLittleMemoryTokensFaultLess(t *testing.T) {
	grouped(t)
	// Faces of normal take 3/8 of the arrays: 20 MiB of these and 7.5 of faces do not fit 28 MiB, of
	// which a rank has about 5 for itself; without the faces they do.
	var normal, tokens *report.Series
	for range 3 {
		all := flowJSON(t, "jacobi", "--limit", "28M", "--edge", "32", "--stencil", "13", "--iterations", "2", "--arms", "normal,tokens",
			"--sizes", "40", "--swap", "96M", "--timeout", "4m")
		normal, tokens = of(all, "normal"), of(all, "6 tokens")
		if tokens == nil || !strings.Contains(tokens.Text("flow.failed"), "signal: killed") {
			break
		}
		// On a busy machine the kernel may end what swaps though there is swap space left: "What does
		// not fit can die" in docs/memory-aware-flow.md.
		t.Log(tokens.Text("flow.failed"))
	}
	if normal == nil || tokens == nil || tokens.Text("flow.failed") != "" || tokens.Value("flow.peak") > 10*8192 {
		t.Fatalf("%+v, %+v", normal, tokens)
	}
	if normal.Text("flow.failed") == "" && normal.Value("flow.faults") <= 10*tokens.Value("flow.faults") {
		t.Errorf("%v major faults with sends, %v with tokens", normal.Value("flow.faults"), tokens.Value("flow.faults"))
	}
}

func TestJacobiOverVerbsWithLittleMemory(t *testing.T) {
	rdmatest.Device(t)
	grouped(t)
	all := flowJSON(t, "jacobi", "--fabric", "ibv", "--limit", "64M", "--edge", "16", "--iterations", "2", "--arms", "normal,tokens", "--sizes", "4", "--swap", "1M", "--timeout", "4m")
	for _, s := range all {
		if s.Text("flow.failed") != "" {
			t.Errorf("%+v", s.Metrics)
		}
	}
	if len(all) != 2 {
		t.Errorf("%d runs", len(all))
	}
}

func TestFTHasARowOfEachArmLimitAndPart(t *testing.T) {
	all := flowJSON(t, "ft", "--quick", "--limits", "0")
	if len(all) != 3+6 {
		t.Fatalf("%d runs", len(all))
	}
	for _, s := range all {
		if s.Op != "ft" || s.Plan.Variant != "class S" || s.Text("flow.failed") != "" || s.Result.Mean <= 0 || s.Value("flow.peak") <= 0 {
			t.Errorf("%+v, %+v", s.Result, s.Metrics)
		}
	}
	if of(all, "normal").Value("flow.peak") <= of(all, "4 tokens").Value("flow.peak") {
		t.Error("tokens save nothing")
	}
}

// Runs with enough memory in their groups have no faults to speak of.
func TestFTWithinAMemoryGroup(t *testing.T) {
	grouped(t)
	all := flowJSON(t, "ft", "--class", "W", "--tokens", "4", "--parts-of", "none", "--limits", "512M", "--swap", "1M")
	if len(all) != 2 {
		t.Fatalf("%d runs", len(all))
	}
	for _, s := range all {
		if s.Text("flow.failed") != "" || s.Value("flow.faults") > 100 || s.Value("flow.limit") != 512<<20 {
			t.Errorf("%+v", s.Metrics)
		}
	}
}

func TestIncastHasARowOfEachBudget(t *testing.T) {
	all := flowJSON(t, "incast", "-n", "4", "--quick", "--memory", "1,4", "--size", "8K")
	if len(all) != 3 {
		t.Fatalf("%d rows", len(all))
	}
	for i, s := range all {
		if s.Result.Mean <= 0 || s.Value("flow.peak") > s.Value("flow.limit") || i > 0 && s.Value("flow.limit") != float64([]int{0, 1, 4}[i])*8192 {
			t.Errorf("%+v, %+v", s.Result, s.Metrics)
		}
	}
}

// What flow writes is read as all results are.
func TestResultsOfFlowAreReported(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	run := func(args ...string) string {
		t.Helper()
		out, errs, code := ibbench(t, args...)
		if code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, errs)
		}
		return out
	}
	run("flow", "jacobi", "--limit", "0", "--edge", "8", "--iterations", "2", "--arms", "normal,tokens", "--sizes", "2,3", "-q", "-o", file("jacobi.json"))
	run("flow", "incast", "-n", "4", "--memory", "1,4", "--size", "8K", "--payloads", "16", "--rounds", "4", "-q", "-o", file("incast.ndjson"), "-o", file("incast.bench"))
	run("flow", "ft", "--class", "S", "--limits", "0", "--parts-of", "2,4", "--iterations", "1", "-q", "-o", file("ft.json"))
	run("report", file("jacobi.json"), file("incast.ndjson"), file("ft.json"), "-o", file("report.html"))
	page, err := os.ReadFile(file("report.html"))
	for _, want := range []string{"flow jacobi", "6 tokens", "flow incast", "memory for all", "flow ft", "sizes in cubes along x", "width: 100%"} {
		if err != nil || !strings.Contains(string(page), want) {
			t.Errorf("no %q in the report: %v", want, err)
		}
	}
	run("flow", "ft", "--class", "W", "--limits", "0", "--parts-of", "none", "--iterations", "1", "-q", "-o", file("w.json"))
	if out, errs, code := ibbench(t, "compare", file("ft.json"), file("w.json")); code != exitUsage || !strings.Contains(errs, "class S") || !strings.Contains(errs, "class W") {
		t.Errorf("two classes are compared: exit code %d: %s%s", code, out, errs)
	}
	if out := run("compare", file("incast.ndjson"), file("incast.ndjson")); strings.Count(out, "no difference") != 3 {
		t.Errorf("a result compared with itself: %s", out)
	}
	lines, err := os.ReadFile(file("incast.bench"))
	if err != nil || strings.Count(string(lines), "MB/s") != 3 || !strings.Contains(string(lines), "/arm=memory_for_all/") {
		t.Errorf("%s: %v", lines, err)
	}
}

// Runs before an interrupt are reported.
func TestAnInterruptLosesNoRunsOfFlow(t *testing.T) {
	for _, args := range []string{
		"ft --class S --limits 0 --parts 4 --parts-of 4" + strings.Repeat(",8", 500),
		"incast -n 3 --memory 1 --size 4K --payloads 16 --rounds 1000",
	} {
		cmd := program(t, append([]string{"flow"}, strings.Fields(args+" --format json -q")...)...)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ranks := map[string]bool{} // 7: two runs have ended
		for end := time.Now().Add(20 * time.Second); len(ranks) < 7 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			for _, pid := range childrenOf(t, cmd.Process.Pid) {
				ranks[pid] = true
			}
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		var all []report.Series
		if err := json.Unmarshal(out.Bytes(), &all); err != nil || len(all) == 0 || !all[0].Has("flow.arm") || all[0].Result.Count == 0 || cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("%s: %v, %v, %d series in %q", args, cmd.ProcessState, err, len(all), out.String())
		}
	}
}

// What fails before it has measured anything leaves the results of another time as they are.
func TestAFailedFlowKeepsEarlierResults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "earlier.json")
	if err := os.WriteFile(path, []byte("earlier"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"ft --class S --swap x", "incast --timeout 1ns"} {
		out, errs, code := ibbench(t, append(append([]string{"flow"}, strings.Fields(args)...), "-q", "-o", path)...)
		if text, err := os.ReadFile(path); code == 0 || out != "" || err != nil || string(text) != "earlier" {
			t.Errorf("%s: exit code %d: %q, %s; %v, %q", args, code, out, errs, err, text)
		}
	}
}

func TestNonsenseOfFlowIsRefused(t *testing.T) {
	for want, args := range map[string]string{
		"no arm":              "jacobi --limit 0 --arms normal,x",
		"tokens":              "jacobi --limit 0 --tokens 0",
		"--edge and":          "jacobi --limit 0 --edge 0",
		"a rank has about":    "jacobi --limit 16M",
		"--sizes":             "jacobi --limit 0 --sizes 0",
		"these exist":         "incast --payloads 100000 -o x.svg",
		"payloads of 4 bytes": "incast --size 4",
		"--memory":            "incast --memory 0",
		"want times above 0":  "incast --duration=-1s",
		"swap space of":       "jacobi --swap 4096T",
		"/nowhere/x.json":     "incast --payloads 100000 -o /nowhere/x.json",
		"want a power of 2":   "ft --parts 3",
		"--parts and":         "ft --parts 0",
		"want 1 to":           "ft --iterations 99",
		"3 ranks":             "ft -n 3",
		"--parts-of":          "ft --parts-of x",
		"--limits x":          "ft --limits x",
		"--class":             "ft --class Z",
		"--rounds 0":          "incast --rounds 0",
	} {
		_, errs, code := ibbench(t, append([]string{"flow"}, strings.Fields(args)...)...)
		if code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %q; want %q", args, code, errs, want)
		}
	}
	_, errs, code := underLauncher(t, 2, "flow", "incast", "--quick", "-q")
	if code != exitUsage || !strings.Contains(errs, "run it without a launcher") {
		t.Errorf("under a launcher: exit code %d: %s", code, errs)
	}
}
