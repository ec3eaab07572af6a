package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// server reads frames and runs exchanges. One goroutine reads; each exchange has its own.
type server struct {
	in  *wire.Reader
	out *wire.Writer

	mu        sync.Mutex
	exchanges map[uint32]*exchange
	built     bool

	procs processTable
}

func newServer(port io.ReadWriter) *server {
	return &server{in: wire.NewReader(port), out: wire.NewWriter(port), exchanges: map[uint32]*exchange{},
		procs: newProcessTable()}
}

// exchange is one request under way.
type exchange struct {
	s              *server
	id             uint32
	req            wire.Request
	stdin          *wire.Receiver
	stdout, stderr *wire.Sender

	mu     sync.Mutex
	pgid   int         // process group of the command, 0 before its start
	signal unix.Signal // arrived before the start
}

// loop takes frames until the host is gone or breaks the protocol.
func (s *server) loop() error {
	for {
		f, err := s.in.Read()
		if err != nil {
			return fmt.Errorf("read from the host: %w", err)
		}
		if f.Kind == wire.KindOpen {
			e := &exchange{s: s, id: f.ID, stdin: wire.NewReceiver(s.out, f.ID, wire.Stdin),
				stdout: wire.NewSender(s.out, f.ID, wire.Stdout), stderr: wire.NewSender(s.out, f.ID, wire.Stderr)}
			if err := json.Unmarshal(f.Payload, &e.req); err != nil {
				return fmt.Errorf("request: %w", err)
			}
			s.mu.Lock()
			s.exchanges[f.ID] = e
			s.mu.Unlock()
			go e.run()
			continue
		}
		s.mu.Lock()
		e := s.exchanges[f.ID]
		s.mu.Unlock()
		if e == nil {
			continue // it has just ended
		}
		if err := e.take(f); err != nil {
			return err
		}
	}
}

func (e *exchange) take(f wire.Frame) error {
	switch f.Kind {
	case wire.KindData:
		_, data := f.Stream()
		return e.stdin.Push(data)
	case wire.KindCredit:
		switch stream, n := f.Credit(); stream {
		case wire.Stdout:
			e.stdout.Grant(n)
		case wire.Stderr:
			e.stderr.Grant(n)
		}
	case wire.KindSignal:
		e.kill(unix.Signal(f.Signal()))
	}
	return nil
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
	// The reader of the port notices a broken connection; nothing to add here.
	_ = e.s.out.WriteJSON(wire.KindExit, e.id, res)
}

func (e *exchange) do() wire.Result {
	var err error
	switch e.req.Op {
	case wire.OpSetup:
		err = e.s.setup(e.req.Setup)
	case wire.OpExec:
		return e.exec()
	case wire.OpFetch:
		err = sendTar(e.stdout, e.req.Argv)
	case wire.OpDmesg:
		err = sendKernelLog(e.stdout)
	case wire.OpLink:
		err = changeLink(e.stdout, e.req.Link)
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
