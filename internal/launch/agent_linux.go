package launch

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ibconduit/conduit/internal/mux"
)

// agency is an agent: it starts the ranks of its host, and ends them when the channel ends.
type agency struct {
	ch     *mux.Channel
	spec   spec
	local  *local
	events chan event
	bye    chan struct{}
	input  *mux.Stream // rank 0's, where that is here and has one

	mu      sync.Mutex
	ranks   map[int]*rank
	outputs map[uint32]*mux.Stream
	relays  atomic.Uint32
	ready   chan struct{} // closed when the rendezvous is open
}

// Agent is the life of an agent: the work of a program with the arguments Config.Agent. It returns
// the exit code.
func Agent(in io.Reader, out io.Writer) int {
	l := newLayout(os.Getenv) // before anything is opened
	// The end of the session is the end of the channel. Caught, not ignored: the ranks would
	// inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGHUP, syscall.SIGINT)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	if _, err := fmt.Fprintf(out, "\n%s\n", agentBanner); err != nil {
		return 1
	}
	f, err := mux.ReadFrame(in)
	a := &agency{bye: make(chan struct{}), ranks: map[int]*rank{}, outputs: map[uint32]*mux.Stream{},
		ready: make(chan struct{})}
	if err == nil && f.Kind != kindSpec {
		err = errors.New("no description of the job came")
	}
	if err == nil {
		err = gob.NewDecoder(bytes.NewReader(f.Body)).Decode(&a.spec)
	}
	if err != nil {
		if !errors.Is(err, io.EOF) { // else the job has ended before it began
			fmt.Fprintf(os.Stderr, "ibrun --agent: %v: it is started by ibrun -H\n", err)
		}
		return 1
	}
	a.ch = mux.New(out, a.spec.Silence)
	a.ch.Handle, a.ch.Opened = a.obey, a.relayToRoot
	if a.spec.Stdin {
		a.input = a.ch.Stream(stdinStream) // before anything of it comes
	}
	a.ch.Begin(in)
	go func() {
		select {
		case <-ended:
			a.ch.Fail(errors.New("terminated"))
		case <-a.ch.Done():
		}
	}()
	a.events = make(chan event, 2*len(a.spec.Numbers))
	ranks, err := a.start(l)
	if err != nil {
		var se *StartError
		code := 126
		if errors.As(err, &se) {
			code = se.ExitCode()
		}
		a.ch.Send(kindFailed, 0, append([]byte{byte(code)}, err.Error()...))
	} else {
		a.ch.Send(kindRunning, 0, nil)
	}
	a.see(ranks)
	select {
	case <-a.bye:
		a.ch.Flush(a.spec.Grace)
	case <-a.ch.Done():
	}
	if a.local != nil {
		a.local.close()
	}
	return 0
}

// start starts the ranks, and opens the way by which they meet the others.
func (a *agency) start(l layout) ([]*rank, error) {
	sp := &a.spec
	for _, kv := range sp.Env {
		for i := range kv {
			if kv[i] == '=' && i > 0 {
				_ = os.Setenv(kv[:i], kv[i+1:])
				break
			}
		}
	}
	if err := os.Chdir(sp.Dir); err != nil {
		return nil, fmt.Errorf("%w (the working directory must exist on every host)", err)
	}
	size := 0
	for _, p := range sp.Programs {
		size += p.N
	}
	extra := map[int][]string{}
	for i, n := range sp.Numbers {
		extra[n] = sp.RankEnv[i]
	}
	cfg := Config{
		N: size, Programs: sp.Programs, Env: os.Environ(), RankEnv: func(n int) []string { return extra[n] },
		Prefix: func(int) string { return "" }, Report: a.report,
		Grace: sp.Grace, Bind: sp.Bind, Placement: sp.Placement, Adopt: true, Guard: true,
	}
	if sp.Stdin {
		back, err := a.stdin(&cfg)
		if err != nil {
			return nil, err
		}
		defer back()
	}
	h := &handover{job: sp.Job, secret: sp.Secret}
	s, err := newLocal(&cfg, l, sp.Numbers, h, a.events)
	if err != nil {
		return nil, err
	}
	s.output = a.output
	s.deaths.setNoted(func(c *child) { a.ch.Send(kindDying, uint32(c.number), nil) })
	if a.local = s; sp.Numbers[0] != 0 {
		if err := a.listen(h); err != nil {
			return nil, err
		}
	}
	close(a.ready)
	ranks, err := s.start(context.Background())
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range ranks {
		a.ranks[k.number] = k
		a.ch.Send(kindStarted, uint32(k.number),
			binary.LittleEndian.AppendUint32(nil, uint32(k.process.(*child).cmd.Process.Pid)))
	}
	return ranks, err
}

