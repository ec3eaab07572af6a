package mux

import (
	"encoding/binary"
	"io"
	"sync"
)

// Stream is one stream of a channel, in both directions.
type Stream struct {
	ch *Channel
	id uint32

	mu      sync.Mutex
	change  *sync.Cond
	in      []byte
	inEnd   bool // nothing more will come
	discard bool // nobody takes what comes
	room    int  // that may be sent
	outEnd  bool
	err     error
}

func (s *Stream) receive(f Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Kind {
	case data:
		switch {
		case s.discard:
			s.taken(len(f.Body))
		case len(s.in)+len(f.Body) > Window:
			go s.ch.Fail(errOverrun)
		default:
			s.in = append(s.in, f.Body...)
		}
	case taken:
		s.room += f.Number()
	case end:
		s.inEnd = true
		s.forgetLocked()
	}
	s.change.Broadcast()
}

func (s *Stream) taken(n int) {
	if n > 0 {
		s.ch.Send(taken, s.id, binary.LittleEndian.AppendUint32(nil, uint32(n)))
	}
}

// forgetLocked frees the number of a stream that has ended in both directions.
func (s *Stream) forgetLocked() {
	if s.inEnd && s.outEnd {
		s.ch.mu.Lock()
		delete(s.ch.streams, s.id)
		s.ch.mu.Unlock()
	}
}

func (s *Stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.change.Broadcast()
}

// Read implements io.Reader.
func (s *Stream) Read(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.in) == 0 && !s.inEnd && s.err == nil {
		s.change.Wait()
	}
	if n = copy(p, s.in); n > 0 {
		if s.in = s.in[n:]; len(s.in) == 0 {
			s.in = nil
		}
		s.taken(n)
		return n, nil
	}
	if s.err != nil {
		return 0, s.err
	}
	return 0, io.EOF
}

// Buffered is how much can be read at once.
func (s *Stream) Buffered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.in)
}

// Write implements io.Writer. It waits while the window is full.
func (s *Stream) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		s.mu.Lock()
		for s.room == 0 && s.err == nil && !s.outEnd {
			s.change.Wait()
		}
		if err = s.err; err == nil && s.outEnd {
			err = errClosed
		}
		part := min(len(p), s.room, Part)
		s.room -= part
		s.mu.Unlock()
		if err != nil {
			return n, err
		}
		s.ch.Send(data, s.id, p[:part])
		p, n = p[part:], n+part
	}
	return n, nil
}

// CloseWrite ends what goes to the other side.
func (s *Stream) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.outEnd {
		s.outEnd = true
		s.ch.Send(end, s.id, nil)
		s.forgetLocked()
		s.change.Broadcast()
	}
	return nil
}

// Drop takes what comes from now on for nothing.
func (s *Stream) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discard = true
	s.taken(len(s.in))
	s.in = nil
}

// Close forgets the stream, whatever comes of it. What has arrived can still be read.
func (s *Stream) Close() {
	s.ch.mu.Lock()
	delete(s.ch.streams, s.id)
	s.ch.mu.Unlock()
	s.fail(io.EOF)
}

// Done is closed with the stream's channel.
func (s *Stream) Done() <-chan struct{} { return s.ch.done }
