package launch

import (
	"bufio"
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ibconduit/conduit/internal/mux"
	"github.com/ibconduit/conduit/internal/ranklist"
)

const (
	// connectTime is how long ssh, the login and the start of an agent may take.
	connectTime = 30 * time.Second
	// bannerMost is how much may come before an agent's first line, from what a shell starts with.
	bannerMost = 64 << 10
	// lastWords is how long messages of ssh, and its status, are waited for after its output's end.
	lastWords = 3 * time.Second
	// drainMost is how long the output of an ssh that has ended may stay open.
	drainMost = 5 * time.Second
)

// sshOptions: no password is requested, and a host that does not answer is given up, before
// the connection and after; ports that the user has forwarded for his own sessions are not, nor is
// a command of theirs run.
var sshOptions = []string{"-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
	"-o", "ServerAliveCountMax=4",
	"-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none"}

// agent is the connection to one host.
type agent struct {
	hosts   *hosts
	name    string
	numbers []int
	remotes map[int]*remote
	ch      *mux.Channel // once there is one

	mu   sync.Mutex
	cmd  *exec.Cmd
	why  error         // it was cut
	in   *os.File      // our end of its standard input
	out  *bufio.Reader // its standard output, up to whose end read is open
	last string        // what it wrote before an agent
	read chan struct{}
	gone chan struct{} // it has ended
	said chan struct{} // its standard error has been taken, by words
	stop chan struct{} // closed when it is cut

	words *words

	frames sync.Mutex // held while one is taken, and by lost
	over   bool       // lost has been called: what comes later is nobody's

	answered chan struct{} // all ranks of the host have been started, or failure says why not
	answer   sync.Once
	failure  error
}

