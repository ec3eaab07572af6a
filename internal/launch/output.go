package launch

import (
	"bytes"
	"io"
	"sync"
)

// maxHeld bytes of a line are kept back until its end arrives. A longer line
// goes out in pieces; another rank's line then begins on a line of its own.
const maxHeld = 1 << 20

// sink is a destination that several streams share.
type sink struct {
	mu      sync.Mutex
	w       io.Writer
	partial *stream // whose line stands unfinished at the end of the output
	err     error   // of the first failed write; later output is discarded
}

// stream is one rank's standard output or standard error.
type stream struct {
	sink   *sink
	prefix []byte
	held   []byte // an unfinished line
}

// copy takes everything that r has until its end. It never stops reading, or
// a rank would block on a full pipe.
func (s *stream) copy(r io.Reader) {
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
	end := bytes.LastIndexByte(p, '\n') + 1
	if end > 0 {
		s.held = append(s.held, p[:end]...)
		s.sink.write(s, s.held)
		s.held = s.held[:0]
	}
	s.held = append(s.held, p[end:]...)
	if len(s.held) > maxHeld {
		s.flush()
	}
}

// flush passes on an unfinished line.
func (s *stream) flush() {
	if len(s.held) > 0 {
		s.sink.write(s, s.held)
	}
	s.held = nil
}

// write puts text behind what is there, beginning a new line where another
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
	_, k.err = k.w.Write(out)
}

// end finishes a last line that was given a prefix; without prefixes the
// output stays as the program wrote it. Where a write does not come back nothing is left to do.
func (k *sink) end() error {
	if !k.mu.TryLock() {
		return nil
	}
	defer k.mu.Unlock()
	if k.err == nil && k.partial != nil && len(k.partial.prefix) > 0 {
		_, k.err = k.w.Write([]byte{'\n'})
	}
	k.partial = nil
	return k.err
}
