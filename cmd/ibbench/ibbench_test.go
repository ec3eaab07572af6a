package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/launch"
)

// asProgram makes the test binary be ibbench, its ranks included.
const asProgram = "IBBENCH_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		main()
	}
	os.Exit(m.Run())
}

// program prepares a run of ibbench.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// ibbench runs the program and returns what it wrote and its exit code.
func ibbench(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return finish(t, program(t, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// underLauncher runs the program as the ranks of a launcher.
func underLauncher(t *testing.T, ranks int, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code, err := launch.Run(t.Context(), launch.Config{
		N: ranks, Path: os.Args[0], Args: args, Env: append(os.Environ(), asProgram+"=1"), Stdout: &out, Stderr: &errs,
	})
	if err != nil {
		t.Error(err)
	}
	return out.String(), errs.String(), code
}

// decoded runs the program for JSON, which must be the only thing it writes.
func decoded(t *testing.T, args ...string) []report.Series {
	t.Helper()
	out, errs, code := ibbench(t, append(args, "--format", "json", "-q")...)
	if code != 0 || errs != "" {
		t.Fatalf("%v: exit code %d, standard error %q", args, code, errs)
	}
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	var all []report.Series
	if err := d.Decode(&all); err != nil {
		t.Fatalf("%v: %v in %q", args, err, out)
	}
	return all
}

// series is decoded for measurements between ranks.
func series(t *testing.T, args ...string) []report.Series {
	t.Helper()
	all := decoded(t, args...)
	for _, s := range all {
		check(t, s)
	}
	return all
}

// exit is how a command line ends.
type exit struct {
	args string
	code int
	says string // on standard error
}

// exits runs command lines, with further arguments, and compares how they end.
func exits(t *testing.T, further []string, cases []exit) {
	t.Helper()
	for _, c := range cases {
		_, errs, code := ibbench(t, append(strings.Fields(c.args), further...)...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit code %d, want %d; standard error %q should hold %q", c.args, code, c.code, errs, c.says)
		}
		if c.code == exitUsage && strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: the message is not one line: %q", c.args, errs)
		}
	}
}

// check tests what holds of every series.
func check(t *testing.T, s report.Series) {
	t.Helper()
	r := s.Result
	switch {
	case s.Schema != report.Schema, s.Env == nil, s.Env.Go == "", s.Env.Kernel == "", s.Env.From == "", s.Env.To == "", s.Env.Ranks < 2, s.Env.ClockNS <= 0:
		t.Errorf("the series does not say where it is from: %+v", s.Env)
	case r.Errors != 0:
		t.Errorf("%s %s at %d: %d operations left wrong bytes", s.Kind, s.Op, s.Size, r.Errors)
	case r.Count < 1, r.Mean <= 0, r.Min > r.P["50"], r.P["50"] > r.Max:
		t.Errorf("figures that cannot be: %+v", r)
	}
	if s.Hist != nil {
		var n int64
		for _, b := range s.Hist.Buckets {
			n += b[2]
		}
		if n != r.Count {
			t.Errorf("the histogram holds %d of %d samples", n, r.Count)
		}
	}
	var n int64
	for _, i := range s.Intervals {
		n += i.Count
	}
	if s.Kind == "lat" && n != r.Count {
		t.Errorf("the intervals hold %d of %d samples", n, r.Count)
	}
}

func TestLatencyOverSharedMemory(t *testing.T) {
	for _, c := range []struct {
		args       []string
		definition string
		sizes      []int64
	}{
		{[]string{"put", "--sizes", "1,3,7,8,9,15,64,4097,64K"}, "rtt/2", []int64{1, 3, 7, 8, 9, 15, 64, 4097, 65536}},
		{[]string{"put", "--ack", "--sizes", "1,8,100"}, "op", []int64{1, 8, 100}},
		{[]string{"get", "--sizes", "1,8,4K"}, "op", []int64{1, 8, 4096}},
		{[]string{"amo"}, "op", []int64{8}},
		{[]string{"cas"}, "op", []int64{8}},
		{[]string{"get", "--sizes", "8,64", "--depth", "4"}, "op", []int64{8, 64}},
		{[]string{"amo", "--depth", "64"}, "op", []int64{8}},
		{[]string{"get", "--size", "8", "--batch", "16"}, "op", []int64{8}},
		{[]string{"put", "--size", "8", "--rate", "20k"}, "rtt", []int64{8}},
		{[]string{"amo", "-n", "3"}, "op", []int64{8}},
	} {
		args := append([]string{"lat", "--fabric", "shm", "--iters", "200", "--warmup", "1ms", "--warmup-iters", "20"}, c.args...)
		all := series(t, args...)
		if len(all) != len(c.sizes) {
			t.Fatalf("%v: %d series", c.args, len(all))
		}
		for i, s := range all {
			if s.Kind != "lat" || s.Size != c.sizes[i] || s.Definition != c.definition || s.Result.Count != 200 || s.Env.Fabric != "shm" || s.Hist == nil {
				t.Errorf("%v: %s %s size %d, %s, %d samples, fabric %s", c.args, s.Kind, s.Op, s.Size, s.Definition, s.Result.Count, s.Env.Fabric)
			}
		}
	}
}

func TestThroughputOverSharedMemory(t *testing.T) {
	for _, c := range []struct {
		args        []string
		points, ops int64
	}{
		{[]string{"bw", "put", "--sizes", "64,1M"}, 2, 300},
		{[]string{"bw", "get", "--sizes", "64K", "--bidi"}, 1, 600},
		{[]string{"bw", "put", "--sizes", "4K", "-n", "4", "--lanes", "2"}, 1, 1200},
		{[]string{"bw", "put", "--sizes", "4K", "--depth", "1,8,64"}, 3, 300},
		{[]string{"rate", "put", "--depth", "1,16"}, 2, 300},
		{[]string{"rate", "get", "--depth", "16", "--lanes", "1..4"}, 3, 0},
		{[]string{"rate", "amo", "--depth", "16", "--lanes", "2"}, 1, 600},
	} {
		args := append(c.args, "--fabric", "shm", "--iters", "300", "--warmup", "1ms", "--warmup-iters", "20")
		all := series(t, args...)
		if int64(len(all)) != c.points {
			t.Fatalf("%v: %d series", c.args, len(all))
		}
		for _, s := range all {
			r := s.Result
			if c.ops != 0 && r.Count != c.ops || r.Bytes != r.Count*s.Size || r.ElapsedNS <= 0 || r.PerSecond <= 0 || len(s.Intervals) == 0 {
				t.Errorf("%v: %+v", c.args, r)
			}
		}
	}
}

func TestMessagesOverSharedMemory(t *testing.T) {
	for _, c := range []struct {
		args       []string
		definition string
		sizes      []int64
		count      int64
	}{
		{[]string{"lat", "am"}, "rtt", []int64{0}, 200},
		{[]string{"lat", "am", "--sizes", "short,1,8,4K,20000"}, "rtt", []int64{0, 1, 8, 4096, 20000}, 200},
		{[]string{"lat", "am", "--rate", "5k", "-n", "3"}, "rtt", []int64{0}, 200},
		{[]string{"bw", "am", "--sizes", "1,4K", "--depth", "8"}, "throughput", []int64{1, 4096}, 200},
		{[]string{"bw", "am", "--sizes", "4K", "--bidi", "-n", "4"}, "throughput", []int64{4096}, 800},
		{[]string{"rate", "am", "--lanes", "2", "--goroutines", "1,3"}, "throughput", []int64{0, 0}, 0},
		{[]string{"rate", "am", "--sizes", "8", "--lanes", "1,2"}, "throughput", []int64{8, 8}, 0},
	} {
		all := series(t, append(c.args, "--fabric", "shm", "--iters", "200", "--warmup", "1ms", "--warmup-iters", "20")...)
		if len(all) != len(c.sizes) {
			t.Fatalf("%v: %d series", c.args, len(all))
		}
		for i, s := range all {
			sent := s.Value("am.sent")
			if s.Op != "am" || s.Size != c.sizes[i] || s.Definition != c.definition || c.count != 0 && s.Result.Count != c.count {
				t.Errorf("%v: %s size %d, %s, %d samples", c.args, s.Op, s.Size, s.Definition, s.Result.Count)
			}
			if g := s.Plan.Goroutines; g != 0 && s.Result.Count != 200*int64(g)*int64(s.Env.Ranks/2)*(1+map[bool]int64{true: 1}[s.Plan.Bidi]) {
				t.Errorf("%v: %d posts of %d goroutines", c.args, s.Result.Count, g)
			}
			if sent != s.Value("am.handled") || sent < float64(s.Result.Count) || !s.Has("am.rnr") || s.Value("am.rnr") != 0 {
				t.Errorf("%v: %+v", c.args, s.Metrics)
			}
		}
	}
}

func TestADurationBoundsOperationsThatTakeLonger(t *testing.T) {
	s := series(t, "bw", "put", "--fabric", "shm", "--size", "64M", "--duration", "1ms", "--warmup", "1ms")[0]
	if s.Result.Count > 8 { // 256 would be four times the depth
		t.Errorf("%d operations of 64 MiB in %v", s.Result.Count, time.Duration(s.Result.ElapsedNS))
	}
}

func TestADurationBoundsAMeasurement(t *testing.T) {
	for _, d := range []time.Duration{50 * time.Millisecond, 400 * time.Millisecond, 3200 * time.Millisecond} {
		s := series(t, "lat", "get", "--fabric", "shm", "--size", "8", "--duration", d.String(), "--warmup", "0", "--warmup-iters", "0")[0]
		var took int64
		for _, i := range s.Intervals {
			took += i.ElapsedNS
		}
		switch n := len(s.Intervals); {
		case s.Result.Count == 0:
			t.Errorf("no samples in %d intervals, %v", n, time.Duration(took))
		case n > 1:
			return
		}
	}
	t.Error("each measurement was one interval, which nothing bounds") // a single one may be held up by other programs
}

func TestExitCodes(t *testing.T) {
	exits(t, nil, []exit{
		{"frob", 2, "frob"},
		{"perftest lat --iters 2", 2, "at least 5"},
		{"perftest lat --iters 0", 2, "at least 5"},
		{"mr hit --fake --iters 0", 2, "--iters 0"},
		{"perftest lat --assert p99<5us", 2, "1.15x"},
		{"perftest lat -d no_such_device", 3, "no_such_device"},
		{"perftest lat --ops am,frob", 2, "put, get, amo, am"},
	})
	exits(t, nil, []exit{{"doctor --fabric tcp", 2, "auto"}, {"doctor --format yaml", 2, "json"}})
	exits(t, []string{"--iters", "50", "--warmup", "0", "-q"}, []exit{
		{"lat amo --fabric tcp", 2, "--fabric must be one of"},
		{"lat amo --fabric ibv -d no_such_device", 3, "no_such_device"},
		{"lat amo -d no_such_device", 3, "ibbench doctor"},
	})
	exits(t, []string{"--fabric", "shm", "--iters", "50", "--warmup", "0", "-q"}, []exit{
		{"lat amo --assert p99<1000s --assert min>=0ns", 0, ""},
		{"lat amo --assert p50<1000s --assert p99.99<0.001ns", 1, ""},
		{"bw put --sizes 64 --assert bw>1000000GB/s", 1, ""},
		{"rate --depth 4 --assert rate>1/s", 0, ""},
		{"lat put --sizes 8..", 2, "--sizes"},
		{"lat put --sizes 64..8", 2, "goes down"},
		{"lat put --size 2G", 2, "want 1 to"},
		{"lat frob", 2, "frob"},
		{"lat amo --sizes 4", 2, "8 bytes"},
		{"lat amo --assert p99", 2, "METRIC"},
		{"lat amo --assert bw>1GB/s", 2, "no metric"},
		{"lat amo -o result.html", 2, ".json"},
		{"lat get --ack", 2, "--ack is for put"},
		{"lat amo -n 1", 2, "needs a peer"},
		{"bw put -n 3", 2, "even number"},
		{"lat amo --pct 101", 2, "--pct"},
		{"lat amo --cpu 5-2", 2, "--cpu"},
		{"lat put --rate fast", 2, "--rate"},
		{"lat amo --no-such-flag", 2, "--no-such-flag"},
		{"lat amo -o /no/such/directory/r.json", 3, "no such file"},
		{"lat amo --cpu 1023", 3, "processors"},
		{"lat amo --metrics 999.0.0.1:x", 3, "--metrics"},
		{"lat am --sizes 0", 2, "--sizes"},
		{"lat am --sizes 2M", 2, "want short, or 1 byte to 1M"},
		{"bw am --sizes short", 2, "use rate am"},
		{"lat put --depth 4", 2, "--ack"},
		{"lat am --depth 2", 2, "depth 2"},
		{"rate am --depth 1,4", 2, "one depth at a time"},
		{"rate am --goroutines 0", 2, "--goroutines"},
		{"rate put --goroutines 2", 2, "for am"},
	})
	exits(t, []string{"--fabric", "shm", "-q"}, []exit{
		{"lat am --iters=-5", 2, "--iters -5: want 1 or more"},
		{"lat am --duration=-5s", 2, "want a time above 0"},
		{"lat am --iters 0", 2, "--iters 0: want 1 or more"},
		{"bw put --duration 0", 2, "--duration 0s: want a time above 0"},
		{"lat am --warmup=-1ms", 2, "--warmup -1ms"},
		{"lat am --warmup-iters=-1", 2, "--warmup-iters -1"},
	})
}

func TestHelpIsNotAnError(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"lat", "--help"}, {"perftest", "--help"}} {
		if out, _, code := ibbench(t, args...); code != 0 || !strings.Contains(out, "Usage: ibbench") {
			t.Errorf("%v: exit code %d, %q", args, code, out)
		}
	}
}

