//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// What the libc does inside, counted by the kernel (ptrace) and by this package. A monitor either
// sees every call or the class is reported missing and claims are refused.
func TestLibcCallsAreCountedAsByTheKernel_03(t *testing.T) {
	foreign := artifact(t, "foreign.so")
	for _, monitor := range []string{"symbols", "symbols,patch", "symbols,userfaultfd"} {
		// One arena: the heap is the break; more: a map of a thread
		for _, arenas := range []string{"1", "8"} {
			t.Run(monitor+" arenas="+arenas, func(t *testing.T) {
				if strings.HasSuffix(monitor, "patch") && runtime.GOARCH != "amd64" {
					t.Skip("the libc's text is patched on amd64 only")
				}
				if strings.HasSuffix(monitor, "userfaultfd") {
					needUffd(t)
				}
				out, counted := traceHelper(t, []string{EnvMonitors + "=" + monitor, "MALLOC_ARENA_MAX=" + arenas}, "inside", foreign)
				for i, name := range insideNames {
					compareInside(t, monitor, name, out, counted[i])
				}
			})
		}
	}
}

func compareInside(t *testing.T, monitor, name, out string, kernel tally) {
	t.Helper()
	if kernel.all == 0 || kernel.watched == 0 {
		t.Errorf("%s: the libc took nothing away (%+v): nothing was tested\n%s", name, kernel, out)
		return
	}
	var want string
	switch monitor {
	case "symbols":
		want = name + ": refused"
	case "symbols,patch":
		want = fmt.Sprintf("%s: noticed, hooks saw %d,", name, kernel.all)
	default:
		want = fmt.Sprintf("%s: noticed, hooks saw 0, userfaultfd %d\n", name, kernel.watched)
	}
	wants(t, out, want)
}

var insideNames = []string{"trim", "stack", "free", "realloc"}

// The marks are writes of that many bytes to no file: even ones begin, odd ones end
const firstMark = 1000

var _ = helper("inside", func(t testing.TB, args []string) error {
	runtime.LockOSThread()
	load(t, args[0])
	w := newWatcher(t, WatcherConfig{})
	// The runtime's own calls would count too: those of a collection, and of the scavenger that
	// gives back what it freed.
	debug.FreeOSMemory()
	debug.SetGCPercent(-1)
	for i, name := range insideNames {
		got, err := inside(w, name, uintptr(firstMark+2*i))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Println(name + ": " + got)
	}
	return nil
})

// inside lets the libc take memory away of which a page is watched.
func inside(w *Watcher, name string, mark uintptr) (string, error) {
	var at uintptr
	act := func() { memtest.Func("ibc_foreign_free", at) }
	switch name {
	case "trim":
		at = memtest.Func("ibc_foreign_fill")
		act = func() { memtest.Func("ibc_foreign_empty") }
	case "stack":
		at = memtest.Func("ibc_foreign_thread")
		act = func() { memtest.Func("ibc_foreign_thread_end") }
	case "free": // a block with a map of its own, as all above 32 MiB (mallopt(3), M_MMAP_THRESHOLD): others may stay in the heap
		at = memtest.Func("ibc_foreign_malloc", 33<<20)
	case "realloc": // likewise, grown until it moves
		at = memtest.Func("ibc_foreign_malloc", 40<<20)
		act = func() {
			for size := uintptr(80 << 20); size <= 20<<30 && memtest.Func("ibc_foreign_realloc", at, size) == at; size *= 2 {
			}
		}
	}
	p := (at + pageSize) &^ (pageSize - 1)
	*ptr(p) = 1
	r, err := claimSoon(w, p, ForMalloc)
	refused := errors.Is(err, ErrUnwatched)
	if err != nil && !refused || err == nil && !w.Publish(r) {
		return "", fmt.Errorf("not published: %v", err)
	}
	hooks, kernel := ReadStats().Unmaps, ReadStats().KernelEvents
	unix.RawSyscall(unix.SYS_WRITE, noFD, p, mark)
	act()
	unix.RawSyscall(unix.SYS_WRITE, noFD, p, mark+1)
	if refused {
		return "refused", nil
	}
	if r.Acquire() {
		return "missed", nil
	}
	// The reader counts what it has read before it reports
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if s := ReadStats(); len(w.Drain(nil)) > 0 {
			return fmt.Sprintf("noticed, hooks saw %d, userfaultfd %d", s.Unmaps-hooks, ReadStats().KernelEvents-kernel), nil
		}
	}
	return "", errors.New("never drained")
}

