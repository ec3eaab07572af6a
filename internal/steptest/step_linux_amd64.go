package steptest

import (
	"encoding/binary"
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
// that wait for a peer take more while it has no processor: where all did, up to mostTimes times as
// many are stepped. What has ended when the time is over counts, which may be nothing: each step
// takes two switches of the processor, of which tens of thousands go into a second, and a few
// hundred where many others want to run. Calls of what is not this module's are not stepped
// through, nor is what they call; and where a function begins again, since the scheduler wanted
// another goroutine to run or its stack had to grow, it counts once: a thread that is stepped meets
// that often on a busy machine. The thread is let go in the end. Where ptrace(2) is not allowed
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
		s       = stepper{tid: tid, begins: name, names: map[uint64]place{}}
		all     []map[string]int
		current map[string]int
		before  place
		inCall  int  // instructions since the last call of this module's Go
		again   bool // its function begins again
	)
	if err := s.stopped(); err != nil {
		return Count{}, err
	}
	if err := unix.PtraceSetOptions(tid, unix.PTRACE_O_EXITKILL); err != nil {
		return Count{}, fmt.Errorf("ptrace: %w", err)
	}
	for steps := 0; time.Now().Before(end); steps++ {
		at, err := s.where()
		if err != nil {
			return Count{}, err
		}
		if at.begins {
			if current != nil {
				all = append(all, current)
			}
			if enough(all, n, most) {
				break
			}
			current, steps = map[string]int{}, 1
		}
		counts := at.own != "" && current != nil
		if at.entry {
			if again && counts {
				current[at.own] -= inCall
			}
			inCall, again = 0, false
		}
		if at.inside {
			inCall++
		}
		if counts {
			current[at.own]++
		}
		if steps > mostSteps {
			return Count{}, fmt.Errorf("%d instructions without a call of %s", steps, name)
		}
		step := s.step
		if before.inside && !at.inside {
			step = s.finish
			again = at.restarts
		}
		if err := step(); err != nil {
			return Count{}, err
		}
		before = at
	}
	return least(all), nil
}

// place is what an address is a part of.
type place struct {
	begins bool   // the operation begins here
	inside bool   // of this module's Go, tests too
	entry  bool   // a function of it begins here
	own    string // the function, if it is this module's and no test's

	restarts bool // of the runtime: the function that calls it begins again
}

type stepper struct {
	tid    int
	begins string
	signal int // that the thread is to get
	regs   unix.PtraceRegsAmd64
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

// step carries one instruction out.
func (s *stepper) step() error { return s.resume(unix.PTRACE_SINGLESTEP) }

// resume lets the thread go on, and waits until it stands still.
func (s *stepper) resume(request uintptr) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(s.tid), 0, uintptr(s.signal), 0, 0); errno != 0 {
		return fmt.Errorf("ptrace: %w", errno)
	}
	return s.stopped()
}

// finish lets a call that was just made run to its return, where a breakpoint of this thread stops
// it. In the call may be C, or the scheduler: to it a thread that is stepped seems to run for too
// long, and each time it has another one run takes thousands of instructions. What is no call, like
// a return into what is not this module's, is one step.
func (s *stepper) finish() error {
	var back [8]byte
	if _, err := unix.PtracePeekData(s.tid, uintptr(s.regs.Rsp), back[:]); err != nil {
		return fmt.Errorf("ptrace: %w", err)
	}
	to := binary.LittleEndian.Uint64(back[:])
	if !s.place(to).inside || s.setBreak(to, true) != nil {
		return s.step()
	}
	for {
		if err := s.resume(unix.PTRACE_CONT); err != nil {
			return err
		}
		if _, err := s.where(); err != nil {
			return err
		}
		if s.regs.Rip == to {
			return s.setBreak(to, false)
		}
	}
}

// setBreak has the thread stop before the instruction at an address, or no more, by its debug
// registers 0 and 7 (AMD64 Architecture Programmer's Manual, volume 2, 13.1).
func (s *stepper) setBreak(at uint64, on bool) error {
	const registers = 848 // where struct user of <sys/user.h> has them
	var enabled uint64
	if on {
		enabled = 1
		if err := s.pokeUser(registers, at); err != nil {
			return err
		}
	}
	return s.pokeUser(registers+7*8, enabled)
}

func (s *stepper) pokeUser(offset uintptr, v uint64) error {
	if _, err := unix.PtracePokeUser(s.tid, offset, binary.LittleEndian.AppendUint64(nil, v)); err != nil {
		return fmt.Errorf("ptrace: %w", err)
	}
	return nil
}

func (s *stepper) where() (place, error) {
	if err := unix.PtraceGetRegsAmd64(s.tid, &s.regs); err != nil {
		return place{}, fmt.Errorf("ptrace: %w", err)
	}
	return s.place(s.regs.Rip), nil
}

func (s *stepper) place(pc uint64) place {
	at, known := s.names[pc]
	if !known {
		at = s.lookUp(uintptr(pc))
		s.names[pc] = at
	}
	return at
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
	at.inside = strings.HasPrefix(outer.Name(), module)
	at.entry = at.inside && pc == f.Entry()
	at.restarts = strings.HasPrefix(outer.Name(), "runtime.morestack")
	if at.inside && !strings.HasSuffix(file, "_test.go") {
		at.own = strings.TrimPrefix(outer.Name(), module)
	}
	return at
}
