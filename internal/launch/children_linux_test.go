package launch

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A Ctrl-Z may stop a child between fork and exec, while who starts it waits for the exec.
func TestAChildStoppedBeforeItsProgramGoesOn(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		cmd := exec.Command("true")
		cmd.ExtraFiles = slices.Repeat([]*os.File{null}, 500) // they take a while
		var over atomic.Bool
		stopped := make(chan int, 1)
		first := lastPID(t) + 1
		go func() {
			for pid := first; !over.Load(); pid = first + (pid-first+1)%4 {
				if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); !strings.Contains(string(stat), fmt.Sprintf(" %d ", os.Getpid())) {
					continue
				}
				if syscall.Kill(pid, syscall.SIGSTOP) == nil {
					time.Sleep(5 * time.Millisecond)
					if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); exe == self {
						stopped <- pid
						return
					}
				}
				break
			}
			stopped <- 0
		}()
		started := make(chan error, 1)
		go func() { started <- newChildren().start(cmd) }()
		late := time.After(20 * time.Second)
		var pid int
		for ended := false; !ended; {
			select {
			case err := <-started:
				if err != nil {
					t.Fatal(err)
				}
				ended = true
			case <-late:
				pid = <-stopped
				_ = syscall.Kill(pid, syscall.SIGCONT)
				t.Fatalf("child %d was stopped before it ran its program, and nobody continued it", pid)
			}
		}
		over.Store(true)
		pid = <-stopped
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Wait()
		if pid != 0 {
			return
		}
	}
	t.Fatal("in 200 starts no child was stopped before its exec")
}

// lastPID is the last process number that was given out (proc(5), /proc/loadavg).
func lastPID(t *testing.T) (pid int) {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(text))
	if err == nil {
		_, err = fmt.Sscan(f[len(f)-1], &pid)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
