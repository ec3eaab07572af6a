package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
	"github.com/ibconduit/conduit/internal/mux"
)

// outputGrace is how long output is awaited after the command has ended, from children that kept
// its pipes.
const outputGrace = time.Second

// processTable knows the agent's own children: as init it also inherits all orphans and
// must reap them, so one goroutine waits for all and passes on the statuses of ours.
type processTable struct {
	mu   sync.Mutex
	wait map[int]chan syscall.WaitStatus
	some chan struct{}
}

func newProcessTable() processTable {
	return processTable{wait: map[int]chan syscall.WaitStatus{}, some: make(chan struct{}, 1)}
}

// start forks under the table's lock, so that the child's end cannot be seen before the child is
// known.
func (t *processTable) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus,
	error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	t.wait[pid] = ch
	select {
	case t.some <- struct{}{}:
	default:
	}
	return pid, ch, nil
}

func (s *server) reap() {
	t := &s.procs
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.ECHILD {
			<-t.some
			continue
		}
		if err != nil {
			continue // EINTR
		}
		t.mu.Lock()
		if ch := t.wait[pid]; ch != nil {
			ch <- status
			delete(t.wait, pid)
		}
		t.mu.Unlock()
	}
}

func (e *exchange) exec() wire.Result {
	path, err := lookPath(e.req.Argv, e.req.Env, e.req.Dir)
	if err != nil {
		return startFailure(err)
	}
	argv := e.req.Argv
	if e.req.Memlock > 0 {
		argv = append([]string{ChildArg, strconv.FormatInt(e.req.Memlock, 10), path}, argv...)
		path = "/proc/self/exe"
	}
	p, err := newPipes(e.req.NoStdin)
	if err != nil {
		return startFailure(err)
	}
	e.mu.Lock()
	pid, done, err := e.s.procs.start(path, argv, &syscall.ProcAttr{
		Dir: e.req.Dir, Env: e.req.Env, Files: p.child(), Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err == nil {
		e.pgid = pid
		if e.signal != 0 {
			_ = unix.Kill(-pid, e.signal)
		}
	}
	e.mu.Unlock()
	p.closeChild()
	if err != nil {
		p.closeParent()
		return startFailure(fmt.Errorf("start %s in %s: %w", e.req.Argv[0], e.req.Dir, err))
	}
	return e.attend(p, done)
}

// attend moves the streams and waits for the end.
func (e *exchange) attend(p *pipes, done <-chan syscall.WaitStatus) wire.Result {
	if p.stdin[1] != nil {
		go func() {
			if _, err := io.Copy(struct{ io.Writer }{p.stdin[1]}, e.streams.In); err != nil {
				e.streams.In.Drop() // EPIPE: the command does not read all, which is its right
			}
			p.stdin[1].Close()
		}()
	}
	var copies sync.WaitGroup
	for _, c := range []struct {
		to   *mux.Stream
		from *os.File
	}{{e.streams.Out, p.stdout[0]}, {e.streams.Err, p.stderr[0]}} {
		copies.Go(func() {
			_, _ = io.CopyBuffer(struct{ io.Writer }{c.to}, struct{ io.Reader }{c.from}, make([]byte, mux.Part))
			_ = c.to.CloseWrite()
		})
	}
	status := <-done
	e.mu.Lock()
	e.pgid = 0
	e.mu.Unlock()
	// Pipes closed by deadline, not by hand: os.File makes that safe against a read under way.
	late := time.AfterFunc(outputGrace, func() {
		_ = p.stdout[0].SetReadDeadline(time.Now())
		_ = p.stderr[0].SetReadDeadline(time.Now())
	})
	copies.Wait()
	late.Stop()
	p.closeParent()
	e.streams.In.Close()
	if status.Signaled() {
		return wire.Result{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return wire.Result{Code: status.ExitStatus()}
}

// startFailure uses the shell's codes: 127 not found, 126 not executable.
func startFailure(err error) wire.Result {
	code := 126
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		code = 127
	}
	return wire.Result{Code: code, Err: err.Error()}
}

// lookPath finds the command as the caller's shell would: by the command's PATH and directory, not
// the agent's.
func lookPath(argv, env []string, dir string) (string, error) {
	if len(argv) == 0 {
		return "", errors.New("no command")
	}
	name := argv[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		_, err := os.Stat(name)
		return name, err
	}
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, d := range filepath.SplitList(list) {
			file := filepath.Join(d, name)
			if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// pipes are the command's standard streams: [0] is the reading end.
type pipes struct{ stdin, stdout, stderr [2]*os.File }

func newPipes(noStdin bool) (p *pipes, err error) {
	p = new(pipes)
	defer func() {
		if err != nil {
			p.closeChild()
			p.closeParent()
		}
	}()
	if noStdin {
		if p.stdin[0], err = os.Open(os.DevNull); err != nil {
			return p, err
		}
	} else if p.stdin[0], p.stdin[1], err = os.Pipe(); err != nil {
		return p, err
	}
	if p.stdout[0], p.stdout[1], err = os.Pipe(); err != nil {
		return p, err
	}
	p.stderr[0], p.stderr[1], err = os.Pipe()
	return p, err
}

func (p *pipes) child() []uintptr {
	return []uintptr{p.stdin[0].Fd(), p.stdout[1].Fd(), p.stderr[1].Fd()}
}

func (p *pipes) closeChild()  { closeAll(p.stdin[0], p.stdout[1], p.stderr[1]) }
func (p *pipes) closeParent() { closeAll(p.stdin[1], p.stdout[0], p.stderr[0]) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