// command starts the agent; before are options of ssh.
func (a *agent) command(before ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	line := append([]string{self}, a.hosts.run.cfg.Agent...)
	if OnThisHost(a.name) {
		return exec.Command(line[0], line[1:]...), nil
	}
	for i, word := range line {
		line[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	ssh := a.hosts.run.cfg.SSH
	args := slices.Concat(ssh[1:], before, sshOptions, []string{a.name, "exec " + strings.Join(line, " ")})
	return exec.Command(ssh[0], args...), nil
}

// connect starts the agent and waits for its first line. refused says that ssh gave up instead: no
// connection, or one that was lost.
func (a *agent) connect() (refused bool, err error) {
	if err = a.startSSH(); err != nil {
		return false, err
	}
	late := time.AfterFunc(connectTime, func() { a.cut(fmt.Errorf("no agent within %v", connectTime)) })
	err = a.banner()
	late.Stop()
	if !errors.Is(err, errNoAgent) {
		return false, err
	}
	err = a.reason(err)
	state := a.ended()
	if state == nil || !state.Exited() {
		return false, err
	}
	if state.ExitCode() == 255 { // ssh's own words say it
		return !OnThisHost(a.name), err
	}
	return false, fmt.Errorf("%w; it ended before an agent answered%s", err, a.last)
}

func (a *agent) startSSH() error {
	cmd, err := a.command()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal interrupts ibrun, not this
	var theirs, ours []*os.File
	for _, write := range []bool{false, true, true} {
		r, w, err := os.Pipe()
		if err != nil {
			return err // and the job ends
		}
		if !write {
			r, w = w, r
		}
		theirs, ours = append(theirs, w), append(ours, r)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.why
	if err == nil {
		err = startProgram(cmd, func(int) bool { return false })
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		for _, f := range ours {
			_ = f.Close()
		}
		return err
	}
	_ = a.in.Close() // of an earlier try, or nil
	read, gone, said := make(chan struct{}), make(chan struct{}), make(chan struct{})
	w := &words{to: &stream{sink: a.hosts.run.outputs.errs, prefix: []byte(a.name + ": "), hold: holdTime}}
	a.cmd, a.in, a.out = cmd, ours[0], bufio.NewReader(&toEnd{r: ours[1], end: read})
	a.read, a.gone, a.said, a.words, a.last = read, gone, said, w, ""
	go func() {
		takeAll(w, ours[2])
		_ = ours[2].Close()
		close(said)
	}()
	go func() {
		_ = cmd.Wait()
		close(gone)
		late := time.After(drainMost) // a process that it left behind may hold its output
		for _, c := range []chan struct{}{read, said} {
			select {
			case <-c:
			case <-late:
				late = time.After(0)
			}
		}
		_ = ours[1].Close()
		_ = ours[2].Close()
	}()
	return nil
}

// toEnd closes a channel at the end of a reader.
type toEnd struct {
	r    io.Reader
	once sync.Once
	end  chan struct{}
}

func (t *toEnd) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if err != nil {
		t.once.Do(func() { close(t.end) })
	}
	return n, err
}

var errNoAgent = errors.New("no agent answered")

// banner passes over what a shell says first.
func (a *agent) banner() error {
	r := io.LimitReader(a.out, bannerMost)
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := r.Read(b); err != nil {
			return errNoAgent
		}
		if line = append(line, b[0]); b[0] != '\n' {
			continue
		}
		switch text := strings.TrimSpace(string(line)); {
		case text == agentBanner:
			return nil
		case strings.HasPrefix(text, "ibrun-agent "):
			return fmt.Errorf("its ibrun is of another version (%s, here %s)", printable([]byte(text)), agentBanner)
		}
		if text := strings.TrimSpace(printable(line)); text != "" {
			a.last = fmt.Sprintf(", and wrote last: %.200s", text)
		}
		line = line[:0]
	}
}

// ended is the state of the process that connects us, or nil.
func (a *agent) ended() *os.ProcessState {
	select {
	case <-a.gone:
		return a.cmd.ProcessState
	default:
		return nil
	}
}

// reason is why the connection has ended, as well as it is known.
func (a *agent) reason(err error) error {
	a.mu.Lock()
	why := a.why
	a.mu.Unlock()
	if why != nil {
		return why
	}
	late := time.After(lastWords)
	select {
	case <-a.gone:
	case <-late:
		return err
	}
	select { // its own words come first, where they come
	case <-a.said:
	case <-late:
	}
	state := a.cmd.ProcessState
	text := filepath.Base(a.cmd.Path) + ": " + state.String()
	switch code := state.ExitCode(); {
	case OnThisHost(a.name):
	case code == 255:
		text += " (no connection, or it was lost; passwords are not asked for: " + strings.Join(a.hosts.run.cfg.SSH, " ") +
			" -o BatchMode=yes " + a.name + " must work)"
	case code == 126 || code == 127:
		text += " (ibrun must be at the same path on every host: " + a.selfPath() + ")"
	}
	return errors.New(text)
}

func (a *agent) selfPath() string {
	self, _ := os.Executable()
	return self
}

// cut ends the connection, at once for us; the agent ends its ranks.
func (a *agent) cut(why error) {
	a.mu.Lock()
	if a.why == nil {
		a.why = why
		close(a.stop)
	}
	cmd, ch, gone := a.cmd, a.ch, a.gone
	a.mu.Unlock()
	if ch != nil {
		ch.Fail(why)
	}
	if cmd == nil {
		return
	}
	_ = a.in.Close()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	time.AfterFunc(2*a.hosts.run.cfg.Grace, func() {
		select {
		case <-gone:
		default:
			_ = cmd.Process.Kill()
		}
	})
}

// begin sends the agent what to start.
func (a *agent) begin() {
	cfg := &a.hosts.run.cfg
	ch := mux.New(a.in, cfg.Silence)
	ch.Handle, ch.Opened, ch.Ending = a.receive, a.hosts.relay, a.dies
	a.mu.Lock()
	a.ch = ch
	cut := a.why
	a.mu.Unlock()
	sp := spec{
		Job: a.hosts.job.job, Secret: a.hosts.job.secret, Numbers: a.numbers, Programs: cfg.Programs, Dir: cfg.Dir,
		Bind: cfg.Bind, Placement: cfg.Placement, Grace: cfg.Grace, Silence: cfg.Silence,
		Stdin: a.numbers[0] == 0 && cfg.Stdin != nil,
	}
	for _, kv := range cfg.Env {
		if k, _, _ := strings.Cut(kv, "="); Sent(k) {
			sp.Env = append(sp.Env, kv)
		}
	}
	for _, n := range a.numbers {
		sp.RankEnv = append(sp.RankEnv, cfg.RankEnv(n))
	}
	var body bytes.Buffer
	err := gob.NewEncoder(&body).Encode(sp)
	for _, n := range a.numbers {
		for fd := 1; fd <= 2 && err == nil; fd++ {
			err = a.remotes[n].listen(ch.Stream(outputStream(n, fd)), fd)
		}
	}
	if err == nil {
		err = cut
	}
	ch.Send(kindSpec, 0, body.Bytes())
	if sp.Stdin { // behind what says so
		go pumpStdin(ch.Stream(stdinStream), cfg.Stdin)
	}
	ch.Begin(a.out)
	go func() {
		<-ch.Done()
		a.lost()
	}()
	if err != nil {
		a.cut(err)
	}
}

// receive takes a frame of the agent.
func (a *agent) receive(f mux.Frame) {
	a.frames.Lock()
	defer a.frames.Unlock()
	if a.over {
		return
	}
	m := a.remotes[int(f.ID)]
	switch f.Kind {
	case kindStarted:
		if m != nil {
			m.begins(f.Number())
		}
	case kindRunning:
		if a == a.hosts.root {
			close(a.hosts.rooted)
		}
		a.settle(nil)
	case kindFailed:
		text := strings.TrimPrefix(textOf(f, 1), "launch: ")
		a.settle(&HostError{Host: a.name, Err: errors.New(text), code: firstOf(f)})
	case kindDying:
		if m != nil {
			m.dies()
		}
	case kindEnded:
		if m != nil {
			m.end(firstOf(f), textOf(f, 1))
		}
	case kindReport:
		a.hosts.run.cfg.Report("host " + a.name + ": " + textOf(f, 0))
	}
}

func (a *agent) settle(failure error) {
	a.answer.Do(func() {
		a.failure = failure
		close(a.answered)
	})
}

// left are the ranks that have not ended.
func (a *agent) left() (all []*remote) {
	for _, n := range a.numbers {
		if m := a.remotes[n]; m.runs() && !m.state().over {
			all = append(all, m)
		}
	}
	return all
}

// dies comes before any rank of another host can notice.
func (a *agent) dies() {
	for _, m := range a.left() {
		m.dies()
	}
}

// lost is the end of the connection, be it in order.
func (a *agent) lost() {
	a.frames.Lock()
	a.over = true // nothing is taken from now on
	a.frames.Unlock()
	a.dies()
	left := a.left()
	if len(left) > 0 {
		var numbers []int
		for _, m := range left {
			numbers = append(numbers, m.rank.number)
		}
		a.hosts.run.cfg.Report(fmt.Sprintf("host %s is lost, and %s with it: %v", a.name, ranklist.Text(numbers),
			a.reason(a.ch.Cause())))
	}
	for _, m := range left {
		m.end(HostLost, "lost with its host")
	}
	select {
	case <-a.answered:
	default:
		a.settle(&HostError{Host: a.name, Err: a.reason(a.ch.Cause())})
	}
	_ = a.in.Close() // whoever is left there learns of it
}
