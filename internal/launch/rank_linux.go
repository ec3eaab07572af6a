package launch

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drainTime is how long a rank's output may stay open after its group was
// killed: only a process that left the group still holds it.
const drainTime = time.Second

// rank is one child.
type rank struct {
	number int
	cmd    *exec.Cmd
	// inOurGroup: it has no process group of its own, for the terminal's sake
	inOurGroup bool
	pipes      []*pipe  // of its output
	life       *os.File // our end of the pipe that ends with it; see deaths
	copies     sync.WaitGroup

	mu     sync.Mutex
	reaped bool // its pid, and that of its group, may belong to others now
	status syscall.WaitStatus
	order  int64 // in which ranks were seen to end, from 1
	ended  bool  // run.see has received its end, as of dry
	dry    bool  // all output has been taken
}

// outer lists the variables by which an outer job identifies its ranks to
// package bootstrap: they would contradict ours.
var outer = []string{
	"IBCONDUIT_RANK", "IBCONDUIT_SIZE", "IBCONDUIT_ADDR", "IBCONDUIT_JOB", "IBCONDUIT_BOOTSTRAP",
	"IBCONDUIT_SECRET", "IBCONDUIT_SECRET_FILE", "IBCONDUIT_SECRET_FD", "IBCONDUIT_LISTEN_FD", "IBCONDUIT_LIFE_FD",
	"IBCONDUIT_ENDED_FD", "IBCONDUIT_SOCKET", "IBCONDUIT_SOCKET_FD", "IBCONDUIT_LISTEN",
}

func without(env, names []string) []string {
	var kept []string
next:
	for _, kv := range env {
		for _, n := range names {
			if strings.HasPrefix(kv, n+"=") {
				continue next
			}
		}
		kept = append(kept, kv)
	}
	return kept
}

// startRank starts one child. The kernel ties its life to the calling thread:
// the caller has locked it and keeps it until the child has ended.
func (r *run) startRank(path string, n int, h *handover, out, errs *sink) (_ *rank, err error) {
	cfg := &r.cfg
	k := &rank{number: n, cmd: exec.Command(path, cfg.Args...), inOurGroup: n == 0 && r.echo != nil}
	k.cmd.Args[0] = cfg.Path
	k.cmd.Dir = cfg.Dir
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !k.inOurGroup, Pdeathsig: syscall.SIGKILL}
	k.cmd.Env = append(without(cfg.Env, outer),
		"IBCONDUIT_RANK="+strconv.Itoa(n), "IBCONDUIT_SIZE="+strconv.Itoa(cfg.N),
		"IBCONDUIT_JOB="+h.job)
	k.cmd.Env = append(k.cmd.Env, h.env()...)
	if n == 0 && cfg.Stdin != nil {
		k.cmd.Stdin = cfg.Stdin
	}
	if cfg.Direct {
		k.cmd.Stdout, k.cmd.Stderr = file(cfg.Stdout), file(cfg.Stderr)
	}
	theirs, err := k.connect(r.layout.clone(), h, out, errs)
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
		if err != nil {
			k.closePipes()
		}
	}()
	if err != nil {
		return nil, err
	}
	k.cmd.Env = append(k.cmd.Env, cfg.RankEnv(n)...)
	if err = r.children.start(k.cmd); err != nil {
		return nil, err
	}
	prefix := []byte(cfg.Prefix(n))
	for _, p := range k.pipes {
		s := &stream{sink: p.sink, prefix: prefix, hold: holdTime, coming: func() bool { return available(p.ours) > 0 }}
		k.copies.Go(func() { p.copy(s) })
	}
	// A rank without a place in the order of deaths is better than no rank.
	_ = r.blame.deaths.add(k)
	return k, nil
}

