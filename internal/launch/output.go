package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// maxHeld bytes of a line are kept back until its end arrives. A longer line
	// goes out in pieces; another rank's line then begins on a line of its own.
	maxHeld = 1 << 20

	// holdTime is how long the beginning of a line waits for its end: a prompt and the steps of
	// a progress bar have none.
	holdTime = 100 * time.Millisecond

	// retryTime passes between two attempts to write what a full disk did not take.
	retryTime = 100 * time.Millisecond
)

// outputWriter takes output. It blocks as long as the destination takes nothing.
type outputWriter interface {
	take(p []byte)
	flush()
}

// sink is a destination that several streams share.
type sink struct {
	name   string // for messages
	report func(string)
	over   <-chan struct{} // closed when an obstacle is waited for no more; nil: never

	mu      sync.Mutex
	w       io.Writer
	partial *stream // whose line stands unfinished at the end of the output
	err     error   // of the first failed write; later output is discarded
}

// stream is one rank's standard output or standard error.
type stream struct {
	sink   *sink
	prefix []byte
	hold   time.Duration // how long an unfinished line is held; 0: until its end
	coming func() bool   // whether more of the rank's output can be read already; may be nil

	mu   sync.Mutex
	held []byte // an unfinished line
	due  *time.Timer
}

// takeAll takes everything that r has until its end. It stops reading only while the destination
// takes nothing: the rank then waits at a full pipe.
func takeAll(s outputWriter, r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		s.take(buf[:n])
		if err != nil {
			s.flush()
			return
		}
	}
}

// take passes on whole lines and keeps the rest.
func (s *stream) take(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := len(s.held) == 0
	end := bytes.LastIndexByte(p, '\n') + 1
	if end > 0 {
		s.held = append(s.held, p[:end]...)
		s.sink.write(s, s.held)
		s.held = s.held[:0]
		fresh = true
	}
	s.held = append(s.held, p[end:]...)
	switch {
	case len(s.held) > maxHeld:
		s.flushLocked()
	case fresh && len(s.held) > 0:
		s.expectLocked()
	}
}

// expectLocked gives the held text its time.
func (s *stream) expectLocked() {
	switch {
	case s.hold == 0:
	case s.due == nil:
		s.due = time.AfterFunc(s.hold, s.age)
	default:
		s.due.Reset(s.hold)
	}
}

// age passes on what has been held for its time, unless its end has arrived but has not been read
// yet, as on a busy machine.
func (s *stream) age() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) > 0 && s.coming != nil && s.coming() {
		s.expectLocked()
		return
	}
	s.flushLocked()
}

// flush passes on an unfinished line.
func (s *stream) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flushLocked()
}

func (s *stream) flushLocked() {
	if s.due != nil {
		s.due.Stop()
	}
	if len(s.held) > 0 {
		s.sink.write(s, s.held)
	}
	s.held = nil
}

// write puts text behind the present output, beginning a new line where another
// stream's is unfinished. One call of w for each call: lines stay together.
func (k *sink) write(s *stream, text []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return
	}
	var out []byte
	if k.partial != nil && k.partial != s {
		out = append(out, '\n')
	}
	atStart := k.partial != s
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line = text[:i+1]
		}
		text = text[len(line):]
		if atStart {
			out = append(out, s.prefix...)
		}
		out = append(out, line...)
		atStart = line[len(line)-1] == '\n'
	}
	k.partial = nil
	if !atStart {
		k.partial = s
	}
	k.err = k.put(out)
}

// put writes all of the text. It waits where the destination may take the rest later: a full disk
// gets room, a pipe that another process has made non-blocking is read. The ranks wait as well,
// and nothing is lost.
func (k *sink) put(out []byte) error {
	for said := false; ; said = true {
		n, err := k.w.Write(out)
		out = out[min(max(n, 0), len(out)):]
		if err == nil || !passes(err) {
			return err
		}
		if !said && !errors.Is(err, syscall.EAGAIN) && k.report != nil {
			k.report(fmt.Sprintf("%s: %v; the ranks wait until it takes more", k.name, err))
		}
		over := k.over
		if errors.Is(err, syscall.EAGAIN) {
			over = nil // a reader may take its time, as with a pipe that blocks
		}
		select {
		case <-over:
			return err
		case <-time.After(k.pause(err)):
		}
	}
}

// passes reports an obstacle that may go away.
func passes(err error) bool {
	for _, e := range []error{syscall.EAGAIN, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// pause is the time before the next attempt; for a file that would block it has been waited for
// already.
func (k *sink) pause(err error) time.Duration {
	if f, ok := k.w.(*os.File); ok && errors.Is(err, syscall.EAGAIN) && writable(f, retryTime) {
		return 0
	}
	return retryTime
}

// end finishes a last line that was given a prefix; without prefixes the
// output stays as the program wrote it. Where a write does not come back nothing is left to do.
func (k *sink) end() error {
	if !k.mu.TryLock() {
		return nil
	}
	defer k.mu.Unlock()
	if k.err == nil && k.partial != nil && len(k.partial.prefix) > 0 {
		k.err = k.put([]byte{'\n'})
	}
	k.partial = nil
	return k.err
}
