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
	c *C.struct_ibv_srq
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
	s := &SRQ{object: object{dev: x, parents: []*object{&p.object}, kind: "SRQ", name: "SRQ"}}
	if err := s.adopt(op); err != nil {
		return nil, err
	}
	attr := C.struct_ibv_srq_init_attr{attr: C.struct_ibv_srq_attr{max_wr: C.uint32_t(cfg.MaxWR),
		max_sge: C.uint32_t(cfg.MaxSGE)}}
	c, err := C.ibv_create_srq(p.c, &attr)
	if c == nil {
		s.orphan(s.parents)
		return nil, x.fail(op, errnoPtr(err), fmt.Sprintf("%d receives of %d scatter entries", cfg.MaxWR, cfg.MaxSGE),
			fmt.Sprintf("the device allows %d SRQs of %d receives of %d entries",
				x.attr.MaxSRQ, x.attr.MaxSRQWR, x.attr.MaxSRQSGE))
	}
	s.c = c
	s.handle = handle.New(s, "SRQ", x.info.Name)
	return s, nil
}

// Close destroys the queue. It is refused with ErrBusy while QPs use it.
func (s *SRQ) Close() error {
	return s.close(func() error {
		rc, err := C.ibv_destroy_srq(s.c)
		return s.result("ibv_destroy_srq", rc, err)
	})
}
