package steptest

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const module = "github.com/ibconduit/conduit"

// mostSteps of one operation; one that takes more has got stuck.
const mostSteps = 1 << 20

// Operations steps thread tid, which runs one operation after the other, each beginning with a call
// of the function with this name, until n have ended and one of them took at most most. Operations
// that wait for a peer take more while it has no processor: where all did, up to patience times as
// many are stepped. What has ended when the time is over counts, which may be nothing: each step
// takes two switches of the processor, of which tens of thousands go into a second, and a few hundred
// where many others want to run. The thread is let go in the end. Where ptrace(2) is not allowed
// that is the error.
func Operations(tid int, name string, n, most int, within time.Duration) (Count, error) {
	end := time.Now().Add(within)
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(tid); err != nil {
		return Count{}, fmt.Errorf("ptrace: %w", err)
	}
	defer func() { _ = unix.PtraceDetach(tid) }() // it may have ended
	var (
		done    bool
		s       = stepper{tid: tid, begins: name, names: map[uint64]place{}}
		all     []map[string]int
		current map[string]int
	)
	if err := s.stopped(); err != nil {
		return Count{}, err
	}
	if err := unix.PtraceSetOptions(tid, unix.PTRACE_O_EXITKILL); err != nil {
		return Count{}, fmt.Errorf("ptrace: %w", err)
	}
	for steps := 0; !done && (steps%256 != 0 || time.Now().Before(end)); steps++ {
		at, err := s.where()
		if err != nil {
			return Count{}, err
		}
		if at.begins {
			if current != nil {
				all = append(all, current)
				done = enough(all, n, most)
			}
			current, steps = map[string]int{}, 1
		}
		if at.own != "" && current != nil {
			current[at.own]++
		}
		if steps > mostSteps {
			return Count{}, fmt.Errorf("%d instructions without a call of %s", steps, name)
		}
		if err := s.step(); err != nil {
			return Count{}, err
		}
	}
	return least(all), nil
}

// place is what an address is a part of.
type place struct {
	begins bool   // the operation begins here
	own    string // the function, if it is this module's and no test's
}

type stepper struct {
	tid    int
	begins string
	signal int // that the thread is to get
	names  map[uint64]place
}

// stopped waits until the thread stands still. The signals that it was to get it gets with the next
// step, but for that of the tracer.
func (s *stepper) stopped() error {
	var st unix.WaitStatus
	if _, err := unix.Wait4(s.tid, &st, unix.WALL, nil); err != nil {
		return fmt.Errorf("waiting for the thread: %w", err)
	}
	if !st.Stopped() {
		return fmt.Errorf("the thread has ended: %#x", st)
	}
	if s.signal = int(st.StopSignal()); s.signal == int(unix.SIGTRAP) || s.signal == int(unix.SIGSTOP) {
		s.signal = 0
	}
	return nil
}

func (s *stepper) step() error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SINGLESTEP, uintptr(s.tid), 0, uintptr(s.signal), 0, 0); errno != 0 {
		return fmt.Errorf("ptrace: %w", errno)
	}
	return s.stopped()
}

func (s *stepper) where() (place, error) {
	var regs unix.PtraceRegsAmd64
	if err := unix.PtraceGetRegsAmd64(s.tid, &regs); err != nil {
		return place{}, fmt.Errorf("ptrace: %w", err)
	}
	at, known := s.names[regs.Rip]
	if !known {
		at = s.lookUp(uintptr(regs.Rip))
		s.names[regs.Rip] = at
	}
	return at, nil
}

// lookUp names the function that was compiled, not those that are inlined into it.
func (s *stepper) lookUp(pc uintptr) (at place) {
	f := runtime.FuncForPC(pc)
	if f == nil { // C
		return at
	}
	outer := runtime.FuncForPC(f.Entry())
	file, _ := outer.FileLine(f.Entry())
	at.begins = outer.Name() == s.begins && pc == f.Entry()
	if strings.HasPrefix(outer.Name(), module) && !strings.HasSuffix(file, "_test.go") {
		at.own = strings.TrimPrefix(outer.Name(), module)
	}
	return at
}
