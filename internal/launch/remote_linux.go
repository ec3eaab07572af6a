package launch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/mux"
)

// remote is a rank that an agent has started.
type remote struct {
	rank   *rank
	agent  *agent
	copies sync.WaitGroup

	mu sync.Mutex
	remoteState
}

// remoteState is the known state of a rank of another host.
type remoteState struct {
	pid   int // 0: it has not been started
	death int // its place among them, from 1
	over  bool
	exit  int
	text  string
}

func (m *remote) state() remoteState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.remoteState
}

// listen takes the rank's output.
func (m *remote) listen(from *mux.Stream, fd int) error {
	to, err := m.agent.hosts.run.outputs.open(m.rank.number, fd, func() bool { return from.Buffered() > 0 })
	if err == nil {
		m.copies.Go(func() { takeAll(to, from) })
	}
	return err
}

// dies notes that the rank begins to end.
func (m *remote) dies() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.death == 0 {
		m.death = int(m.agent.hosts.dying.Add(1))
	}
}

// end is the end of a rank that was started.
func (m *remote) end(code int, how string) {
	m.mu.Lock()
	again := m.over
	if !again {
		m.over, m.exit, m.text = true, code, how
		m.rank.order = m.agent.hosts.orders.Add(1)
	}
	m.mu.Unlock()
	if again {
		return
	}
	events := m.agent.hosts.run.events
	events <- event{rank: m.rank}
	go func() {
		m.copies.Wait()
		events <- event{m.rank, true}
	}()
}

func (m *remote) begins(pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pid = pid
}

// runs: it has been started.
func (m *remote) runs() bool { return m.state().pid != 0 }

func (m *remote) signal(s syscall.Signal) {
	m.agent.ch.Send(kindSignal, uint32(m.rank.number), []byte{byte(s)})
}

func (m *remote) grouped() bool              { return false }
func (m *remote) shares(syscall.Signal) bool { return false }

func (m *remote) place() (n int, ok bool) { n = m.state().death; return n, n > 0 }
func (m *remote) where() string           { return fmt.Sprintf("pid %d on %s", m.state().pid, m.agent.name) }
func (m *remote) code() int               { return m.state().exit }
func (m *remote) how() string             { return m.state().text }

// ofHost are variables that describe a host, or a session on it; others begin with
// ofHostPrefixes.
var (
	ofHost = []string{"HOME", "USER", "LOGNAME", "SHELL", "MAIL", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "HOST",
		"TERM", "TMPDIR", "TMP", "TEMP",
		"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "TMUX", "TMUX_PANE", "STY", "WINDOWID", "SLURMD_NODENAME",
		"SLURM_NODEID", "SLURM_PROCID",
		"SLURM_LOCALID", "SLURM_TASK_PID", "SLURM_GTIDS", "LS_COLORS"}
	ofHostPrefixes = []string{"SSH_", "XDG_", "DBUS_", "GPG_"}
)

// Sent reports whether a variable of the environment is sent to the ranks of other hosts: all are
// but those that describe a host or a session, and those by which an outer job knows its ranks.
func Sent(variable string) bool {
	return !slices.Contains(ofHost, variable) && !slices.Contains(outer, variable) &&
		!slices.ContainsFunc(ofHostPrefixes, func(p string) bool { return strings.HasPrefix(variable, p) })
}

// pumpStdin sends standard input to rank 0. A terminal is read only while this process has it: in
// the background typed input is another's, and to read would stop the job.
func pumpStdin(to *mux.Stream, stdin *os.File) {
	defer to.CloseWrite()
	terminal := isTerminal(stdin)
	buf := make([]byte, mux.Part)
	for {
		if terminal && !awaitInput(to, stdin) {
			return
		}
		n, err := stdin.Read(buf)
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
		if n == 0 {
			return
		}
	}
}

// awaitInput waits until the terminal is ours and has input; false when the stream has ended.
func awaitInput(to *mux.Stream, terminal *os.File) bool {
	const look = 100 // ms
	for {
		select {
		case <-to.Done():
			return false
		default:
		}
		ready := false
		control(terminal, func(fd int) {
			if group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && group == unix.Getpgrp() {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, look)
				ready = err == nil && n > 0
			} else {
				_, _ = unix.Poll(nil, look)
			}
		})
		if ready {
			return true
		}
	}
}
