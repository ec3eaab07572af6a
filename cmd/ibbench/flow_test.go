package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/memgroup"
	"github.com/ibconduit/conduit/internal/racetest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// flowJSON runs a command for JSON, and returns all that it found.
func flowJSON[T any](t *testing.T, args ...string) (found T) {
	t.Helper()
	out, errs, code := ibbench(t, append([]string{"flow"}, append(args, "--format", "json", "-q")...)...)
	if code != 0 || errs != "" {
		t.Fatalf("%v: exit code %d, standard error %q", args, code, errs)
	}
	decode := func(text []byte, to any) {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(to); err != nil {
			t.Fatalf("%v: %v in %q", args, err, text)
		}
	}
	var all []*report.Series
	if decode([]byte(out), &all); len(all) == 0 || !all[0].Has("flow.arm") {
		t.Fatalf("%v: no series in %q", args, out)
	}
	text, _ := all[0].Raw.(json.RawMessage)
	decode(text, &found)
	return found
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

func TestJacobiPrintsItsTables(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	r := flowJSON[jacobiReport](t, "jacobi", "--limit", "0", "--edge", "8", "--iterations", "3", "--arms", strings.Join(bench.JacobiArms, ","),
		"--sizes", "2,3", "--sweep", "1,6", "-o", file("a.txt"), "-o", file("a.csv"), "-o", file("a.svg"))
	if len(r.Runs) != 8 || len(r.Sweep) != 2 || r.Limit != 0 {
		t.Fatalf("%+v", r)
	}
	for _, run := range r.Runs {
		if run.Failed != "" || run.Elapsed <= 0 || run.Peak <= 0 || run.Sizes.Persistent != int64(run.Cubes)*2*2*4096 {
			t.Errorf("%+v", run)
		}
	}
	text, err := os.ReadFile(file("a.txt"))
	for _, want := range []string{"16*16*16", "24*16*16", "normal", "adaptive", "tokens  ms an iteration"} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %q in %s: %v", want, text, err)
		}
	}
	if text, err := os.ReadFile(file("a.csv")); err != nil || strings.Count(string(text), "\n") != 11 {
		t.Errorf("%s: %v", text, err)
	}
	f, err := os.Open(file("a.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := xml.NewDecoder(f)
	paths := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && (e.Name.Local == "path" || e.Name.Local == "rect") {
			paths++
		}
	}
	if paths < 4*6+2*4+1 {
		t.Errorf("%d lines and bars in the plots", paths)
	}
}

// at is the run of an arm at a size.
func (o *jacobiReport) at(arm string, cubes int) *flowRun {
	for i, r := range o.Runs {
		if r.Arm == arm && r.Cubes == cubes {
			return &o.Runs[i]
		}
	}
	return nil
}

func TestWithLittleMemoryTokensFaultLess(t *testing.T) {
	grouped(t)
	// Faces of normal take 3/8 of the arrays: 20 MiB of these and 7.5 of faces do not fit 28 MiB, of
	// which a rank has about 5 for itself; without the faces they do.
	var r jacobiReport
	var normal, tokens *flowRun
	for range 3 {
		r = flowJSON[jacobiReport](t, "jacobi", "--limit", "28M", "--edge", "32", "--stencil", "13", "--iterations", "2", "--arms", "normal,tokens",
			"--sizes", "40", "--wave", "--swap", "96M", "--timeout", "4m")
		normal, tokens = r.at("normal", 40), r.at("tokens", 40)
		if tokens == nil || !strings.Contains(tokens.Failed, "signal: killed") {
			break
		}
		// On a busy machine the kernel may end what swaps though there is swap space left: "What does
		// not fit can die" in docs/memory-aware-flow.md.
		t.Log(tokens.Failed)
	}
	if normal == nil || tokens == nil || tokens.Failed != "" || tokens.Peak > 10*tokens.Sizes.Piece {
		t.Fatalf("%+v", r)
	}
	if normal.Failed == "" && normal.Faults <= 10*tokens.Faults {
		t.Errorf("%d major faults with sends, %d with tokens", normal.Faults, tokens.Faults)
	}
	if r.Touched != 0 && (r.Touched < 20<<20 || r.Touched > 28<<20) {
		t.Errorf("%d bytes of 28 MiB can be touched", r.Touched)
	}
	if len(r.Knees) != 2 || r.Knees[0].Tau != 0.375 || r.Fixed["tokens"] <= 0 || len(r.Wave) == 0 {
		t.Errorf("%+v", r)
	}
}

func TestAHogComesIntoARun(t *testing.T) {
	grouped(t)
	r := flowJSON[jacobiReport](t, "jacobi", "--hog", "4M", "--limit", "48M", "--edge", "32", "--stencil", "13", "--sizes", "16", "--phase", "1s", "--swap", "96M")
	if r.Hog == nil || len(r.Hog.Rows) != 5 || r.Hog.Whole <= 0 {
		t.Fatalf("%+v", r)
	}
	for _, row := range r.Hog.Rows {
		if row.Failed != "" || row.Whole < 2 || row.Phase1+row.Phase2 <= 0 {
			t.Errorf("%+v", row)
		}
	}
}

