//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/internal/handle"
)

// MW is a memory window of type 2: a key for a part of a region, given and taken back by work
// requests, without a system call. The key is valid for peers of the QP that bound it, from that
// request's completion until LOCAL_INV. It belongs to one goroutine at a time.
type MW struct {
	object
	c    *C.struct_ibv_mw
	rkey uint32
}

// AllocMW makes a memory window. Devices without windows of type 2B (DeviceAttr.Flags,
// FlagMemWindowType2B) refuse.
func (p *PD) AllocMW() (*MW, error) {
	const op = "ibv_alloc_mw"
	if p.dev.attr.Flags&FlagMemWindowType2B == 0 {
		return nil, lacks(op, p.dev.info.Name, "memory windows of type 2B")
	}
	m := &MW{object: object{dev: p.dev, parents: []*object{&p.object}, kind: "MW", name: "MW"}}
	if err := m.adopt(op); err != nil {
		return nil, err
	}
	c, err := C.ibc_alloc_mw2(p.c)
	if c == nil {
		m.orphan(m.parents)
		return nil, p.fail(op, errnoPtr(err), fmt.Sprintf("the device allows %d", p.dev.attr.MaxMW), "")
	}
	m.c, m.rkey = c, uint32(c.rkey)
	m.handle = handle.New(m, "MW", p.dev.info.Name)
	return m, nil
}

// RKey is the key for peers that the last SetBindMW chose.
func (m *MW) RKey() uint32 { return m.rkey }

// Close frees the window. Peers lose its key.
func (m *MW) Close() error {
	return m.close(func() error {
		if rc, err := C.ibc_dealloc_mw(m.c); rc != 0 {
			return m.fail("ibv_dealloc_mw", errnoRC(rc, err), "", "")
		}
		return nil
	})
}

// SetBindMW makes the request a BIND_MW of length bytes at addr of a region registered with
// AccessMWBind, under a new key: MW.RKey. Window and region must stay open until the request
// completes. Post it once per call.
func (w *SendWR) SetBindMW(m *MW, r *MR, addr, length uint64, access Access) {
	// The low 8 bits are the user's, and must differ from the last time (IBTA 1.4 vol. 1
	// §10.6.7.2.2).
	m.rkey = m.rkey&^0xff | (m.rkey+1)&0xff
	w.Opcode = OpBindMW
	w.numSGE = 0
	w.mw, w.mwRKey = uintptr(unsafe.Pointer(m.c)), m.rkey
	w.mwMR, w.mwAddr, w.mwLength, w.mwAccess = uintptr(unsafe.Pointer(r.c)), addr, length, uint32(access)
}

// SetLocalInv makes the request a LOCAL_INV, which takes a window's key back.
func (w *SendWR) SetLocalInv(rkey uint32) {
	w.Opcode = OpLocalInv
	w.numSGE = 0
	w.imm = rkey
}
