package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// asPeer makes the test binary be a tool of a peer, which prints this file.
const asPeer = "IBBENCH_TEST_AS_PEER"

// playPeer is a server that goes when its client has come, or a client that prints what a real one
// has printed.
func playPeer(path string, args []string) int {
	text, err := os.ReadFile(path)
	if err != nil || args[0] == "--version" {
		return 1
	}
	at := "127.0.0.1:" + args[slices.Index(args, "-p")+1]
	if args[len(args)-1] == "127.0.0.1" {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return 2
		}
		fmt.Print(string(text))
		_ = c.Close()
		return 0
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return 2
	}
	if c, err := l.Accept(); err == nil {
		_ = c.Close()
	}
	return 0
}

// script writes an executable into dir.
func script(t *testing.T, dir, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
}

// recorded is a directory with a stand-in for ucx_perftest.
func recorded(t *testing.T) string {
	t.Helper()
	text, err := filepath.Abs("testdata/ucx_perftest.txt")
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script(t, dir, "ucx_perftest", fmt.Sprintf("%s='%s' exec '%s' \"$@\"\n", asPeer, text, exe))
	return dir
}

// withPath runs the program with no other programs than those of a directory.
func withPath(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := program(t, args...)
	cmd.Env = append(cmd.Env, "PATH="+dir)
	return finish(t, cmd)
}

func TestUCXIsComparedInTheSameRounds(t *testing.T) {
	dir, results := recorded(t), filepath.Join(t.TempDir(), "r")
	out, errs, code := withPath(t, dir, "lat", "get", "--size", "8", "--iters", "200", "--fabric", "shm", "--peer", "ucx", "-q", "--assert", "p50<1000000x",
		"-o", results+".json", "-o", results+".csv", "-o", results+".bench")
	if code != 0 || !strings.Contains(out, "perftest get, fabric shm") || !strings.Contains(out, "UCX") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	all, err := report.Read(results + ".json")
	if err != nil || len(all) != 1 {
		t.Fatalf("%d series, %v", len(all), err)
	}
	s, p := all[0], all[0].Peer()
	ratio, interval := s.Value("ratio.p50"), s.Metrics["ratio.interval"]
	if s.Kind != "perftest" || p.Peer != "ucx" || p.Tool != "ucx_perftest" || len(p.Rounds) != 7 || p.Result.P["50"] != 10 || s.Has("ratio.p99") ||
		interval.Low <= 0 || interval.Low > ratio || ratio > interval.High {
		t.Errorf("%+v, ratio %+v", p, s.Metrics)
	}
	for suffix, want := range map[string]string{".csv": "ucx_p50", ".bench": "/impl=ucx-"} {
		if text, err := os.ReadFile(results + suffix); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s: %v\n%s", suffix, want, err, text)
		}
	}
}

