//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/ibconduit/conduit/internal/handle"
)

// PD is a protection domain: queue pairs access only regions of their own.
type PD struct {
	object
	c *C.struct_ibv_pd
}

// AllocPD makes a protection domain.
func (x *Context) AllocPD() (*PD, error) {
	p := &PD{object: object{dev: x, parents: []*object{&x.object}, kind: "PD", name: "PD"}}
	if err := p.adopt("ibv_alloc_pd"); err != nil {
		return nil, err
	}
	c, err := C.ibv_alloc_pd(x.c)
	if c == nil {
		p.orphan(p.parents)
		return nil, x.fail("ibv_alloc_pd", errnoPtr(err), fmt.Sprintf("the device allows %d", x.attr.MaxPD), "")
	}
	p.c = c
	p.handle = handle.New(p, "PD", x.info.Name)
	return p, nil
}

// Close frees the domain. It is refused with ErrBusy while objects made in it are open.
func (p *PD) Close() error {
	return p.close(func() error {
		rc, err := C.ibv_dealloc_pd(p.c)
		return p.result("ibv_dealloc_pd", rc, err)
	})
}

// MR is a registered memory region: pinned, and reachable by the device under its keys.
type MR struct {
	object
	c          *C.struct_ibv_mr
	addr       uint64
	length     uint64
	lkey, rkey uint32
}

func (p *PD) register(addr uintptr, length uint64, access Access) (*MR, error) {
	const op = "ibv_reg_mr"
	m := &MR{object: object{dev: p.dev, parents: []*object{&p.object}, kind: "MR",
		name: fmt.Sprintf("MR of %d bytes at %#x", length, addr)}}
	if err := m.adopt(op); err != nil {
		return nil, err
	}
	c, err := C.ibc_reg_mr(p.c, C.uintptr_t(addr), C.size_t(length), C.int(access))
	if c == nil {
		m.orphan(m.parents)
		return nil, p.explainReg(op, addr, length, access, errnoPtr(err))
	}
	m.c, m.addr, m.length = c, uint64(addr), length
	m.lkey, m.rkey = uint32(c.lkey), uint32(c.rkey)
	m.handle = handle.New(m, "MR", m.name)
	return m, nil
}

func (p *PD) explainReg(op string, addr uintptr, length uint64, access Access, errno syscall.Errno) error {
	e := p.fail(op, errno, fmt.Sprintf("%d bytes at %#x with access %s", length, addr, access), "")
	attr := &p.dev.attr
	switch {
	case attr.MaxMRSize != 0 && length > attr.MaxMRSize:
		e.Detail += fmt.Sprintf("; the device allows %d bytes per region", attr.MaxMRSize)
		e.Remedy = "register the memory in pieces"
	case access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0:
		e.Detail += "; remote write and remote atomic need local write (IBTA 1.4 vol. 1 §10.6.3.1)"
	case errno == syscall.ENOMEM || errno == syscall.EAGAIN:
		why, remedy := ReadMemlock().Explain(length)
		e.Detail, e.Remedy = e.Detail+"; "+why, remedy
		if remedy != "" && attr.MaxMR > 0 {
			e.Detail += fmt.Sprintf("; the device allows %d regions", attr.MaxMR)
		}
	case errno == syscall.EFAULT:
		e.Detail += "; part of the range is not mapped, or not writable though local write was asked for"
	case length == 0:
		e.Detail += "; a region cannot be empty"
	}
	return e
}

// LKey is the key for scatter entries of this host.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey is the key for peers.
func (m *MR) RKey() uint32 { return m.rkey }

// Addr returns where the region begins.
func (m *MR) Addr() uint64 { return m.addr }

// Len returns how many bytes it has.
func (m *MR) Len() uint64 { return m.length }

// Close takes the region away from the device. Requests in flight that use it fail; let them
// complete first.
func (m *MR) Close() error {
	return m.close(func() error {
		rc, err := C.ibv_dereg_mr(m.c)
		return m.result("ibv_dereg_mr", rc, err)
	})
}

// AH is an address handle: the way of datagrams to one port.
type AH struct {
	object
	c *C.struct_ibv_ah
}

// CreateAH makes an address handle.
func (p *PD) CreateAH(av AddressVector) (*AH, error) {
	const op = "ibv_create_ah"
	a := &AH{object: object{dev: p.dev, parents: []*object{&p.object}, kind: "AH",
		name: fmt.Sprintf("AH to %s", av.target())}}
	if err := a.adopt(op); err != nil {
		return nil, err
	}
	c := av.c()
	ah, err := C.ibv_create_ah(p.c, &c)
	if ah == nil {
		a.orphan(a.parents)
		e := p.fail(op, errnoPtr(err), "to "+av.target(), "")
		p.dev.explainAddress(e, &av)
		return nil, e
	}
	a.c = ah
	a.handle = handle.New(a, "AH", a.name)
	return a, nil
}

// Close destroys the handle. Datagrams in flight that use it must have completed.
func (a *AH) Close() error {
	return a.close(func() error {
		rc, err := C.ibv_destroy_ah(a.c)
		return a.result("ibv_destroy_ah", rc, err)
	})
}

// SetUD makes the request a datagram to a QP. The handle must stay open until the request
// completes.
func (w *SendWR) SetUD(ah *AH, qpn, qkey uint32) {
	w.setUD(uintptr(unsafe.Pointer(ah.c)), qpn, qkey)
}

func (av *AddressVector) target() string {
	if av.Global {
		return "GID " + av.DGID.String()
	}
	return fmt.Sprintf("LID %#x", av.DLID)
}

func (av *AddressVector) c() C.struct_ibv_ah_attr {
	c := C.struct_ibv_ah_attr{dlid: C.uint16_t(av.DLID), sl: C.uint8_t(av.SL), static_rate: C.uint8_t(av.StaticRate),
		port_num: C.uint8_t(av.Port)}
	if av.Global {
		c.is_global = 1
		c.grh = C.struct_ibv_global_route{dgid: C.union_ibv_gid(av.DGID), sgid_index: C.uint8_t(av.SGIDIndex),
			hop_limit: C.uint8_t(av.HopLimit)}
	}
	return c
}

// explainAddress adds to an error the known facts about the local end of an address: the GID behind
// its index, and the vector's fault.
func (x *Context) explainAddress(e *Error, av *AddressVector) {
	port, err := x.Port(av.Port)
	if err != nil {
		e.Detail += fmt.Sprintf("; port %d: %v", av.Port, err)
		return
	}
	gids, _ := x.GIDs(av.Port)
	for _, why := range explainAV(av, &x.attr, &port, gids) {
		e.Detail += "; " + why
	}
	if av.Global {
		for _, g := range gids {
			if g.Index == av.SGIDIndex {
				e.Detail += fmt.Sprintf("; from GID %d %s %s %s", g.Index, g.GID, g.Type, g.Netdev)
				e.Remedy = "is there a route from that address to the remote one, and does the neighbour answer (ip route get, " +
					"ping)? Else choose another GID"
			}
		}
	}
}