func TestJacobiOverVerbsWithLittleMemory(t *testing.T) {
	rdmatest.Device(t)
	grouped(t)
	r := flowJSON[jacobiReport](t, "jacobi", "--fabric", "ibv", "--limit", "64M", "--edge", "16", "--iterations", "2", "--arms", "normal,tokens", "--sizes", "4", "--swap", "1M", "--timeout", "4m")
	for _, run := range r.Runs {
		if run.Failed != "" || run.Pinned == 0 {
			t.Errorf("%+v", run)
		}
	}
	if len(r.Runs) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestIncastPrintsItsTable(t *testing.T) {
	r := flowJSON[incastReport](t, "incast", "--quick", "--memory", "1,4", "--size", "8K")
	if len(r.Rows) != 3 {
		t.Fatalf("%+v", r)
	}
	for _, row := range r.Rows {
		if row.GBps <= 0 || row.Share <= 0 || row.Peak > row.Limit || row.Memory > 0 && row.Limit != int64(row.Memory)*8192 {
			t.Errorf("%+v", row)
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
	run("flow", "incast", "--memory", "1,4", "--size", "8K", "--payloads", "16", "--rounds", "4", "-q", "-o", file("incast.ndjson"), "-o", file("incast.bench"))
	run("flow", "alltoall", "--quick", "-q", "-o", file("alltoall.json"))
	run("flow", "ft", "--class", "S", "--limit", "0", "--parts-of", "2,4", "--iterations", "1", "-q", "-o", file("ft.json"))
	run("report", file("jacobi.json"), file("incast.ndjson"), file("alltoall.json"), file("ft.json"), "-o", file("report.html"))
	page, err := os.ReadFile(file("report.html"))
	for _, want := range []string{"flow jacobi", "6 tokens", "flow incast", "memory for all", "flow alltoall", "pairwise", "flow ft", "us by cubes along x", "<svg"} {
		if err != nil || !strings.Contains(string(page), want) {
			t.Errorf("no %q in the report: %v", want, err)
		}
	}
	run("flow", "ft", "--class", "W", "--limit", "0", "--parts-of", "none", "--iterations", "1", "-q", "-o", file("w.json"))
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
		"ft --class S --limit 0 --parts 4 --parts-of 4" + strings.Repeat(",8", 500),
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
	for _, args := range []string{"ft --class S --swap x", "alltoall --timeout 1ns"} {
		out, errs, code := ibbench(t, append(append([]string{"flow"}, strings.Fields(args)...), "-q", "-o", path)...)
		if text, err := os.ReadFile(path); code == 0 || out != "" || err != nil || string(text) != "earlier" {
			t.Errorf("%s: exit code %d: %q, %s; %v, %q", args, code, out, errs, err, text)
		}
	}
}

func TestAHogEndsInTime(t *testing.T) {
	if _, errs, code := ibbench(t, "flow", "hog", "1M", "--duration", "50ms", "--sawtooth", "200ms", "-q"); code != 0 || errs != "" {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestNonsenseOfFlowIsRefused(t *testing.T) {
	for want, args := range map[string]string{
		"no arm":               "jacobi --limit 0 --arms normal,x",
		"tokens: want":         "jacobi --limit 0 --tokens -1",
		"--edge, --iterations": "jacobi --limit 0 --edge 0",
		"a rank has about":     "jacobi --limit 16M",
		"needs a --limit":      "jacobi --limit 0 --hog 1M",
		"--hog -1M":            "jacobi --limit 0 --hog -1M",
		"--sizes":              "jacobi --limit 0 --sizes 0",
		"no format":            "incast --payloads 100000 -o x.svg",
		"payloads of 4 bytes":  "incast --size 4",
		"--memory 0":           "incast --memory 0",
		"want times above 0":   "hog 1M --duration -1s",
		"want 1 byte or more":  "hog 0 --duration 1s",
		"the hog's x":          "hog x",
		"of swap space":        "hog 4096T --duration 1s",
		"/nowhere/x.json":      "incast --payloads 100000 -o /nowhere/x.json",
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

func TestIterationsAreOfThePhaseTheyEndIn(t *testing.T) {
	ms := func(n ...int) (d []time.Duration) {
		for _, v := range n {
			d = append(d, time.Duration(v)*time.Second)
		}
		return d
	}
	var r jacobiHogRow
	r.fill(ms(1, 1, 4, 2, 2, 3), 2*time.Second)
	if r.Phase1 != time.Second || r.Phase2 != 11*time.Second/4 || r.Soon != 2*time.Second || r.Whole != 6 {
		t.Errorf("%+v", r)
	}
}
