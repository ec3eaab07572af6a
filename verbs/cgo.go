//go:build linux && cgo

package verbs

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include "ibc_verbs.h"

// They write to memory they are given and call nothing back; results of the data path stand in C
// memory. To say so of ibc_ring_at, which is given no pointer of Go's, would cost two calls.
#cgo nocallback ibc_ticks
#cgo noescape ibc_get_async_event
#cgo nocallback ibc_get_async_event
#cgo noescape ibc_get_cq_events
#cgo nocallback ibc_get_cq_events
*/
import "C"

import (
	"errors"
	"syscall"
	"unsafe"
)

// Layouts shared with the C library: an array of negative length does not compile.
var (
	_ [unsafe.Sizeof(WC{}) - C.sizeof_struct_ibv_wc]byte
	_ [C.sizeof_struct_ibv_wc - unsafe.Sizeof(WC{})]byte
	_ [unsafe.Sizeof(SendWR{}) - C.sizeof_struct_ibv_send_wr]byte
	_ [C.sizeof_struct_ibv_send_wr - unsafe.Sizeof(SendWR{})]byte
	_ [unsafe.Sizeof(RecvWR{}) - C.sizeof_struct_ibv_recv_wr]byte
	_ [C.sizeof_struct_ibv_recv_wr - unsafe.Sizeof(RecvWR{})]byte
	_ [unsafe.Sizeof(SGE{}) - C.sizeof_struct_ibv_sge]byte
	_ [C.sizeof_struct_ibv_sge - unsafe.Sizeof(SGE{})]byte
)

// field is a field's place in a Go struct and in its C twin.
type field struct {
	name     string
	got, has uintptr
}

// layout lists the fields of the structs that Go and C share, for the test that compares them.
func layout() []field {
	var (
		w WC
		c C.struct_ibv_wc
		s SendWR
		t C.struct_ibv_send_wr
		r RecvWR
		q C.struct_ibv_recv_wr
		e SGE
		f C.struct_ibv_sge
	)
	return []field{
		{"wc.wr_id", unsafe.Offsetof(w.WRID), unsafe.Offsetof(c.wr_id)},
		{"wc.status", unsafe.Offsetof(w.Status), unsafe.Offsetof(c.status)},
		{"wc.opcode", unsafe.Offsetof(w.Opcode), unsafe.Offsetof(c.opcode)},
		{"wc.vendor_err", unsafe.Offsetof(w.VendorErr), unsafe.Offsetof(c.vendor_err)},
		{"wc.byte_len", unsafe.Offsetof(w.ByteLen), unsafe.Offsetof(c.byte_len)},
		{"wc.qp_num", unsafe.Offsetof(w.QPNum), unsafe.Offsetof(c.qp_num)},
		{"wc.src_qp", unsafe.Offsetof(w.SrcQP), unsafe.Offsetof(c.src_qp)},
		{"wc.wc_flags", unsafe.Offsetof(w.Flags), unsafe.Offsetof(c.wc_flags)},
		{"wc.pkey_index", unsafe.Offsetof(w.PKeyIndex), unsafe.Offsetof(c.pkey_index)},
		{"wc.slid", unsafe.Offsetof(w.SLID), unsafe.Offsetof(c.slid)},
		{"wc.sl", unsafe.Offsetof(w.SL), unsafe.Offsetof(c.sl)},
		{"wc.dlid_path_bits", unsafe.Offsetof(w.DLIDPathBits), unsafe.Offsetof(c.dlid_path_bits)},
		{"send_wr.wr_id", unsafe.Offsetof(s.WRID), unsafe.Offsetof(t.wr_id)},
		{"send_wr.next", unsafe.Offsetof(s.next), unsafe.Offsetof(t.next)},
		{"send_wr.sg_list", unsafe.Offsetof(s.sgList), unsafe.Offsetof(t.sg_list)},
		{"send_wr.num_sge", unsafe.Offsetof(s.numSGE), unsafe.Offsetof(t.num_sge)},
		{"send_wr.opcode", unsafe.Offsetof(s.Opcode), unsafe.Offsetof(t.opcode)},
		{"send_wr.send_flags", unsafe.Offsetof(s.Flags), unsafe.Offsetof(t.send_flags)},
		{"send_wr.wr", unsafe.Offsetof(s.remote), unsafe.Offsetof(t.wr)},
		{"send_wr.qp_type", unsafe.Offsetof(s.w3) + 8, unsafe.Offsetof(t.qp_type)},
		{"recv_wr.next", unsafe.Offsetof(r.next), unsafe.Offsetof(q.next)},
		{"recv_wr.sg_list", unsafe.Offsetof(r.sgList), unsafe.Offsetof(q.sg_list)},
		{"recv_wr.num_sge", unsafe.Offsetof(r.numSGE), unsafe.Offsetof(q.num_sge)},
		{"sge.addr", unsafe.Offsetof(e.Addr), unsafe.Offsetof(f.addr)},
		{"sge.length", unsafe.Offsetof(e.Length), unsafe.Offsetof(f.length)},
		{"sge.lkey", unsafe.Offsetof(e.LKey), unsafe.Offsetof(f.lkey)},
	}
}

// errnoRC turns the result of a call that returns an errno, or -1 with errno set, into an errno.
func errnoRC(rc C.int, err error) syscall.Errno {
	switch {
	case rc == 0:
		return 0
	case rc > 0:
		return syscall.Errno(rc)
	}
	return errnoPtr(err)
}

// errnoPtr turns the second result of a call that returned NULL into an errno.
func errnoPtr(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EIO
}
