package fabric

import (
	"fmt"
	"sync/atomic"
)

// SendBuffers are for networks: which of an endpoint's send buffers are free, and which are the
// program's. Their memory, and the lock that Reserve and Free need, are the network's.
type SendBuffers struct {
	all      []sendBuffer
	free     []int32
	common   int // in use without Urgent
	reserved int // only for Urgent
}

type sendBuffer struct {
	state  atomic.Uint32
	urgent bool // it was reserved so
}

// States of a send buffer.
const (
	bufferFree    = iota
	bufferCallers // reserved
	bufferSent    // with a message
)

// These are returned often, hence not made anew.
var (
	errReserve = fmt.Errorf("reserve: %w", ErrNoBuffer)
	// ErrQueueFull is the error of Send when the queue to the peer is full. It is an ErrAgain.
	ErrQueueFull = fmt.Errorf("send: the queue to the rank is full: %w", ErrAgain)
)

// Open makes all free.
func (s *SendBuffers) Open(cfg EndpointConfig) {
	s.all, s.free, s.reserved = make([]sendBuffer, cfg.Sends), make([]int32, cfg.Sends), cfg.Reserved
	for i := range s.free {
		s.free[i] = int32(cfg.Sends - 1 - i)
	}
}

// Reserve takes a free one for the caller.
func (s *SendBuffers) Reserve(f SendFlag) (int32, error) {
	urgent := f&Urgent != 0
	k := len(s.free) - 1
	if k < 0 || !urgent && s.common == len(s.all)-s.reserved {
		return 0, errReserve
	}
	id := s.free[k]
	s.free = s.free[:k]
	b := &s.all[id]
	if b.urgent = urgent; !urgent {
		s.common++
	}
	b.state.Store(bufferCallers)
	return id, nil
}

// Check returns an error unless a buffer is the caller's.
func (s *SendBuffers) Check(op string, id int32) error {
	if uint(id) >= uint(len(s.all)) || s.all[id].state.Load() != bufferCallers {
		return fmt.Errorf("%s: send buffer %d is not the caller's", op, id)
	}
	return nil
}

// Take takes a buffer out of the caller's hands, for a message or to free it; else it is Check's
// error.
func (s *SendBuffers) Take(op string, id int32) error {
	if err := s.Check(op, id); err != nil {
		return err
	}
	if !s.all[id].state.CompareAndSwap(bufferCallers, bufferSent) {
		return s.Check(op, id)
	}
	return nil
}

// Urgent reports whether a buffer was reserved so.
func (s *SendBuffers) Urgent(id int32) bool { return s.all[id].urgent }

// Free makes a buffer that was taken free.
func (s *SendBuffers) Free(id int32) {
	b := &s.all[id]
	if !b.urgent {
		s.common--
	}
	b.state.Store(bufferFree)
	s.free = append(s.free, id)
}

// Left is the number of free ones.
func (s *SendBuffers) Left() int { return len(s.free) }

// Scarce reports that what holds the buffers should complete soon.
func (s *SendBuffers) Scarce() bool { return len(s.free) <= len(s.all)/2 }
