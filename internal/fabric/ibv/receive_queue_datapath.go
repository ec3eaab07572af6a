//go:build linux && cgo

package ibv

import (
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// receiveQueue holds receive buffers of one size. Each has a work request of its own, which is made
// once.
type receiveQueue struct {
	srq   *verbs.SRQ // or qp
	qp    *verbs.QP
	chain *verbs.RecvChain
	bare  []int32 // buffers to be posted
}

// makeChain makes the work requests of n buffers in mem, all bare; id is the high part of their
// identifiers.
func (r *receiveQueue) makeChain(n int, id uint64, mem []byte, size, stride int, lkey uint32) (err error) {
	if r.chain, err = verbs.NewRecvChain(verbs.ChainConfig{Slots: n}); err != nil {
		return err
	}
	for i := range n {
		r.chain.WR(i).WRID = id<<idShift | uint64(i)
		r.chain.SetLocal(i, addrOf(mem)+uint64(i*stride), uint32(size), lkey)
		r.bare = append(r.bare, int32(i))
	}
	return nil
}

// next takes bare buffers with consecutive numbers.
func (r *receiveQueue) next() (first, n int) {
	if len(r.bare) > 1 {
		slices.Sort(r.bare)
	}
	end := len(r.bare) - 1
	last := int(r.bare[end])
	for n = 1; n <= end && int(r.bare[end-n]) == last-n; {
		n++
	}
	r.bare = r.bare[:end+1-n]
	return last + 1 - n, n
}

// stage hands buffers to a doorbell.
func (r *receiveQueue) stage(bell *verbs.Doorbell, first, n int) error {
	if r.srq != nil {
		return bell.SRQRecv(r.srq, r.chain, first, n)
	}
	return bell.Recv(r.qp, r.chain, first, n)
}

// slots are the receive buffers of an endpoint's messages.
type slots struct {
	receiveQueue
	mem          []byte
	size, stride int
	posted       []bool // not in the caller's hands
	count        int    // of those
}

func (s *slots) init(cfg fabric.EndpointConfig, mem []byte, stride int, lkey uint32) error {
	s.mem, s.size, s.stride, s.posted, s.count = mem, cfg.SlotSize, stride,
		slices.Repeat([]bool{true}, cfg.Slots), cfg.Slots
	return s.makeChain(cfg.Slots, idSlot, mem, cfg.SlotSize, stride, lkey)
}

// bytes are the first n of a slot, which has as many.
func (s *slots) bytes(i int32, n uint32) []byte {
	at := int(i) * s.stride
	return s.mem[at : at+int(n) : at+int(n)]
}

// giveBack takes slots back from the caller.
func (s *slots) giveBack(slots []int32) error {
	for _, i := range slots {
		if uint(i) >= uint(len(s.posted)) || s.posted[i] {
			return fmt.Errorf("ibv: post: slot %d is not the caller's", i)
		}
		s.posted[i] = true
		s.bare = append(s.bare, i)
		s.count++
	}
	return nil
}
