package launch

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal stops, or refuses, a reader that is not in its foreground process group.
// So with one rank 0 stays in the process group of this process, and a shell stops, continues,
// interrupts and gives the terminal to both together. A signal for the whole group must not be
// forwarded to rank 0 again.

// hasTerminal: rank 0 may read from one.
func hasTerminal(stdin *os.File) bool {
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		return false // no groupEcho can be started
	}
	if isTerminal(stdin) {
		return true
	}
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}

func isTerminal(f *os.File) (is bool) {
	if f != nil {
		control(f, func(fd int) {
			_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
			is = err == nil
		})
	}
	return is
}

// stopping are the signals by which a terminal, or its user, stops a job.
var stopping = []os.Signal{syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}

// stopSignals are the ones that were not ignored when this process began, and SIGCONT.
func stopSignals() []os.Signal {
	var ignored uint64
	status, _ := os.ReadFile("/proc/self/status")
	if _, rest, ok := strings.Cut(string(status), "\nSigIgn:\t"); ok {
		mask, _, _ := strings.Cut(rest, "\n")
		ignored, _ = strconv.ParseUint(mask, 16, 64)
	}
	all := []os.Signal{syscall.SIGCONT}
	for _, s := range stopping {
		if ignored>>(s.(syscall.Signal)-1)&1 == 0 {
			all = append(all, s)
		}
	}
	return all
}

// ignoredByOthers than rank 0 is what stops a process that uses its terminal from the background:
// what they write appears even after stty tostop, and what they read fails, where they would hang.
var ignoredByOthers = []os.Signal{syscall.SIGTTIN, syscall.SIGTTOU}

// echoName is argument 0 of a groupEcho. pkill -f ibrun must not find it: what that sends is not
// for the group.
const echoName = "signal-echo"

// echoed are the signals that may be sent to a whole process group.
var echoed = append([]os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1,
	syscall.SIGUSR2}, stopping...)

// groupEcho is a process of this program in its process group that does nothing but report which
// signals it received: they were for the group, and rank 0 has them too.
type groupEcho struct {
	cmd  *exec.Cmd
	hold *os.File // it ends when this does
	back *os.File

	mu    sync.Mutex
	heard map[syscall.Signal]time.Time
	news  chan struct{} // capacity 1
}

// Times of an echo. A machine may be busy; only a signal for this process alone waits so long, and
// only on its way to rank 0.
const (
	echoTimeout = 500 * time.Millisecond
	echoFresh   = time.Second // what is older belongs to an earlier signal
)

// startEcho returns when there is one that no signal for the group ends. A Ctrl-C may end a process
// that is not in a group of its own yet, and is for the ranks.
func startEcho(c *children) (e *groupEcho, err error) {
	for range 3 {
		if e, err = newEcho(c); err != io.EOF {
			break
		}
	}
	return e, err
}

func newEcho(c *children) (*groupEcho, error) {
	in, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	back, out, err := os.Pipe()
	if err != nil {
		in.Close()
		hold.Close()
		return nil, err
	}
	e := &groupEcho{hold: hold, back: back, heard: map[syscall.Signal]time.Time{}, news: make(chan struct{}, 1),
		cmd: exec.Command("/proc/self/exe")}
	e.cmd.Args = []string{echoName}
	e.cmd.Stdin, e.cmd.Stdout = in, out
	e.cmd.Dir = "/"
	e.cmd.Env = unmarked(os.Environ())
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // until it is ready: a Ctrl-Z would stop it, and we wait
	err = c.start(e.cmd)
	in.Close()
	out.Close()
	if err == nil {
		go func() {
			c.await(e.cmd)
			c.wait(e.cmd)
		}()
		_, err = io.ReadFull(back, make([]byte, 1)) // it is ready
	}
	if err != nil {
		hold.Close()
		back.Close()
		return nil, err
	}
	go e.listen()
	return e, nil
}

func (e *groupEcho) listen() {
	b := make([]byte, 1)
	for {
		if _, err := io.ReadFull(e.back, b); err != nil {
			return
		}
		e.mu.Lock()
		e.heard[syscall.Signal(b[0])] = time.Now()
		e.mu.Unlock()
		select {
		case e.news <- struct{}{}:
		default:
		}
	}
}

// toGroup reports whether a signal that this process has just received was for its whole group.
func (e *groupEcho) toGroup(s syscall.Signal) bool {
	late := time.After(echoTimeout)
	for {
		e.mu.Lock()
		at, ok := e.heard[s]
		delete(e.heard, s)
		e.mu.Unlock()
		if ok && time.Since(at) < echoFresh {
			return true
		}
		select {
		case <-e.news:
		case <-late:
			return false
		}
	}
}