// ---- the kernel's count ----

// tally is how many calls of the kernel took memory away between two marks: in all, and over the
// page marked.
type tally struct{ all, watched int }

// traceHelper runs a helper under ptrace.
func traceHelper(t *testing.T, env []string, name string, args ...string) (string, []tally) {
	t.Helper()
	runtime.LockOSThread() // which is the tracer
	defer runtime.UnlockOSThread()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	noError(t, err)
	defer out.Close()
	pid, err := syscall.ForkExec(os.Args[0], append([]string{os.Args[0], "helper", name}, args...), &syscall.ProcAttr{
		Env: append(os.Environ(), env...), Files: []uintptr{0, out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	noError(t, err)
	counter := counter{counts: make([]tally, len(insideNames)), at: -1, calls: map[int]traced{}}
	status, err := counter.run(pid)
	text, _ := os.ReadFile(out.Name())
	if err != nil || status.ExitStatus() != 0 {
		t.Fatalf("%v, status %d\n%s", err, status, text)
	}
	return string(text), counter.counts
}

type traced struct {
	nr   uint64
	args [6]uint64
}

type counter struct {
	counts []tally
	at     int // of the pair of marks that is open; -1: none
	page   uint64
	brk    uint64
	calls  map[int]traced // by thread, while inside
}

// run follows all threads until the process ends.
func (c *counter) run(pid int) (status unix.WaitStatus, err error) {
	if _, err := unix.Wait4(pid, &status, unix.WALL, nil); err != nil {
		return status, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return status, err
	}
	stopped, sig := pid, 0
	for {
		if err := unix.PtraceSyscall(stopped, sig); err != nil && err != unix.ESRCH { // it died
			return status, err
		}
		sig = 0
		if stopped, err = unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil); err != nil {
			return status, err
		}
		switch {
		case status.Exited() || status.Signaled():
			if stopped == pid {
				return status, nil
			}
		case status.StopSignal() == unix.SIGTRAP|0x80:
			c.stop(stopped)
		case status.StopSignal() != unix.SIGTRAP && status.StopSignal() != unix.SIGSTOP: // these are ptrace's own
			sig = int(status.StopSignal())
		}
	}
}

// stop looks at a thread that enters or leaves the kernel. PTRACE_GET_SYSCALL_INFO (ptrace(2)) says
// the same on every architecture.
func (c *counter) stop(tid int) {
	const getSyscallInfo, entry, exit = 0x420e, 1, 2
	var info struct {
		op     uint8
		_      [3]byte
		_      uint32
		_, _   uint64
		nr     uint64 // on exit the result
		args   [6]uint64
		unused uint64
	}
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		return
	}
	switch info.op {
	case entry:
		c.calls[tid] = traced{info.nr, info.args}
		c.mark(info.nr, info.args)
	case exit:
		c.count(c.calls[tid], info.nr)
	}
}

func (c *counter) mark(nr uint64, args [6]uint64) {
	if nr != unix.SYS_WRITE || uint32(args[0]) != ^uint32(0) || args[2] < firstMark || args[2] >= firstMark+2*uint64(len(c.counts)) {
		return
	}
	c.page = args[1]
	c.at = int(args[2]-firstMark) / 2
	if args[2]%2 == 1 {
		c.at = -1
	}
}

// count takes the kernel's word: what succeeded took its range away.
func (c *counter) count(call traced, result uint64) {
	failed := result >= ^uint64(4094)
	lo, hi := call.args[0], call.args[0]+call.args[1]
	switch call.nr {
	case unix.SYS_MUNMAP, unix.SYS_MREMAP:
	case unix.SYS_MMAP:
		if call.args[3]&unix.MAP_FIXED == 0 {
			return
		}
	case unix.SYS_MADVISE:
		if a := call.args[2]; a != unix.MADV_DONTNEED && a != unix.MADV_FREE {
			return
		}
	case unix.SYS_BRK:
		lo, hi, c.brk = result, c.brk, result
		if hi <= lo {
			return
		}
	default:
		return
	}
	if failed || c.at < 0 {
		return
	}
	c.counts[c.at].all++
	if lo < c.page+uint64(pageSize) && hi > c.page {
		c.counts[c.at].watched++
	}
}
