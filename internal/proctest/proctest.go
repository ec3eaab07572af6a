// Package proctest starts other processes for a test, and waits until they are gone.
package proctest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Child is this test binary again, in a process of its own; its TestMain finds out from the
// environment what it shall do. It talks with the test over its standard input and output.
type Child struct {
	Cmd *exec.Cmd
	In  io.WriteCloser
	Out *bufio.Scanner
}

// Start starts a child with env added to the environment. It is killed when the test ends.
func Start(t testing.TB, env ...string) *Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error means that it has ended
		_ = cmd.Wait()
	})
	return &Child{cmd, in, bufio.NewScanner(out)}
}

// Gone waits until processes have ended. A zombie has ended too: it waits for its parent, which for
// an orphan may be a container's idle init.
func Gone(t testing.TB, pids ...int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, pid := range pids {
		for stat := running(pid); stat != nil; stat = running(pid) {
			if time.Now().After(deadline) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				t.Fatalf("process %d is still there: %s", pid, stat)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// running is a process's line in /proc, or nil.
func running(pid int) []byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	if i := bytes.LastIndexByte(stat, ')'); i > 0 && bytes.HasPrefix(stat[i:], []byte(") Z")) {
		return nil
	}
	return append(stat, ' ') // not nil, even if it cannot be read
}