// forget comes before rank 0: signals for the group then were not for that one.
func (e *groupEcho) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.heard)
}

func (e *groupEcho) end() {
	if e != nil {
		_ = e.hold.Close()
		_ = e.back.Close()
	}
}

// echoMain is the whole life of a groupEcho.
func echoMain() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, echoed...)
	if group, err := unix.Getpgid(os.Getppid()); err != nil || unix.Setpgid(0, group) != nil {
		os.Exit(1)
	}
	go func() {
		_, _ = os.Stdout.Write([]byte{0})
		for s := range signals {
			_, _ = os.Stdout.Write([]byte{byte(s.(syscall.Signal))})
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// pass hands a signal that this process received to all ranks.
func (r *run) pass(s syscall.Signal) {
	for _, k := range r.ranks {
		if !k.grouped() {
			k.signal(s)
		} else {
			go func() {
				if !k.shares(s) {
					k.signal(s)
				}
			}()
		}
	}
}

// stopOrContinue is for signals of job control.
func (r *run) stopOrContinue(s syscall.Signal) {
	if s == syscall.SIGCONT || tooLate(s) {
		r.starter.resume()
		r.signal(syscall.SIGCONT)
		return
	}
	if !r.abandoned() {
		r.stop(s)
	}
}

// tooLate: the terminal, which refused a read or write, is ours by now. The signal is left from a
// write that was refused again and again until this process stopped; or fg has come before the
// stop, and then the shell continues no process, rank 0 neither.
func tooLate(s syscall.Signal) bool { return s != syscall.SIGTSTP && foreground() }

// foreground: this process has its terminal.
func foreground() (has bool) {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	control(f, func(fd int) {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		has = err == nil && group == syscall.Getpgrp()
	})
	return has
}

// abandoned: this process has a terminal, and there is no shell that could continue what that
// stops, as where ibrun is all that ssh -t, a window or a container runs. No process of the group
// has a parent in another group of the session: the kernel does not stop such a group either.
func (r *run) abandoned() bool {
	ours, all := syscall.Getpgrp(), processes()
	if len(all) == 0 || !hasTerminal(r.cfg.Stdin) {
		return false
	}
	byPid := map[int]procStat{}
	for _, p := range all {
		byPid[p.pid] = p
	}
	for _, p := range all {
		if parent, ok := byPid[p.parent]; ok && p.group == ours && parent.group != ours && parent.session == p.session {
			return false
		}
	}
	return true
}

// stop stops all ranks, as the signal would, and then this process; it goes on when that is
// continued. The shell learns of the stop from this process. A shell that continues it before it
// has stopped knows of no stop to come: then only the ranks are continued. A rank of our group may
// have been stopped already, and continued again by what came before this signal; a second stop
// adds nothing to the first, and what continues the job discards it.
func (r *run) stop(s syscall.Signal) {
	r.signal(syscall.SIGTSTP)
	r.starter.pause()
	for {
		select {
		case next := <-r.stops:
			switch next {
			case syscall.SIGCONT:
				r.stopOrContinue(syscall.SIGCONT)
				return
			case syscall.SIGTSTP:
				s = syscall.SIGTSTP
			}
		default:
			if tooLate(s) {
				r.stopOrContinue(syscall.SIGCONT)
				return
			}
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			return
		}
	}
}

// procStat is a line of /proc.
type procStat struct{ pid, parent, group, session int }

// family are the descendants of a process that are in our process group.
func family(pid int) (all []int) {
	ours := syscall.Getpgrp()
	below := map[int]bool{pid: true}
	for list, more := processes(), true; more; {
		more = false
		for _, p := range list {
			if below[p.parent] && !below[p.pid] {
				below[p.pid], more = true, true
				if p.group == ours {
					all = append(all, p.pid)
				}
			}
		}
	}
	return all
}

// killOrphansOfGroup kills what rank 0 left in our process group; it has come to us as a subreaper.
func (c *children) killOrphansOfGroup() {
	ours, self := syscall.Getpgrp(), os.Getpid()
	for range 100 {
		found := false
		c.mu.Lock()
		for _, p := range processes() {
			if p.parent == self && p.group == ours && !c.own[p.pid] && !c.before[p.pid] {
				found = syscall.Kill(p.pid, syscall.SIGKILL) == nil || found
			}
		}
		c.mu.Unlock()
		if !found {
			return
		}
		c.reap()
		time.Sleep(time.Millisecond)
	}
}
