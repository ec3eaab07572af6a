package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
	"github.com/ibconduit/conduit/internal/mux"
)

// server runs exchanges, each in a goroutine.
type server struct {
	ch *mux.Channel

	mu        sync.Mutex
	exchanges map[uint32]*exchange
	built     bool

	procs processTable
}

func newServer(port io.Writer) *server {
	s := &server{ch: mux.New(port, 0), exchanges: map[uint32]*exchange{}, procs: newProcessTable()}
	s.ch.Handle = s.take
	return s
}

// exchange is one request under way.
type exchange struct {
	s       *server
	id      uint32
	req     wire.Request
	streams wire.Streams

	mu     sync.Mutex
	pgid   int         // process group of the command, 0 before its start
	signal unix.Signal // arrived before the start
}

func (s *server) take(f mux.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := s.exchanges[f.ID]; {
	case f.Kind == wire.KindOpen:
		e = &exchange{s: s, id: f.ID, streams: wire.NewStreams(s.ch, f.ID)}
		if err := json.Unmarshal(f.Body, &e.req); err != nil {
			s.ch.Fail(fmt.Errorf("request: %w", err))
			return
		}
		s.exchanges[f.ID] = e
		go e.run()
	case f.Kind == wire.KindSignal && e != nil && len(f.Body) > 0: // else it has just ended
		e.kill(unix.Signal(f.Body[0]))
	}
}

// kill signals the command's process group, now or as soon as there is one.
func (e *exchange) kill(sig unix.Signal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pgid == 0 {
		e.signal = sig
		return
	}
	_ = unix.Kill(-e.pgid, sig)
}

func (e *exchange) run() {
	res := e.do()
	e.s.mu.Lock()
	delete(e.s.exchanges, e.id)
	e.s.mu.Unlock()
	e.streams.Close()
	_ = wire.SendJSON(e.s.ch, wire.KindExit, e.id, res) // it has no value that JSON cannot hold
}

func (e *exchange) do() wire.Result {
	var err error
	switch e.req.Op {
	case wire.OpSetup:
		err = e.s.setup(e.req.Setup)
	case wire.OpExec:
		return e.exec()
	case wire.OpFetch:
		err = sendTar(e.streams.Out, e.req.Argv)
	case wire.OpDmesg:
		err = sendKernelLog(e.streams.Out)
	case wire.OpLink:
		err = changeLink(e.streams.Out, e.req.Link)
	default:
		err = fmt.Errorf("unknown operation %q", e.req.Op)
	}
	if err != nil {
		return wire.Result{Code: 125, Err: err.Error()}
	}
	return wire.Result{}
}

func (s *server) setup(w *wire.Setup) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w == nil || s.built {
		return errors.New("setup comes once, with a description")
	}
	s.built = true
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited); err != nil {
		return fmt.Errorf("lift the limit of locked memory: %w", err)
	}
	files := unix.Rlimit{Cur: 65536, Max: 65536}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return buildWorld(w)
}