// connect makes the descriptors that the rank inherits; theirs are ours to close once it runs.
func (r *rank) connect(l layout, h *handover, out, errs *sink) (theirs []*os.File, err error) {
	give := func(variable string, f *os.File) {
		r.cmd.Env = append(r.cmd.Env, variable+"="+tagged(l.add(f), f))
	}
	defer func() { r.cmd.ExtraFiles = l.files }()
	newPipe := func() (ours, their *os.File, err error) {
		if ours, their, err = os.Pipe(); err == nil {
			theirs = append(theirs, their)
		}
		return ours, their, err
	}
	secret, err := secretPipe(h.secret)
	if err != nil {
		return theirs, err
	}
	theirs = append(theirs, secret)
	give("IBCONDUIT_SECRET_FD", secret)
	if r.number == 0 {
		for variable, f := range map[string]*os.File{"IBCONDUIT_LISTEN_FD": h.listener, "IBCONDUIT_SOCKET_FD": h.socket} {
			if f != nil {
				give(variable, f)
			}
		}
	}
	var life *os.File
	if r.life, life, err = newPipe(); err != nil {
		return theirs, err
	}
	give("IBCONDUIT_LIFE_FD", life)
	if h.ended != nil {
		give("IBCONDUIT_ENDED_FD", h.ended.file)
	}
	for _, to := range []struct {
		end  *io.Writer
		sink *sink
	}{{&r.cmd.Stdout, out}, {&r.cmd.Stderr, errs}} {
		if *to.end != nil {
			continue
		}
		ours, their, err := newPipe()
		if err != nil {
			return theirs, err
		}
		r.pipes = append(r.pipes, &pipe{ours: ours, sink: to.sink})
		*to.end = their
	}
	return theirs, nil
}

// closePipes when the job has ended, not before: epoll forgets what is closed, even
// if it is about to report it.
func (r *rank) closePipes() {
	for _, p := range r.pipes {
		_ = p.ours.Close()
	}
	_ = r.life.Close() // of nil it does nothing
}

// secretPipe returns the reading end of a pipe that holds the secret.
func secretPipe(secret string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := io.WriteString(w, secret); err != nil { // far less than a pipe holds
		r.Close()
		return nil, err
	}
	return r, nil
}

// tagged names a descriptor together with its inode, so that the child does
// not take another file for it later.
func tagged(fd int, f *os.File) string {
	var st unix.Stat_t
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(own uintptr) { _ = unix.Fstat(int(own), &st) })
	}
	if err != nil || st.Ino == 0 {
		return strconv.Itoa(fd)
	}
	return fmt.Sprintf("%d:%d", fd, st.Ino)
}

// signal reaches the rank and everything in its group, or what it started in ours.
func (r *rank) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch pid := r.cmd.Process.Pid; {
	case r.reaped:
	case r.inOurGroup:
		for _, p := range append(family(pid), pid) {
			_ = syscall.Kill(p, s)
		}
	default:
		_ = syscall.Kill(-pid, s)
	}
}

// wait returns when the rank has ended. What is left of its group is killed
// while the rank is still a zombie, so that the number is surely its own.
func (r *rank) wait(orders *atomic.Int64, c *children) {
	c.await(r.cmd)
	order := orders.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order = order
	if !r.inOurGroup {
		_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
	}
	c.wait(r.cmd)
	r.reaped = true
	r.status, _ = r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if r.inOurGroup {
		c.killOrphansOfGroup()
	}
}

// drain takes the rest of the output, and stops where a process that left
// the group holds the pipe open.
func (r *rank) drain() {
	cut := time.AfterFunc(drainTime, func() {
		for _, p := range r.pipes {
			_ = p.ours.SetReadDeadline(time.Unix(1, 0))
		}
	})
	r.copies.Wait()
	cut.Stop()
}

// code is the exit code as a shell has it.
func (r *rank) code() int {
	if r.status.Signaled() {
		return 128 + int(r.status.Signal())
	}
	return r.status.ExitStatus()
}

func (r *rank) String() string {
	how := r.cmd.ProcessState.String()
	return fmt.Sprintf("rank %d (pid %d): %s", r.number, r.cmd.Process.Pid, how)
}
