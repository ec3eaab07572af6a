//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func (x *Context) startEvents() error {
	f, err := pollable(int(x.c.async_fd), x.info.Name+" events")
	if err != nil {
		return &Error{Op: "open event queue", Device: x.info.Name, Errno: errnoOf(err)}
	}
	// It has no pointer to the Context, or a forgotten one would never be noticed.
	s := &eventSource{f: f, c: x.c, reg: x.reg}
	var wg sync.WaitGroup
	wg.Go(s.run)
	c, name := x.c, x.info.Name
	x.destroy = func() error {
		f.Close()
		wg.Wait()
		if rc, err := C.ibv_close_device(c); rc != 0 {
			return &Error{Op: "ibv_close_device", Device: name, Errno: errnoRC(rc, err)}
		}
		return nil
	}
	return nil
}

// eventSource takes asynchronous events from the kernel. The only one of interest is that a CQ has
// overrun: what else has failed shows in completions.
type eventSource struct {
	f   *os.File
	c   *C.struct_ibv_context
	reg *registry
}

func (s *eventSource) run() {
	raw, err := s.f.SyscallConn()
	if err != nil {
		return
	}
	for {
		var cq C.uint64_t
		var errno syscall.Errno
		err := raw.Read(func(uintptr) bool {
			errno = syscall.Errno(C.ibc_get_async_event(s.c, &cq))
			return errno != syscall.EAGAIN && errno != syscall.EINTR
		})
		if err != nil || errno != 0 {
			return // closed, or the device was removed
		}
		s.reg.overrun(uint64(cq))
	}
}

// pollable returns a file over a duplicate of fd that the Go runtime waits for without occupying a
// thread. The library keeps its own descriptor.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), name)
	// Fails when the runtime cannot poll it; a blocked thread per wait is not wanted.
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// waitRead calls try whenever f, which raw belongs to, is readable until it returns true, the
// context ends or f is closed. One caller at a time.
func waitRead(ctx context.Context, f *os.File, raw syscall.RawConn, try func(uintptr) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if ctx.Done() != nil {
		expired := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			f.SetReadDeadline(time.Unix(1, 0))
			close(expired)
		})
		defer func() {
			if !stop() {
				// Or the past deadline would be set after our reset, and fail the next wait
				<-expired
				f.SetReadDeadline(time.Time{})
			}
		}()
	}
	err := raw.Read(try)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}
