//go:build linux && cgo

package ibv

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
)

// sendBuffers are an endpoint's. Each is free, the caller's, or with a message.
type sendBuffers struct {
	mem      []byte
	size     int // of a buffer
	stride   int
	reserved int // are given out only as urgent ones
	common   int // in use and not urgent
	all      []sendBuffer
	free     []int32
}

type sendBuffer struct {
	state  bufferState
	urgent bool // it was reserved so
}

type bufferState uint8

const (
	bufferFree bufferState = iota
	bufferCallers
	bufferSent
)

// Made once, since they are returned often.
var errNoBuffer = fmt.Errorf("ibv: reserve: %w", fabric.ErrNoBuffer)

func (s *sendBuffers) init(cfg fabric.EndpointConfig, mem []byte, stride int) {
	s.mem, s.size, s.stride, s.reserved, s.all = mem, cfg.SlotSize, stride, cfg.Reserved, make([]sendBuffer, cfg.Sends)
	for i := range s.all {
		s.free = append(s.free, int32(cfg.Sends-1-i))
	}
}

func (s *sendBuffers) bytes(i int32) []byte {
	at := int(i) * s.stride
	return s.mem[at : at+s.size : at+s.size]
}

func (s *sendBuffers) reserve(urgent bool) (fabric.SendBuf, error) {
	k := len(s.free) - 1
	if k < 0 || !urgent && s.common == len(s.all)-s.reserved {
		return fabric.SendBuf{}, errNoBuffer
	}
	i := s.free[k]
	s.free = s.free[:k]
	s.all[i] = sendBuffer{state: bufferCallers, urgent: urgent}
	if !urgent {
		s.common++
	}
	return fabric.SendBuf{Data: s.bytes(i), ID: i}, nil
}

// check says why the caller cannot use a buffer.
func (s *sendBuffers) check(op string, b fabric.SendBuf) error {
	if b.ID < 0 || int(b.ID) >= len(s.all) || s.all[b.ID].state != bufferCallers {
		return fmt.Errorf("ibv: %s: send buffer %d is not the caller's", op, b.ID)
	}
	return nil
}

// sent notes that a message has a buffer. It reports whether that is an urgent one.
func (s *sendBuffers) sent(i int32) (urgent bool) {
	s.all[i].state = bufferSent
	return s.all[i].urgent
}

func (s *sendBuffers) release(i int32) {
	if !s.all[i].urgent {
		s.common--
	}
	s.all[i] = sendBuffer{}
	s.free = append(s.free, i)
}

// scarce reports that what holds the buffers should complete soon.
func (s *sendBuffers) scarce() bool { return len(s.free) <= len(s.all)/2 }
