//go:build linux && cgo

package pmix

/*
#include <stdlib.h>
#include "ibc_pmix.h"
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// Client is this rank's connection to the launcher. Its calls run one after the other.
type Client struct {
	Namespace  string // of the job
	Rank, Size int

	turn   chan struct{} // held by the call in progress, for good by one that was left behind
	closed chan struct{}
	events chan Event
	in     *os.File // the pipe of events
	out    *os.File // its end that the library writes to
}

// Init connects to the launcher. It is bounded by ctx. A process does it once, after Load.
func Init(ctx context.Context) (*Client, error) {
	c := &Client{turn: make(chan struct{}, 1), closed: make(chan struct{}), events: make(chan Event, 16)}
	me := (*C.struct_ibc_pmix_proc)(C.calloc(1, C.sizeof_struct_ibc_pmix_proc)) // for good: a call may be left behind
	var spilt C.int
	err := c.call(ctx, "PMIx_Init", func() C.int { return C.ibc_pmix_init(me, &spilt) })
	if err != nil {
		return nil, err
	}
	var size C.uint32_t
	if err = c.call(ctx, "PMIx_Get of the job's size", func() C.int { return C.ibc_pmix_size(me, &size) }); err != nil {
		return nil, err
	}
	c.Namespace, c.Rank, c.Size = C.GoString(&me.nspace[0]), int(me.rank), int(size)
	if spilt > 0 || c.Namespace == "" || size == 0 || me.rank >= size {
		return nil, fmt.Errorf("libpmix (%s) lays its data out in another way: "+
			"rank %d of %d of namespace %q, %d bytes too many",
			C.GoString(C.ibc_pmix_version()), me.rank, size, c.Namespace, spilt)
	}
	return c, c.listen()
}

// call runs f on a thread of its own and waits for it, for ctx, or for Close.
func (c *Client) call(ctx context.Context, op string, f func() C.int) error {
	select {
	case <-c.closed:
		return os.ErrClosed
	default:
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%s: an earlier call has not returned: %w", op, context.Cause(ctx))
	case <-c.closed:
		return os.ErrClosed
	}
	return c.callNow(ctx, op, c.closed, f)
}

// callNow is call for the holder of the turn.
func (c *Client) callNow(ctx context.Context, op string, closed <-chan struct{}, f func() C.int) error {
	done := make(chan C.int, 1)
	go func() {
		status := f()
		<-c.turn
		done <- status
	}()
	select {
	case status := <-done:
		return failure(op, status)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	case <-closed:
		return os.ErrClosed
	}
}

func failure(op string, status C.int) error {
	switch {
	case status == 0:
		return nil
	case status > 0:
		return fmt.Errorf("%s: the answer has a type that this is not", op)
	}
	return &StatusError{Op: op, Status: int(status), Text: C.GoString(C.ibc_pmix_error(status))}
}

// Put publishes bytes under a key, which is never used twice. The next Fence with collect brings
// them to the others.
func (c *Client) Put(ctx context.Context, key string, b []byte) error {
	return c.call(ctx, "PMIx_Put", func() C.int {
		k, p := C.CString(key), C.CBytes(b)
		defer C.free(unsafe.Pointer(k))
		defer C.free(p)
		return C.ibc_pmix_put(k, p, C.size_t(len(b)))
	})
}

// Fence waits for all ranks.
func (c *Client) Fence(ctx context.Context, collect bool) error {
	var with C.int
	if collect {
		with = 1
	}
	return c.call(ctx, "PMIx_Fence", func() C.int { return C.ibc_pmix_fence(with) })
}

// Get returns what a rank has put.
func (c *Client) Get(ctx context.Context, rank int, key string) ([]byte, error) {
	var b []byte
	got := make(chan []byte, 1)
	err := c.call(ctx, "PMIx_Get", func() C.int {
		n, k := C.CString(c.Namespace), C.CString(key)
		defer C.free(unsafe.Pointer(n))
		defer C.free(unsafe.Pointer(k))
		var p unsafe.Pointer
		var size C.size_t
		status := C.ibc_pmix_get(n, C.uint32_t(rank), k, &p, &size)
		if status == 0 {
			got <- unsafe.Slice((*byte)(p), size)
		}
		return status
	})
	if err == nil {
		shared := <-got
		b = append(b, shared...)
		C.free(unsafe.Pointer(unsafe.SliceData(shared)))
	}
	return b, err
}

// Abort has the launcher end the job with a code. It returns when the launcher has the request,
// or ctx has ended.
func (c *Client) Abort(ctx context.Context, code int, msg string) error {
	done := make(chan C.int, 1)
	go func() { // also while another call hangs
		m := C.CString(msg)
		defer C.free(unsafe.Pointer(m))
		done <- C.ibc_pmix_abort(C.int(code), m)
	}()
	select {
	case status := <-done:
		return failure("PMIx_Abort", status)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listen has the library write events to a pipe, which a goroutine reads without holding a thread.
func (c *Client) listen() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	c.in, c.out = r, w
	fd := int(w.Fd())
	if err := syscall.SetNonblock(fd, true); err != nil {
		return errors.Join(err, r.Close(), w.Close())
	}
	n := C.CString(c.Namespace)
	defer C.free(unsafe.Pointer(n))
	C.ibc_pmix_listen(n, C.int(fd))
	go func() {
		defer close(c.events)
		var e [C.sizeof_struct_ibc_pmix_event]byte
		for {
			if _, err := r.Read(e[:]); err != nil { // writes of less than PIPE_BUF come whole (pipe(7))
				return
			}
			ev := Event{Status: int32(binary.NativeEndian.Uint32(e[:4])), Rank: binary.NativeEndian.Uint32(e[4:])}
			select {
			case c.events <- ev:
			case <-c.closed:
				return
			}
		}
	}()
	return nil
}

// Events delivers the launcher's reports of the ranks. It is closed by Close.
func (c *Client) Events() <-chan Event { return c.events }

// Close takes leave of the launcher, unless a call is still in progress: that one fails with
// os.ErrClosed, and the launcher sees this process end without. It is bounded by ctx.
func (c *Client) Close(ctx context.Context) error {
	select {
	case <-c.closed:
		return nil
	default:
	}
	close(c.closed)
	select {
	case c.turn <- struct{}{}:
	default: // what the library still does may write to the pipe
		C.ibc_pmix_deaf()
		return c.in.SetReadDeadline(time.Unix(1, 0))
	}
	err := c.callNow(ctx, "PMIx_Finalize", nil, func() C.int { return C.ibc_pmix_finalize() })
	C.ibc_pmix_deaf()
	return errors.Join(err, c.out.Close(), c.in.Close())
}
