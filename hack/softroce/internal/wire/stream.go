package wire

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// Sender is the sending end of one stream. Write blocks while the window is used up.
type Sender struct {
	w      *Writer
	id     uint32
	stream byte

	mu     sync.Mutex
	cond   sync.Cond
	room   int
	closed error
}

func NewSender(w *Writer, id uint32, stream int) *Sender {
	s := &Sender{w: w, id: id, stream: byte(stream), room: Window}
	s.cond.L = &s.mu
	return s
}

func (s *Sender) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := s.take(min(len(p)-done, MaxPayload-1))
		if err != nil {
			return done, err
		}
		if err := s.w.Write(KindData, s.id, []byte{s.stream}, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

func (s *Sender) take(n int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.room == 0 && s.closed == nil {
		s.cond.Wait()
	}
	if s.closed != nil {
		return 0, s.closed
	}
	n = min(n, s.room)
	s.room -= n
	return n, nil
}

// Grant returns n consumed bytes to the window.
func (s *Sender) Grant(n int) {
	s.mu.Lock()
	s.room = min(s.room+n, Window)
	s.mu.Unlock()
	s.cond.Broadcast()
}

// Finish signals the end of the stream.
func (s *Sender) Finish() error { return s.w.Write(KindData, s.id, []byte{s.stream}) }

// Abort makes pending and later writes fail.
func (s *Sender) Abort(err error) {
	s.mu.Lock()
	if s.closed == nil {
		s.closed = err
	}
	s.mu.Unlock()
	s.cond.Broadcast()
}

// ErrOverrun is a sender that ignored its window.
var ErrOverrun = errors.New("wire: more data than the window allows")

// Receiver is the receiving end of one stream: Push never blocks, CopyTo drains into a writer and
// returns credit.
type Receiver struct {
	w      *Writer
	id     uint32
	stream byte

	mu   sync.Mutex
	cond sync.Cond
	buf  []byte
	eof  bool
}

func NewReceiver(w *Writer, id uint32, stream int) *Receiver {
	r := &Receiver{w: w, id: id, stream: byte(stream)}
	r.cond.L = &r.mu
	return r
}

// Push adds arrived bytes; none means the end of the stream.
func (r *Receiver) Push(p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) == 0 {
		r.eof = true
	} else if len(r.buf)+len(p) > Window {
		return ErrOverrun
	}
	r.buf = append(r.buf, p...)
	r.cond.Broadcast()
	return nil
}

// CopyTo writes what arrives to dst until the stream ends. When dst fails, the rest is thrown away,
// and the first error is returned at the end, so that the other end never hangs on a reader that
// has gone.
func (r *Receiver) CopyTo(dst io.Writer) error {
	var failed error
	var spare []byte
	for {
		r.mu.Lock()
		for len(r.buf) == 0 && !r.eof {
			r.cond.Wait()
		}
		chunk := r.buf
		r.buf = spare[:0]
		r.mu.Unlock()
		if len(chunk) == 0 {
			return failed
		}
		if failed == nil {
			_, failed = dst.Write(chunk)
		}
		var n [4]byte
		binary.LittleEndian.PutUint32(n[:], uint32(len(chunk)))
		// A failure shows at the reader of the connection; here it cannot be reported.
		_ = r.w.Write(KindCredit, r.id, []byte{r.stream}, n[:])
		spare = chunk
	}
}
