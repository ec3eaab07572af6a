package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// measuring starts a measurement that lasts, and returns when its ranks have mapped each other.
func measuring(t *testing.T, stdout io.Writer, op string, args ...string) (cmd *exec.Cmd, stderr *bufio.Reader) {
	t.Helper()
	cmd = program(t, append([]string{"lat", op, "--fabric", "shm", "--size", "8", "--duration", "1m"}, args...)...)
	cmd.Stdout = stdout
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	joined := 0
	for begin := time.Now(); joined < 2; time.Sleep(5 * time.Millisecond) {
		joined = 0
		for _, pid := range childrenOf(t, cmd.Process.Pid) {
			if maps, _ := os.ReadFile("/proc/" + pid + "/maps"); strings.Count(string(maps), "/memfd:ibconduit-segment") > 1 {
				joined++
			}
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%d ranks have joined", joined)
		}
	}
	return cmd, bufio.NewReader(pipe)
}

func TestASignalIsTheExitCodeAndJSONIsWhole(t *testing.T) {
	for sig, want := range map[syscall.Signal]struct {
		code int
		says string
	}{syscall.SIGINT: {130, "interrupted"}, syscall.SIGTERM: {143, "terminated"}} {
		var out bytes.Buffer
		cmd, stderr := measuring(t, &out, "get", "--format", "json")
		end(t, cmd, stderr, sig, want.code, want.says)
		var all []report.Series
		if err := json.Unmarshal(out.Bytes(), &all); err != nil || all == nil || len(all) != 0 {
			t.Errorf("%v: %v, %d series in %q", sig, err, len(all), out.String())
		}
	}
}

// end ends the program by a signal; it must leave no rank behind.
func end(t *testing.T, cmd *exec.Cmd, stderr io.Reader, sig syscall.Signal, want int, says string) {
	t.Helper()
	ranks := childrenOf(t, cmd.Process.Pid)
	if len(ranks) != 2 {
		t.Errorf("%d ranks are running", len(ranks))
	}
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(stderr)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != want || !strings.Contains(string(rest), says) {
		t.Errorf("exit code %d, %q", code, rest)
	}
	for _, pid := range ranks {
		if _, err := os.Stat(filepath.Join("/proc", pid)); !os.IsNotExist(err) {
			t.Errorf("rank with pid %s is still there", pid)
		}
	}
}

// childrenOf lists the processes whose parent is pid (proc(5), stat).
func childrenOf(t *testing.T, pid int) (pids []string) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		text := string(b)
		f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(f) > 1 && f[1] == strconv.Itoa(pid) {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

func TestARankThatDiesEndsTheMeasurement(t *testing.T) {
	cmd, stderr := measuring(t, nil, "put")
	ranks := childrenOf(t, cmd.Process.Pid)
	if len(ranks) != 2 {
		t.Fatalf("%d ranks are running", len(ranks))
	}
	pid, err := strconv.Atoi(ranks[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(stderr)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitSetup || !bytes.Contains(said, []byte("signal: killed")) {
		t.Errorf("exit code %d, %q should say how the rank ended", code, said)
	}
}