func TestFilesAreWrittenInTheFormatOfTheirSuffix(t *testing.T) {
	dir := t.TempDir()
	file := func(n string) string { return filepath.Join(dir, n) }
	out, errs, code := ibbench(t, "lat", "amo", "--fabric", "shm", "--iters", "50", "-o", file("r.json"), "-o", file("r.csv"), "-o", file("r.txt"), "--pct", "50,75")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	if !strings.HasPrefix(out, "lat amo, fabric shm") || !strings.Contains(out, "p75") {
		t.Errorf("standard output: %s", out)
	}
	if !strings.Contains(errs, "fabric shm: asked for") {
		t.Errorf("standard error does not say which network it is and why: %q", errs)
	}
	var all []report.Series
	if b, err := os.ReadFile(file("r.json")); err != nil || json.Unmarshal(b, &all) != nil || len(all) != 1 {
		t.Errorf("r.json: %v, %d series", err, len(all))
	}
	f, err := os.Open(file("r.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if rows, err := csv.NewReader(f).ReadAll(); err != nil || len(rows) != 2 {
		t.Errorf("r.csv: %v, %d rows", err, len(rows))
	}
	if b, err := os.ReadFile(file("r.txt")); err != nil || string(b) != out {
		t.Errorf("r.txt differs from standard output: %v", err)
	}
}

func TestFlagsCanBeSetByVariables(t *testing.T) {
	cmd := program(t, "lat", "get")
	cmd.Env = append(cmd.Env, "IBBENCH_FABRIC=shm", "IBBENCH_SIZES=16,32", "IBBENCH_ITERS=20", "IBBENCH_FORMAT=csv", "IBBENCH_QUIET=true")
	out, errs, code := finish(t, cmd)
	if code != 0 || errs != "" || strings.Count(out, "\n") != 3 {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

func TestVariablesOfFlagsAreChecked(t *testing.T) {
	cmd := program(t, "cache", "list")
	cmd.Env = append(cmd.Env, "IBBENCH_ITER=20", "IBBENCH_SIZES_OF_SITE=1")
	if _, errs, code := finish(t, cmd); code != 0 || errs != "ibbench: IBBENCH_ITER is set and means nothing: is it IBBENCH_ITERS?\n" {
		t.Errorf("misspelt: exit code %d, %q", code, errs)
	}
	cmd = program(t, "lat", "put")
	cmd.Env = append(cmd.Env, "IBBENCH_SIZES=")
	if _, errs, code := finish(t, cmd); code != exitUsage || !strings.Contains(errs, "--sizes: the value is empty") {
		t.Errorf("empty: exit code %d, %q", code, errs)
	}
	for _, args := range [][]string{{"lat", "put", "--cpu", ""}, {"lat", "put", "--output="}} {
		if _, errs, code := ibbench(t, args...); code != exitUsage || !strings.Contains(errs, "the value is empty") {
			t.Errorf("%q: exit code %d, %q", args, code, errs)
		}
	}
}

func TestUnderALauncherOnlyRank0Prints(t *testing.T) {
	out, errs, code := underLauncher(t, 2, "lat", "put", "--size", "8", "--iters", "50", "--fabric", "shm", "--format", "ndjson")
	said := slices.DeleteFunc(slices.Collect(strings.Lines(errs)), func(line string) bool { return strings.HasPrefix(line, "ibbench: after ") }) // progress, on a busy machine
	if code != 0 || len(said) > 0 {
		t.Fatalf("exit code %d, %q", code, said)
	}
	var s report.Series
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("not one series: %v, %q", err, out)
	}
	check(t, s)
	if !strings.HasPrefix(s.Env.Launcher, "launch") {
		t.Errorf("launcher is %q", s.Env.Launcher)
	}
}

// All ranks learn of it at once, instead of waiting for the first point until rank 0 has waited for
// them to close.
func TestUnderALauncherAnErrorIsOneLine(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"bw put --fabric shm", exitUsage, ""}, // an odd number of ranks
	} {
		_, errs, code := underLauncher(t, 3, strings.Fields(c.args)...)
		if code != c.code || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, c.says) {
			t.Errorf("%s: exit code %d, %q", c.args, code, errs)
		}
	}
}