// stdin makes rank 0's standard input; back closes what only the rank needs.
func (a *agency) stdin(cfg *Config) (back func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cfg.Stdin = r
	go func() {
		_, _ = io.Copy(w, a.input)
		a.input.Drop()
		_ = w.Close()
	}()
	return func() { _ = r.Close() }, nil
}

// output sends what a rank writes.
func (a *agency) output(number, fd int, _ func() bool) (outputWriter, error) {
	id := outputStream(number, fd)
	s := a.ch.Stream(id)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outputs[id] = s
	return connWriter{s}, nil
}

type connWriter struct{ to *mux.Stream }

func (t connWriter) take(p []byte) { _, _ = t.to.Write(p) } // after the channel's end it is nobody's
func (t connWriter) flush()        {}

// see waits until all ranks have ended. When the channel has ended they are ended.
func (a *agency) see(ranks []*rank) {
	hurry := stopped()
	defer hurry.Stop()
	lost := a.ch.Done()
	for wet := len(ranks); wet > 0; {
		select {
		case ev := <-a.events:
			n := ev.rank.number
			if !ev.dry {
				a.ch.Send(kindEnded, uint32(n), append([]byte{byte(ev.rank.code())}, ev.rank.how()...))
				break
			}
			wet--
			for fd := 1; fd <= 2; fd++ {
				_ = a.outputs[outputStream(n, fd)].CloseWrite()
			}
		case <-lost:
			lost = nil
			for _, k := range ranks {
				k.signal(syscall.SIGCONT)
				k.signal(syscall.SIGTERM)
			}
			hurry.Reset(a.spec.Grace * 3 / 4)
		case <-hurry.C:
			for _, k := range ranks {
				k.signal(syscall.SIGKILL)
			}
		}
	}
}

// report is for the user of ibrun.
func (a *agency) report(text string) { a.ch.Send(kindReport, 0, []byte(text)) }

// obey takes a frame of ibrun.
func (a *agency) obey(f mux.Frame) {
	switch f.Kind {
	case kindSignal:
		a.mu.Lock()
		k := a.ranks[int(f.ID)]
		a.mu.Unlock()
		if k != nil {
			k.signal(syscall.Signal(firstOf(f)))
		}
	case kindEnded:
		select {
		case <-a.ready:
			a.local.ended.add(int(f.ID), textOf(f, 0))
		default: // nothing was started here
		}
	case kindPause:
		a.ch.Pause(true)
	case kindResume:
		a.ch.Pause(false)
	case kindBye:
		close(a.bye)
	}
}

// listen takes the place of rank 0 on this host.
func (a *agency) listen(h *handover) error {
	for _, f := range []*os.File{h.socket, h.listener} {
		if f == nil {
			continue
		}
		ln, err := net.FileListener(f)
		if err != nil {
			return err
		}
		a.local.closing(func() { _ = ln.Close() })
		go acceptAll(ln, a.report, func(c net.Conn) {
			go relayRank(c, a.ch.Open(firstRelay+a.relays.Add(1)), a.local.deaths.look)
		})
	}
	h.close() // no rank gets them
	return nil
}

// relayToRoot joins a stream with rank 0, which is here.
func (a *agency) relayToRoot(s *mux.Stream) {
	go func() {
		select {
		case <-a.ready:
		case <-a.ch.Done():
			return
		}
		h := a.local.handover
		c, err := net.Dial("unix", filepath.Join(h.dir, socketName))
		if err != nil && h.addr != "" {
			c, err = net.Dial("tcp", h.addr)
		}
		if err != nil {
			if limits(err) != "" {
				a.report(fmt.Sprintf("rank 0 is not reached by another rank: %v%s", err, limits(err)))
			}
			s.Drop()
			_ = s.CloseWrite()
			return
		}
		relayRank(c, s, a.local.deaths.look)
	}()
}