// The peer fails in the third round, and in its two repetitions.
func TestRoundsBeforeAFailureAreReported(t *testing.T) {
	dir, results := recorded(t), filepath.Join(t.TempDir(), "r.json")
	tool := filepath.Join(dir, "ucx_perftest")
	real, err := os.ReadFile(tool)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(tool+".n", []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script(t, dir, "ucx_perftest", `read n <"$0.n"; echo $((n+1)) >"$0.n"; [ $n -lt 4 ] || exit 7`+strings.TrimPrefix(string(real), "#!/bin/sh"))
	_, errs, code := withPath(t, dir, "lat", "put", "--size", "8", "--iters", "200", "--fabric", "shm", "--peer", "ucx", "-q", "-o", results)
	if code != exitSetup || !strings.Contains(errs, "round 5: ") || !strings.Contains(errs, "exit status 7") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if all, err := report.Read(results); err != nil || len(all) != 1 || len(all[0].Peer().Rounds) != 2 {
		t.Errorf("%d series, %v", len(all), err)
	}
}

func TestARateIsSetAgainstMessagesASecond(t *testing.T) {
	out, errs, code := withPath(t, recorded(t), "rate", "put", "--iters", "2000", "--fabric", "shm", "--peer", "ucx", "--rounds", "2", "-q", "--assert", "rate>0x")
	if code != 0 || !strings.Contains(out, "98.00") || !strings.Contains(out, "Mop/s") { // 98002657 a second
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

// Whoever has the OSU micro-benchmarks has them in PATH.
func TestOSUIsComparedInTheSameRounds(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "mpirun.openmpi", `if [ "$1" = --version ]; then echo "mpirun.openmpi (OpenRTE) 4.1.4"; exit; fi
for a; do case $a in */osu_*) exec "$a" ;; esac; done
`)
	const row = "echo '# Size          Latency (us)'; echo '8 %s'\n"
	script(t, dir, "osu_latency", fmt.Sprintf("echo '# OSU MPI Latency Test v7.0'; "+row, "1.25"))
	script(t, dir, "osu_fop_latency", fmt.Sprintf("echo '# OSU MPI_Fetch_and_op latency Test v7.0'; "+row, "0.40"))
	for op, want := range map[string]string{"am": "2.500", "amo": "0.400"} {
		out, errs, code := withPath(t, dir, "lat", op, "--iters", "100", "--peer", "mpi", "--rounds", "1", "-q")
		if code != 0 || !strings.Contains(out, "perftest "+op+", fabric shm") || !strings.Contains(out, "OSU") || !strings.Contains(out, want) || !strings.Contains(out, "4.1.4") {
			t.Errorf("%s: exit code %d: %s%s", op, code, out, errs)
		}
	}
	_, errs, code := withPath(t, dir, "lat", "get", "--peer", "mpi", "--rounds", "1", "-q")
	if code != exitSetup || !strings.Contains(errs, "osu_get_latency: the OSU micro-benchmarks are not in PATH") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestWrongPeersAreRefused(t *testing.T) {
	exits(t, []string{"-q"}, []exit{
		{"lat --peer frob", 2, "frob"},
		{"lat get --peer ucx --warmup 0", 2, "--warmup: it does not go with --peer"},
		{"bw put --peer ucx --warmup-iters 7", 2, "--warmup-iters: it does not go with --peer"},
		{"lat get --peer ucx --depth 4", 2, "--depth: it does not go with --peer"},
		{"lat get localhost --peer ucx", 2, "HOST: it does not go with --peer"},
		{"bw put --peer ucx --depth 1,2", 2, "--depth"},
		{"bw put --peer ucx --duration 1s", 2, "--duration"},
		{"rate put --peer ucx --lanes 2", 2, "--lanes"},
		{"lat put --peer perftest --fabric shm", 2, "perftest measures RDMA devices"},
		{"lat am --peer mpi --fabric ibv", 2, "--peer mpi is for shm"},
		{"lat put --peer mpi", 3, "lat put has no counterpart in the OSU micro-benchmarks"},
		{"lat cas --peer ucx", 2, "compares put, get, amo, am"},
		{"rate put --peer ucx --assert p50<1x", 2, "it has rate"},
		{"lat get --peer ucx --iters 2", 2, "at least 5"},
	})
	dir := t.TempDir()
	for peer, want := range map[string]string{"ucx": "apt-get install ucx-utils", "mpi": "no Debian package has them"} {
		if _, errs, code := withPath(t, dir, "lat", "get", "--fabric", "shm", "--peer", peer, "-q"); code != exitSetup || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d: %s", peer, code, errs)
		}
	}
	_, errs, code := underLauncher(t, 2, "lat", "get", "--peer", "ucx", "-q")
	if code != exitUsage || !strings.Contains(errs, "run it without a launcher") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// The real tools, over the device in user space.
func TestPerftestOfOneMeasurement(t *testing.T) {
	for line, tool := range map[string]string{"lat get --size 8": "ib_read_lat", "rate put": "ib_write_bw"} {
		for _, needed := range []string{tool, "ib_write_lat"} {
			if _, err := exec.LookPath(needed); err != nil {
				t.Skipf("%v: make setup installs it", err)
			}
		}
		all := inUserSpace(t, nil, append(strings.Fields(line), "--iters", "50", "--peer", "perftest", "--rounds", "1")...)
		if s := all[0]; len(all) != 1 || s.Env.Fabric != "ibv" || s.Peer().Tool != tool || s.Value("ratio.mean") <= 0 || s.Peer().Peer != "" {
			t.Errorf("%s: %+v, ratio %+v", line, s.Peer(), s.Metrics)
		}
	}
}
