//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/ibconduit/conduit/internal/handle"
)

// QPConfig says what a queue pair is for.
type QPConfig struct {
	Type       QPType // 0 means RC
	SendCQ     *CQ
	RecvCQ     *CQ  // nil means SendCQ
	SRQ        *SRQ // nil: a receive queue of its own
	MaxSendWR  int  // requests outstanding; 0 means 128
	MaxRecvWR  int  // 0 means 128; without meaning with an SRQ
	MaxSendSGE int  // 0 means 1
	MaxRecvSGE int  // 0 means 1
	MaxInline  int  // bytes; 0 means 0
}

// QPCaps are the capacities of a queue pair, which may be larger than requested.
type QPCaps struct {
	MaxSendWR, MaxRecvWR, MaxSendSGE, MaxRecvSGE, MaxInline int
}

// QP is a queue pair.
type QP struct {
	object
	c    *C.struct_ibv_qp
	typ  QPType
	num  uint32
	caps QPCaps
}

func (cfg *QPConfig) fill() {
	for _, d := range []struct {
		v *int
		d int
	}{{&cfg.MaxSendWR, 128}, {&cfg.MaxRecvWR, 128}, {&cfg.MaxSendSGE, 1}, {&cfg.MaxRecvSGE, 1}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	if cfg.Type == 0 {
		cfg.Type = RC
	}
	if cfg.RecvCQ == nil {
		cfg.RecvCQ = cfg.SendCQ
	}
	if cfg.SRQ != nil {
		cfg.MaxRecvWR, cfg.MaxRecvSGE = 0, 0
	}
}

// parents lists what must stay open as long as the queue pair.
func (cfg *QPConfig) parents(p *PD) []*object {
	ps := []*object{&p.object, &cfg.SendCQ.object}
	if cfg.RecvCQ != cfg.SendCQ {
		ps = append(ps, &cfg.RecvCQ.object)
	}
	if cfg.SRQ != nil {
		ps = append(ps, &cfg.SRQ.object)
	}
	return ps
}

// CreateQP makes a queue pair in state RESET.
func (p *PD) CreateQP(cfg QPConfig) (*QP, error) {
	const op = "ibv_create_qp"
	cfg.fill()
	if cfg.SendCQ == nil {
		return nil, p.fail(op, syscall.EINVAL, "no completion queue", "set QPConfig.SendCQ")
	}
	x := p.dev
	if x.attr.NoInline {
		cfg.MaxInline = 0
	}
	q := &QP{object: object{dev: x, parents: cfg.parents(p), kind: "QP", name: "QP"}, typ: cfg.Type}
	attr := C.struct_ibv_qp_init_attr{qp_type: C.enum_ibv_qp_type(cfg.Type), send_cq: cfg.SendCQ.c, recv_cq: cfg.RecvCQ.c,
		cap: C.struct_ibv_qp_cap{max_send_wr: C.uint32_t(cfg.MaxSendWR), max_recv_wr: C.uint32_t(cfg.MaxRecvWR),
			max_send_sge: C.uint32_t(cfg.MaxSendSGE), max_recv_sge: C.uint32_t(cfg.MaxRecvSGE),
			max_inline_data: C.uint32_t(cfg.MaxInline)}}
	if cfg.SRQ != nil {
		attr.srq = cfg.SRQ.c
	}
	if err := q.adopt(op); err != nil {
		return nil, err
	}
	c, err := C.ibv_create_qp(p.c, &attr)
	if c == nil {
		q.orphan(q.parents)
		return nil, x.explainCreateQP(op, cfg, errnoPtr(err))
	}
	q.c, q.num = c, uint32(c.qp_num)
	q.name = fmt.Sprintf("QP %#x", q.num)
	q.caps = QPCaps{MaxSendWR: int(attr.cap.max_send_wr), MaxRecvWR: int(attr.cap.max_recv_wr),
		MaxSendSGE: int(attr.cap.max_send_sge),
		MaxRecvSGE: int(attr.cap.max_recv_sge), MaxInline: int(attr.cap.max_inline_data)}
	if x.attr.NoInline {
		q.caps.MaxInline = 0
	}
	q.handle = handle.New(q, "QP", fmt.Sprintf("%#x of %s", q.num, x.info.Name))
	return q, nil
}

func (x *Context) explainCreateQP(op string, cfg QPConfig, errno syscall.Errno) error {
	var why []string
	for _, l := range []struct {
		what      string
		want, max int
	}{
		{"send requests", cfg.MaxSendWR, x.attr.MaxQPWR}, {"receive requests", cfg.MaxRecvWR, x.attr.MaxQPWR},
		{"scatter entries per send", cfg.MaxSendSGE, x.attr.MaxSGE},
		{"scatter entries per receive", cfg.MaxRecvSGE, x.attr.MaxSGE},
	} {
		if l.want > l.max || l.want < 0 {
			why = append(why, fmt.Sprintf("%d %s asked, the device allows %d", l.want, l.what, l.max))
		}
	}
	if why == nil && cfg.MaxInline > 0 {
		why = append(why, fmt.Sprintf("%d inline bytes may be more than the device can", cfg.MaxInline))
	}
	remedy := ""
	if errno == syscall.ENOMEM {
		remedy = fmt.Sprintf("the device allows %d QPs; its memory, or the memlock limit, may be exhausted", x.attr.MaxQP)
	}
	return x.fail(op, errno, fmt.Sprintf("%s, %+v; %s", cfg.Type, QPCaps{cfg.MaxSendWR, cfg.MaxRecvWR, cfg.MaxSendSGE,
		cfg.MaxRecvSGE, cfg.MaxInline}, strings.Join(why, "; ")), remedy)
}

// Num returns the QP number, which a peer needs to know.
func (q *QP) Num() uint32 { return q.num }

// Caps returns the queue pair's capacities.
func (q *QP) Caps() QPCaps { return q.caps }

// Init moves the QP from RESET to INIT: from now on receives may be posted.
func (q *QP) Init(a InitAttr) error {
	attr := QPAttr{State: StateInit, Port: max(a.Port, 1), PKeyIndex: a.PKeyIndex, Access: a.Access, QKey: a.QKey}
	tr, _ := transitionFor(q.typ, StateReset, StateInit)
	return q.Modify(attr, AttrState|tr.required)
}

// ReadyToReceive moves the QP from INIT to RTR: messages of the peer are taken.
func (q *QP) ReadyToReceive(a RTRAttr) error {
	attr := QPAttr{State: StateRTR, AV: a.AV, PathMTU: a.PathMTU, DestQPN: a.DestQPN, RQPSN: a.RQPSN,
		MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer}
	if attr.PathMTU == 0 {
		attr.PathMTU = MTU1024
	}
	if attr.MaxDestRdAtomic == 0 {
		attr.MaxDestRdAtomic = uint8(min(q.dev.attr.MaxQPReadAtomic, DefaultReadAtomic))
	}
	if attr.MinRNRTimer == 0 {
		attr.MinRNRTimer = DefaultMinRNRTimer
	}
	tr, _ := transitionFor(q.typ, StateInit, StateRTR)
	return q.Modify(attr, AttrState|tr.required)
}

// ReadyToSend moves the QP from RTR to RTS: sends may be posted.
func (q *QP) ReadyToSend(a RTSAttr) error {
	attr := QPAttr{State: StateRTS, SQPSN: a.SQPSN, Timeout: a.Timeout, RetryCount: a.RetryCount, RNRRetry: a.RNRRetry,
		MaxReadAtomic: a.MaxReadAtomic}
	for _, d := range []struct {
		v *uint8
		d uint8
	}{{&attr.Timeout, DefaultTimeout}, {&attr.RetryCount, DefaultRetryCount}, {&attr.RNRRetry, DefaultRNRRetry},
		{&attr.MaxReadAtomic, uint8(min(q.dev.attr.MaxQPInitReadAtomic, DefaultReadAtomic))}} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	tr, _ := transitionFor(q.typ, StateRTR, StateRTS)
	return q.Modify(attr, AttrState|tr.required)
}

// ToError moves the QP to ERR from any state: everything posted completes as flushed.
func (q *QP) ToError() error { return q.Modify(QPAttr{State: StateErr}, AttrState) }

// Reset moves the QP to RESET from any state: everything posted is forgotten, and makes no
// completion.
func (q *QP) Reset() error { return q.Modify(QPAttr{State: StateReset}, AttrState) }

// Modify changes the attributes that mask names. Prefer the methods above. An error names the fault
// of the attributes, as far as it can be known.
func (q *QP) Modify(a QPAttr, mask AttrMask) error {
	const op = "ibv_modify_qp"
	if err := q.use(op); err != nil {
		return err
	}
	defer q.done()
	from := QPState(q.c.state)
	c := C.struct_ibv_qp_attr{
		qp_state: C.enum_ibv_qp_state(a.State), cur_qp_state: C.enum_ibv_qp_state(a.CurState),
		path_mtu: C.enum_ibv_mtu(a.PathMTU), qkey: C.uint32_t(a.QKey),
		rq_psn: C.uint32_t(a.RQPSN), sq_psn: C.uint32_t(a.SQPSN), dest_qp_num: C.uint32_t(a.DestQPN),
		qp_access_flags: C.uint(a.Access),
		pkey_index:      C.uint16_t(a.PKeyIndex), max_rd_atomic: C.uint8_t(a.MaxReadAtomic),
		max_dest_rd_atomic: C.uint8_t(a.MaxDestRdAtomic),
		min_rnr_timer:      C.uint8_t(a.MinRNRTimer), port_num: C.uint8_t(a.Port), timeout: C.uint8_t(a.Timeout),
		retry_cnt: C.uint8_t(a.RetryCount), rnr_retry: C.uint8_t(a.RNRRetry),
	}
	if mask&AttrAV != 0 {
		c.ah_attr = a.AV.c()
	}
	if rc, err := C.ibv_modify_qp(q.c, &c, C.int(mask)); rc != 0 {
		return q.explainModify(op, from, &a, mask, errnoRC(rc, err))
	}
	return nil
}

// explainModify says why a change failed: kernels answer EINVAL to nearly everything.
func (q *QP) explainModify(op string, from QPState, a *QPAttr, mask AttrMask, errno syscall.Errno) error {
	x := q.dev
	to := from
	if mask&AttrState != 0 {
		to = a.State
	}
	e := q.fail(op, errno, fmt.Sprintf("%s to %s", from, to), "")
	if why := explainTransition(q.typ, from, to, mask); why != "" {
		e.Detail = why
	}
	port := a.Port
	if mask&AttrAV != 0 {
		port = a.AV.Port
	}
	var attr *PortAttr
	var gids []GIDEntry
	if p, err := x.Port(port); err == nil {
		attr = &p
		if p.State != PortActive {
			e.Detail += fmt.Sprintf("; port %d is %s", port, p.State)
			e.Remedy = portRemedy(p)
		}
		gids, _ = x.GIDs(port)
	}
	for _, why := range explainValues(a, mask&^AttrAV, &x.attr, attr, gids) {
		e.Detail += "; " + why
	}
	if mask&AttrAV != 0 {
		e.Detail += fmt.Sprintf("; to QP %#x at %s by GID index %d", a.DestQPN, a.AV.target(), a.AV.SGIDIndex)
		x.explainAddress(e, &a.AV)
	}
	return e
}

// Close destroys the queue pair. It is refused with ErrBusy while a doorbell holds a sub-chain for
// it. Posted requests make no completion any more.
func (q *QP) Close() error {
	return q.close(func() error {
		rc, err := C.ibv_destroy_qp(q.c)
		return q.result("ibv_destroy_qp", rc, err)
	})
}
