package launch

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// echoName is argument 0 of a groupEcho. pkill -f ibrun must not find it: what that sends is not
// for the group.
const echoName = "signal-echo"

// echoed are the signals that may be sent to a whole process group.
var echoed = append([]os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1,
	syscall.SIGUSR2}, stopping...)

// groupEcho is a process of this program in its process group that does nothing but report which
// signals it received: they were for the group, and rank 0 has them too.
type groupEcho struct {
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
	e := &groupEcho{hold: hold, back: back, heard: map[syscall.Signal]time.Time{}, news: make(chan struct{}, 1)}
	// In a group of its own until it is ready: a Ctrl-Z would stop it, and we wait.
	_, err = c.startSelf(&syscall.SysProcAttr{Setpgid: true}, in, out, echoName)
	in.Close()
	out.Close()
	if err == nil {
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
