package launch

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// guardName is argument 0 of the guard.
const guardName = "ibrun-guard"

// guard is a second process of this program, in a session of its own, that outlives
// the launching one if that is killed. It holds the reading end of a pipe: a byte
// means that the job has ended in order, the end of the pipe without one that
// no other process is left to clean up.
type guard struct {
	pipe  *os.File
	ended <-chan struct{}
}

func startGuard(h *handover, c *children) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	ended, err := c.startSelf(&syscall.SysProcAttr{Setsid: true}, r, nil, guardName, h.job, h.dir)
	if err != nil {
		w.Close()
		return nil, err
	}
	return &guard{w, ended}, nil
}

// dismiss ends the guard: the job has ended.
func (g *guard) dismiss() {
	_, _ = g.pipe.Write([]byte{1}) // fails if the guard has been killed
	_ = g.pipe.Close()
	<-g.ended
}

// GuardMain is the first thing that main of a program calls which sets
// Config.Guard or Config.JobControl. In the processes that these start it does not return; anywhere
// else it does nothing.
func GuardMain() {
	if len(os.Args) == 1 && os.Args[0] == echoName {
		echoMain()
	}
	if len(os.Args) != 3 || os.Args[0] != guardName {
		return
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	if n, _ := io.ReadFull(os.Stdin, make([]byte, 1)); n == 0 {
		killJob(os.Args[1])
		if dir := os.Args[2]; dir != "" {
			removeDir(dir)
		}
	}
	os.Exit(0)
}

// killJob kills every process that was started with the job's id in its
// environment, as all descendants of a rank are unless a program cleared it. It goes on
// until there is none; the bound is for a tree that grows faster than it is cut.
func killJob(job string) {
	mark := []byte(jobMark + job)
	for range 100 {
		found := false
		stats, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, path := range stats {
			if killMarked(path, mark) {
				found = true
			}
		}
		if !found {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// killMarked kills the process of an environment if the mark stands there. The process
// is opened before its environment is read: its number may be another's after.
func killMarked(path string, mark []byte) bool {
	pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
	if err != nil || pid == os.Getpid() {
		return false
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer p.Release()
	env, err := os.ReadFile(path) // empty for a zombie, EACCES for other users' processes
	if err != nil {
		return false
	}
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(kv, mark) {
			return p.Signal(syscall.SIGKILL) == nil
		}
	}
	return false
}
