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

// child is a rank that runs on this host.
type child struct {
	number int
	cmd    *exec.Cmd
	deaths *deaths
	kills  *memoryKills
	echo   *groupEcho
	// inOurGroup: it has no process group of its own, for the terminal's sake
	inOurGroup bool
	pipes      []*pipe  // of its output
	life       *os.File // our end of the pipe that ends with it; see deaths
	copies     sync.WaitGroup

	mu     sync.Mutex
	killed bool // SIGKILL was sent from here
	reaped bool // its pid, and that of its group, may belong to others now
	status syscall.WaitStatus
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

// startChild starts one rank. The kernel ties its life to the calling thread:
// the caller has locked it and keeps it until the child has ended.
func (s *local) startChild(n int) (_ *child, err error) {
	cfg, h, prog := s.cfg, s.handover, s.cfg.program(n)
	k := &child{number: n, cmd: exec.Command(s.paths[prog.Path], prog.Args...), deaths: s.deaths, kills: s.kills,
		echo: s.echo, inOurGroup: n == 0 && s.echo != nil}
	k.cmd.Args[0] = prog.Path
	k.cmd.Dir = cfg.Dir
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !k.inOurGroup, Pdeathsig: syscall.SIGKILL}
	k.cmd.Env = append(without(cfg.Env, outer),
		"IBCONDUIT_RANK="+strconv.Itoa(n), "IBCONDUIT_SIZE="+strconv.Itoa(cfg.N),
		"IBCONDUIT_JOB="+h.job)
	if len(cfg.Programs) > 1 {
		k.cmd.Env = append(k.cmd.Env, "IBCONDUIT_PROGRAMS="+strconv.Itoa(len(cfg.Programs)))
	}
	k.cmd.Env = append(k.cmd.Env, h.env()...)
	if n == 0 && cfg.Stdin != nil {
		k.cmd.Stdin = cfg.Stdin
	}
	if cfg.Direct {
		k.cmd.Stdout, k.cmd.Stderr = file(cfg.Stdout), file(cfg.Stderr)
	}
	theirs, err := k.connect(s.layout.clone(), h, s.ended)
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
	k.cmd.Env = append(append(k.cmd.Env, prog.Env...), cfg.RankEnv(n)...)
	for _, p := range k.pipes {
		if p.to, err = s.output(n, p.fd, func() bool { return available(p.ours) > 0 }); err != nil {
			return nil, err
		}
	}
	if err = s.children.start(k.cmd); err != nil {
		return nil, err
	}
	// A rank without a place in the order of deaths is better than no rank.
	_ = s.deaths.add(k)
	return k, nil
}

// connect makes the descriptors that the rank inherits; theirs are ours to close once it runs.
func (c *child) connect(l layout, h *handover, ended *endedList) (theirs []*os.File, err error) {
	give := func(variable string, f *os.File) {
		c.cmd.Env = append(c.cmd.Env, variable+"="+tagged(l.add(f), f))
	}
	defer func() { c.cmd.ExtraFiles = l.files }()
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
	if c.number == 0 {
		for variable, f := range map[string]*os.File{"IBCONDUIT_LISTEN_FD": h.listener, "IBCONDUIT_SOCKET_FD": h.socket} {
			if f != nil {
				give(variable, f)
			}
		}
	}
	var life *os.File
	if c.life, life, err = newPipe(); err != nil {
		return theirs, err
	}
	give("IBCONDUIT_LIFE_FD", life)
	if ended != nil {
		give("IBCONDUIT_ENDED_FD", ended.file)
	}
	for i, end := range []*io.Writer{&c.cmd.Stdout, &c.cmd.Stderr} {
		if *end != nil {
			continue
		}
		ours, their, err := newPipe()
		if err != nil {
			return theirs, err
		}
		c.pipes = append(c.pipes, &pipe{fd: 1 + i, ours: ours})
		*end = their
	}
	return theirs, nil
}

// closePipes when the job has ended, not before: epoll forgets closed descriptors, even
// if it is about to report them.
func (c *child) closePipes() {
	for _, p := range c.pipes {
		_ = p.ours.Close()
	}
	_ = c.life.Close() // of nil it does nothing
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
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed = c.killed || s == syscall.SIGKILL && !c.reaped
	switch pid := c.cmd.Process.Pid; {
	case c.reaped:
	case c.inOurGroup:
		for _, p := range append(family(pid), pid) {
			_ = syscall.Kill(p, s)
		}
	default:
		_ = syscall.Kill(-pid, s)
	}
}

// wait returns when the rank has ended. The rest of its group is killed
// while the rank is still a zombie, so that the number is surely its own.
func (c *child) wait(orders *atomic.Int64, all *children) (order int64) {
	all.await(c.cmd)
	order = orders.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.inOurGroup {
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	}
	all.wait(c.cmd)
	c.reaped = true
	c.status, _ = c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if c.inOurGroup {
		all.endOrphans(inOurGroup)
	}
	return order
}

// take begins to take the output.
func (c *child) take() {
	for _, p := range c.pipes {
		c.copies.Go(func() { p.copy(p.to) })
	}
}

// drain takes the rest of the output, and stops where a process that left
// the group holds the pipe open.
func (c *child) drain() {
	cut := time.AfterFunc(drainTime, func() {
		for _, p := range c.pipes {
			_ = p.ours.SetReadDeadline(time.Unix(1, 0))
		}
	})
	c.copies.Wait()
	cut.Stop()
}

// code is the exit code as a shell has it.
func (c *child) code() int {
	if c.status.Signaled() {
		return 128 + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// how says how the rank ended, and why as far as the machine knows.
func (c *child) how() string {
	state := c.cmd.ProcessState
	return state.String() + c.kills.cause(state, c.killed)
}

func (c *child) where() string { return fmt.Sprintf("pid %d", c.cmd.Process.Pid) }
func (c *child) grouped() bool { return c.inOurGroup }

func (c *child) shares(s syscall.Signal) bool { return c.inOurGroup && c.echo.toGroup(s) }
func (c *child) place() (n int, ok bool)      { return c.deaths.place(c) }
