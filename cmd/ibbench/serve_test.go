package main

import (
	"bufio"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	servedSecret = "IBCONDUIT_SECRET=0123456789abcdef0123456789abcdef"
	otherSecret  = "IBCONDUIT_SECRET=f123456789abcdef0123456789abcdef"
)

// served starts ibbench serve. said has what it says, line by line.
func served(t *testing.T) (host string, server *exec.Cmd, said <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	cmd := program(t, "serve", "--listen", "127.0.0.1", "--port", fmt.Sprint(port))
	cmd.Env = append(cmd.Env, servedSecret)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
		close(lines)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	hears(t, lines, "waiting on port")
	return fmt.Sprintf("127.0.0.1:%d", port), cmd, lines
}

// hears waits for a line.
func hears(t *testing.T, said <-chan string, want string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case line, ok := <-said:
			if !ok {
				t.Fatalf("the server has ended before it said %q", want)
			}
			if strings.Contains(line, want) {
				return
			}
		case <-limit:
			t.Fatalf("the server does not say %q", want)
		}
	}
}

// client prepares a measurement with the server.
func client(t *testing.T, secret string, args ...string) *exec.Cmd {
	cmd := program(t, append(args, "--fabric", "shm", "--warmup", "1ms", "--warmup-iters", "1", "-q")...)
	cmd.Env = append(cmd.Env, secret)
	return cmd
}

func TestAHostThatServesNeedsNoLauncher(t *testing.T) {
	host, server, said := served(t)
	for _, args := range [][]string{{"lat", "get", host, "--sizes", "8,4K"}, {"lat", host, "--size", "8"}, {"bw", "am", host, "--size", "64", "--bidi"}, {"rate", "put", host, "--depth", "4"}} {
		out, errs, code := finish(t, client(t, servedSecret, append(args, "--iters", "50", "--format", "json")...))
		if code != 0 || !strings.Contains(out, `"launcher":"ibbench serve"`) || !strings.Contains(out, `"errors":0`) {
			t.Fatalf("%v: exit code %d, %s%s", args, code, errs, out)
		}
		hears(t, said, "measures")
	}
	// Who does not have the secret measures nothing, and disturbs nobody.
	if _, errs, code := finish(t, client(t, otherSecret, "lat", host, "--iters", "10")); code != exitSetup || !strings.Contains(errs, "does not hold this job's secret") {
		t.Errorf("another secret: exit code %d, %s", code, errs)
	}
	if _, errs, code := finish(t, client(t, servedSecret, "lat", host, "--iters", "10")); code != 0 {
		t.Errorf("after another secret: exit code %d, %s", code, errs)
	}
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()
	if code := server.ProcessState.ExitCode(); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("the server ends with %d", code)
	}
}

func TestAServerOutlivesItsClient(t *testing.T) {
	host, _, said := served(t)
	cmd := client(t, servedSecret, "lat", "get", host, "--size", "8", "--duration", "10m")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hears(t, said, "measures 1 point")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if _, errs, code := finish(t, client(t, servedSecret, "lat", "get", host, "--iters", "10")); code != 0 {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

func TestWhatIsNoHostIsNoOperation(t *testing.T) {
	exits(t, nil, []exit{
		{"lat no/operation", exitUsage, "want one of put, get, amo, cas, am, or a host where ibbench serve runs"},
		{"serve --port 0", exitUsage, "want 1 to 65535"},
		{"serve --cpu x", exitUsage, "--cpu"},
	})
	for s, want := range map[string][2]string{
		"node2": {"node2", "18516"}, "node2:7": {"node2", "7"}, "::1": {"::1", "18516"}, "[::1]:7": {"::1", "7"}, "[::1]": {"::1", "18516"}, "10.0.0.1": {"10.0.0.1", "18516"},
	} {
		if h, p := hostPort(s); h != want[0] || p != want[1] {
			t.Errorf("%s is %s and %s", s, h, p)
		}
	}
}
