package shm

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/fabric"
)

// sendBufs are the send buffers of an endpoint.
type sendBufs struct {
	bufs []sendBuf

	mu       sync.Mutex
	free     []int32
	common   int // in use without Urgent
	reserved int // only for Urgent
}

// sendBuf is one of them, and the message in it while that waits.
type sendBuf struct {
	data   []byte
	state  atomic.Uint32
	next   int32 // of the link's queue, or -1
	n      int32
	flags  fabric.SendFlag
	urgent bool // reserved so; with sendBufs.mu
	missed bool // counted as RNR
	behind bool // w has yet to be written
	cookie uint64
	w      fabric.Write
}

// States of a send buffer.
const (
	bufFree     = iota
	bufReserved // the program's
	bufSent     // with a message
)

func (s *sendBufs) open(cfg fabric.EndpointConfig) {
	pitch := (cfg.SlotSize + lineSize - 1) &^ (lineSize - 1)
	mem := make([]byte, cfg.Sends*pitch)
	s.bufs, s.free, s.reserved = make([]sendBuf, cfg.Sends), make([]int32, cfg.Sends), cfg.Reserved
	for i := range s.bufs {
		s.bufs[i].data = mem[i*pitch:][:cfg.SlotSize:cfg.SlotSize]
		s.free[i] = int32(cfg.Sends - 1 - i)
	}
}

// take takes a buffer out of the free ones.
func (s *sendBufs) take(urgent bool) (fabric.SendBuf, error) {
	s.mu.Lock()
	k := len(s.free) - 1
	if k < 0 || !urgent && s.common == len(s.bufs)-s.reserved {
		s.mu.Unlock()
		return fabric.SendBuf{}, errNoBuffer
	}
	id := s.free[k]
	s.free = s.free[:k]
	b := &s.bufs[id]
	if b.urgent = urgent; !urgent {
		s.common++
	}
	s.mu.Unlock()
	b.state.Store(bufReserved)
	return fabric.SendBuf{Data: b.data, ID: id}, nil
}

// put makes a buffer free.
func (s *sendBufs) put(id int32) {
	b := &s.bufs[id]
	b.w.Src = nil
	b.state.Store(bufFree)
	s.mu.Lock()
	if !b.urgent {
		s.common--
	}
	s.free = append(s.free, id)
	s.mu.Unlock()
}

// This is returned often, hence not made anew.
var errNoBuffer = fmt.Errorf("shm: reserve: %w", fabric.ErrNoBuffer)

// Reserve takes a send buffer.
func (ep *endpoint) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if !ep.alive.Load() {
		return fabric.SendBuf{}, ep.usable("reserve")
	}
	return ep.sends.take(f&fabric.Urgent != 0)
}

// Release takes an unused buffer back. It panics if the buffer is not the caller's.
func (ep *endpoint) Release(b fabric.SendBuf) {
	if uint(b.ID) >= uint(len(ep.sends.bufs)) || !ep.sends.bufs[b.ID].state.CompareAndSwap(bufReserved, bufSent) {
		panic(fmt.Sprintf("shm: release: send buffer %d is not the caller's", b.ID))
	}
	ep.sends.put(b.ID)
}
