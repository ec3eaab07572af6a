//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/handle"
)

// SRQConfig says how large a shared receive queue is.
type SRQConfig struct {
	MaxWR  int // receives that may be posted at once; 0 means 256
	MaxSGE int // scatter entries per receive; 0 means 1
}

// SRQ is a receive queue shared by many QPs.
type SRQ struct {
	object
	c   *C.struct_ibv_srq
	id  uint64
	cfg SRQConfig
}

// CreateSRQ makes a shared receive queue.
func (p *PD) CreateSRQ(cfg SRQConfig) (*SRQ, error) {
	const op = "ibv_create_srq"
	if cfg.MaxWR == 0 {
		cfg.MaxWR = 256
	}
	if cfg.MaxSGE == 0 {
		cfg.MaxSGE = 1
	}
	x := p.dev
	if x.attr.MaxSRQ == 0 {
		return nil, lacks(op, x.info.Name, "shared receive queues")
	}
	s := &SRQ{object: object{dev: x, parents: []*object{&p.object}, kind: "SRQ"}, cfg: cfg}
	if err := s.adopt(op); err != nil {
		return nil, err
	}
	s.id = put(x.reg, x.reg.srqs, s)
	s.name = fmt.Sprintf("SRQ %d", s.id)
	c, err := C.ibc_create_srq(p.c, C.uint64_t(s.id), C.uint32_t(cfg.MaxWR), C.uint32_t(cfg.MaxSGE))
	if c == nil {
		drop(x.reg, x.reg.srqs, s.id)
		s.orphan(s.parents)
		return nil, x.fail(op, errnoPtr(err), fmt.Sprintf("%d receives of %d scatter entries", cfg.MaxWR, cfg.MaxSGE),
			fmt.Sprintf("the device allows %d SRQs of %d receives of %d entries", x.attr.MaxSRQ, x.attr.MaxSRQWR, x.attr.MaxSRQSGE))
	}
	s.c = c
	s.handle = handle.New(s, "SRQ", x.info.Name)
	return s, nil
}

// SetLimit asks for one EventSRQLimitReached when fewer than n receives are left. The event disarms
// it.
func (s *SRQ) SetLimit(n int) error {
	const op = "ibv_modify_srq"
	if err := s.use(op); err != nil {
		return err
	}
	defer s.done()
	attr := C.struct_ibv_srq_attr{srq_limit: C.uint32_t(n)}
	if rc, err := C.ibv_modify_srq(s.c, &attr, C.IBV_SRQ_LIMIT); rc != 0 {
		return s.fail(op, errnoRC(rc, err), fmt.Sprintf("limit %d of %d receives", n, s.cfg.MaxWR), "the limit must be smaller than the queue")
	}
	return nil
}

// Limit returns the limit that is armed, 0 when none is.
func (s *SRQ) Limit() (int, error) {
	const op = "ibv_query_srq"
	if err := s.use(op); err != nil {
		return 0, err
	}
	defer s.done()
	var attr C.struct_ibv_srq_attr
	if rc, err := C.ibv_query_srq(s.c, &attr); rc != 0 {
		return 0, s.fail(op, errnoRC(rc, err), "", "")
	}
	return int(attr.srq_limit), nil
}

// Cap returns how many receives may be posted at once.
func (s *SRQ) Cap() int { return s.cfg.MaxWR }

// Close destroys the queue. It is refused with ErrBusy while QPs use it.
func (s *SRQ) Close() error {
	return s.close(func() error {
		if rc, err := C.ibv_destroy_srq(s.c); rc != 0 {
			return s.fail("ibv_destroy_srq", errnoRC(rc, err), "", "")
		}
		drop(s.dev.reg, s.dev.reg.srqs, s.id)
		return nil
	})
}
