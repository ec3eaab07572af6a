package launch

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// obstacle is an output that takes a part of what is written, and then nothing for some times.
type obstacle struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	err   error
	times int // -1: for ever
}

func (w *obstacle) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.times != 0 {
		w.times--
		n := len(p) / 2
		w.buf.Write(p[:n])
		return n, &os.PathError{Op: "write", Path: "out", Err: w.err}
	}
	return w.buf.Write(p)
}

func TestAnObstacleThatPassesLosesNothing(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EAGAIN} {
		w := &obstacle{err: err, times: 3}
		r := sh(t, 1, `i=0; while [ $i -lt 2000 ]; do echo "line $i"; i=$((i+1)); done`, func(c *Config) { c.Stdout, c.Grace = w, 20*time.Second })
		var want strings.Builder
		for i := range 2000 {
			fmt.Fprintf(&want, "line %d\n", i)
		}
		if r.code != 0 || r.err != nil || w.buf.String() != want.String() {
			t.Errorf("%v: %d bytes arrived of %d; %+v", err, w.buf.Len(), want.Len(), r)
		}
		if said := strings.Count(r.msg, "standard output: "); said != map[bool]int{true: 0, false: 1}[err == syscall.EAGAIN] {
			t.Errorf("%v: said %d times: %s", err, said, r.msg)
		}
	}
}

func TestADiskThatStaysFullEndsAfterTheGrace(t *testing.T) {
	r := sh(t, 2, `echo text`, func(c *Config) { c.Stdout = &obstacle{err: syscall.ENOSPC, times: -1} })
	if r.err == nil || !strings.Contains(r.err.Error(), "no space left on device") || r.code == 0 {
		t.Errorf("%+v", r)
	}
}

// A rank waits at its pipe as long as the output takes nothing.
func TestARankWaitsForItsOutput(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	begun := filepath.Join(t.TempDir(), "begun")
	done := make(chan int64)
	go func() {
		time.Sleep(300 * time.Millisecond)
		_ = os.WriteFile(begun, nil, 0o600)
		n, _ := io.Copy(io.Discard, in)
		done <- n
	}()
	const bytes = 4 << 20
	r := sh(t, 1, fmt.Sprintf("head -c %d /dev/zero; test -e %s", bytes, begun), func(c *Config) { c.Stdout, c.Grace = out, 20*time.Millisecond })
	out.Close()
	if n := <-done; n != bytes || r.code != 0 {
		t.Errorf("%d bytes of %d; code %d, %v", n, bytes, r.code, r.err)
	}
}

// The rank's pipe holds the rest when the rank has ended, for longer than a stray may keep it open.
func TestASlowReaderGetsTheRestOfAnEndedJob(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	done := make(chan int64)
	go func() {
		time.Sleep(drainTime + 500*time.Millisecond)
		n, _ := io.Copy(io.Discard, in)
		done <- n
	}()
	const bytes = 120 << 10 // in the pipe of the output, and in the pipe of the rank
	r := sh(t, 1, fmt.Sprintf("yes | head -c %d", bytes), func(c *Config) { c.Stdout, c.Grace = out, 20*time.Millisecond })
	out.Close()
	if n := <-done; n != bytes || r.code != 0 {
		t.Errorf("%d bytes of %d; code %d, %v", n, bytes, r.code, r.err)
	}
}

// Another process may make the open file that is the output non-blocking at any time. Its reader
// may take longer than Config.Grace, as where the pipe blocks.
func TestAPipeThatTurnsNonBlockingLosesNothing(t *testing.T) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	in, out := os.NewFile(uintptr(fds[0]), "in"), os.NewFile(uintptr(fds[1]), "out")
	defer in.Close()
	if err := syscall.SetNonblock(fds[1], true); err != nil {
		t.Fatal(err)
	}
	done := make(chan int64)
	go func() {
		time.Sleep(200 * time.Millisecond)
		n, _ := io.Copy(io.Discard, in)
		done <- n
	}()
	const bytes = 120 << 10 // in the pipe of the output, and in the pipe of the rank, which has ended
	r := sh(t, 1, fmt.Sprintf("head -c %d /dev/zero", bytes), func(c *Config) { c.Stdout, c.Grace = out, 20*time.Millisecond })
	out.Close()
	if n := <-done; n != bytes || r.code != 0 || r.err != nil {
		t.Errorf("%d bytes of %d; code %d, %v", n, bytes, r.code, r.err)
	}
}
