package launch

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// children are the processes that this one has started for a job. All other children of the
// process were left behind by the ranks and came to it as the nearest subreaper: reap takes their
// statuses as they end, or each would stay a zombie until the end of the job.
type children struct {
	mu   sync.Mutex // held while one starts, or one that ends at once would be a stranger
	own  map[int]bool
	look chan struct{} // capacity 1
	// before were children already when the job began: processes that a shell has started before this
	// process took its place, as bash's > >(tee log). They are reaped, and left alone.
	before map[int]bool
}

func newChildren() *children {
	return &children{own: map[int]bool{}, look: make(chan struct{}, 1), before: map[int]bool{}}
}

// spare keeps present children from endOrphans.
func (c *children) spare() {
	for _, p := range offspring() {
		c.before[p.pid] = true
	}
}

func (c *children) start(cmd *exec.Cmd) error {
	forget, err := nothing(cmd)
	defer forget()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err = startProgram(cmd, func(pid int) bool { return c.own[pid] || c.before[pid] })
	if err == nil {
		c.own[cmd.Process.Pid] = true
	}
	return err
}

// startSelf starts this program once more, to serve the job, without the job's mark: the guard of a
// job inside another must outlive the processes that the other's guard kills.
func (c *children) startSelf(attr *syscall.SysProcAttr, in, out *os.File, args ...string) (<-chan struct{}, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir, cmd.SysProcAttr = args, "/", attr
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, jobMark) })
	if cmd.Stdin = in; out != nil {
		cmd.Stdout = out
	}
	if err := c.start(cmd); err != nil {
		return nil, err
	}
	gone := make(chan struct{})
	go func() {
		c.await(cmd)
		c.wait(cmd)
		close(gone)
	}()
	return gone, nil
}

// jobMark begins the variable by which a guard finds what belongs to its job.
const jobMark = "IBCONDUIT_JOB="

// starting is held while a program starts. Package syscall lets one start at a time, too.
var starting sync.Mutex

// startTries is how often a program is started where what prevents it may pass, startPause how long
// is waited before the second try. It doubles with each: 1.5 s in all.
const (
	startTries = 6
	startPause = 50 * time.Millisecond
)

// startProgram starts one, in several tries where the user has as many processes as may be, or the
// program is being written.
func startProgram(cmd *exec.Cmd, spared func(pid int) bool) error {
	before := *cmd
	for try := 0; ; try++ {
		err := startOnce(cmd, spared)
		if try == startTries-1 || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ETXTBSY) {
			return err
		}
		time.Sleep(startPause << try)
		*cmd = before
	}
}

// startOnce starts one. The caller waits until the child runs it, unknown to the runtime: only
// another of its processors can continue the child meanwhile, and not once a collection waits for
// this one.
func startOnce(cmd *exec.Cmd, spared func(pid int) bool) error {
	starting.Lock()
	defer starting.Unlock()
	if runtime.GOMAXPROCS(0) < 2 {
		runtime.GOMAXPROCS(2)
	}
	defer holdCollections()()
	defer continueStarting(spared)()
	return cmd.Start()
}

// holdCollections returns when none is under way, and none begins until release is called.
// SetGCPercent waits for a cycle's marking alone, and one may have been about to start: GC comes
// after it, and ReadMemStats stops the world, which a cycle gives back as its last step.
func holdCollections() (release func()) {
	percent := debug.SetGCPercent(-1)
	runtime.GC()
	runtime.ReadMemStats(new(runtime.MemStats))
	return func() { debug.SetGCPercent(percent) }
}

// continueStarting continues, until end is called, a child that a Ctrl-Z has stopped before it runs
// its program. A child that is to stop is stopped afterwards.
func continueStarting(spared func(pid int) bool) (end func()) {
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-quit:
				return
			case <-time.After(100 * time.Millisecond):
			}
			for _, p := range offspring() {
				if !spared(p.pid) {
					_ = syscall.Kill(p.pid, syscall.SIGCONT)
				}
			}
		}
	})
	return func() {
		close(quit)
		done.Wait()
	}
}

// await returns when a child has ended. It stays a zombie, so that its number is its own.
func (c *children) await(cmd *exec.Cmd) {
	for {
		if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return
		}
	}
}

// wait takes the status of a child that has ended.
func (c *children) wait(cmd *exec.Cmd) {
	c.mu.Lock()
	_ = cmd.Wait()
	delete(c.own, cmd.Process.Pid)
	c.mu.Unlock()
	select {
	case c.look <- struct{}{}: // it may have hidden others from reap
	default:
	}
}

// reapOrphans runs reap whenever a child ends, until stop is called.
func (c *children) reapOrphans() (stop func()) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c.reap()
			select {
			case <-ended:
			case <-c.look:
			case <-quit:
				return
			}
		}
	})
	return func() {
		signal.Stop(ended)
		close(quit)
		done.Wait()
	}
}

// reap takes the statuses of orphans that have ended, up to the first own child that has: the
// kernel names one that has ended, always the same, and wait calls again for those behind it.
func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		pid := int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), pidOffset)))
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid == 0 || c.own[pid] {
			return
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, syscall.WNOHANG, nil); err != nil && err != syscall.EINTR {
			return
		}
		delete(c.before, pid) // the number may be another's now
	}
}

// pidOffset is where si_pid is in siginfo_t: behind three ints, aligned as a pointer
// (include/uapi/asm-generic/siginfo.h).
const pidOffset = (12 + unsafe.Sizeof(uintptr(0)) - 1) / unsafe.Sizeof(uintptr(0)) * unsafe.Sizeof(uintptr(0))
