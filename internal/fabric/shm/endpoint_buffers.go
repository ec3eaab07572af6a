package shm

import (
	"sync"

	"github.com/ibconduit/conduit/internal/fabric"
)

// sendBufs are the send buffers of an endpoint.
type sendBufs struct {
	bufs []sendBuf
	mu   sync.Mutex // of those that are free
	fabric.SendBuffers
}

// sendBuf is one of them, and the message in it while that waits.
type sendBuf struct {
	data   []byte
	next   int32 // of the link's queue, or -1
	n      int32
	flags  fabric.SendFlag
	missed bool // counted as RNR
	behind bool // w has yet to be written
	cookie uint64
	w      fabric.Write
}

func (s *sendBufs) open(cfg fabric.EndpointConfig) {
	pitch := (cfg.SlotSize + lineSize - 1) &^ (lineSize - 1)
	mem := make([]byte, cfg.Sends*pitch)
	s.bufs = make([]sendBuf, cfg.Sends)
	for i := range s.bufs {
		s.bufs[i].data = mem[i*pitch:][:cfg.SlotSize:cfg.SlotSize]
	}
	s.Open(cfg)
}

func (s *sendBufs) reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := s.Reserve(f)
	if err != nil {
		return fabric.SendBuf{}, err
	}
	return fabric.SendBuf{Data: s.bufs[id].data, ID: id}, nil
}

// free makes a buffer free.
func (s *sendBufs) free(id int32) {
	s.bufs[id].w.Src = nil
	s.mu.Lock()
	s.Free(id)
	s.mu.Unlock()
}

func (s *sendBufs) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Left()
}
