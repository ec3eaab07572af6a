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

// result is the error of a call on the object that returns an errno, or -1 with errno set.
func (o *object) result(op string, rc C.int, err error) error {
	if rc == 0 {
		return nil
	}
	return o.fail(op, errnoRC(rc, err), "", "")
}

// errnoPtr turns the second result of a call that returned NULL into an errno.
func errnoPtr(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return errno
	}
	return syscall.EIO
}
