//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// eventBacklog bounds how many asynchronous events wait to be read. They are rare; when they are
// not read, the oldest is dropped and counted.
const eventBacklog = 256

// Event is an asynchronous event. It was acknowledged already. At most one of CQ, QP and SRQ is
// set; none, when the object was closed meanwhile.
type Event struct {
	Type EventType
	Port int // of port events
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
}

func (e Event) String() string {
	switch {
	case e.CQ != nil:
		return fmt.Sprintf("%s: %s", e.CQ.name, e.Type)
	case e.QP != nil:
		return fmt.Sprintf("%s: %s", e.QP.name, e.Type)
	case e.SRQ != nil:
		return fmt.Sprintf("%s: %s", e.SRQ.name, e.Type)
	case e.Port != 0:
		return fmt.Sprintf("port %d: %s", e.Port, e.Type)
	}
	return e.Type.String()
}

// Events returns the channel of asynchronous events. Close closes it.
func (x *Context) Events() <-chan Event { return x.events }

// EventsLost returns how many events were dropped because they were not read.
func (x *Context) EventsLost() uint64 { return x.lost.Load() }

func (x *Context) startEvents() error {
	f, err := pollable(int(x.c.async_fd), x.info.Name+" events")
	if err != nil {
		return &Error{Op: "open event queue", Device: x.info.Name, Errno: errnoOf(err)}
	}
	// It has no pointer to the Context, or a forgotten one would never be noticed.
	s := &eventSource{f: f, c: x.c, reg: x.reg, out: x.events, lost: x.lost}
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

// eventSource moves events from the kernel to a channel.
type eventSource struct {
	f    *os.File
	c    *C.struct_ibv_context
	reg  *registry
	out  chan Event
	lost *atomic.Uint64
}

func (s *eventSource) run() {
	defer close(s.out)
	raw, err := s.f.SyscallConn()
	if err != nil {
		return
	}
	for {
		var ev C.struct_ibc_event
		var errno syscall.Errno
		err := raw.Read(func(uintptr) bool {
			errno = syscall.Errno(C.ibc_get_async_event(s.c, &ev))
			return errno != syscall.EAGAIN && errno != syscall.EINTR
		})
		if err != nil || errno != 0 {
			return // closed, or the device was removed
		}
		s.deliver(s.reg.resolve(eventElement(ev.kind), uint64(ev.id), EventType(ev._type), int(ev.port)))
	}
}

// eventElement says what kind of object an event is about.
type eventElement int32

const (
	aboutDevice eventElement = C.IBC_EVENT_DEVICE
	aboutCQ     eventElement = C.IBC_EVENT_CQ
	aboutQP     eventElement = C.IBC_EVENT_QP
	aboutSRQ    eventElement = C.IBC_EVENT_SRQ
)

// resolve finds the object of an event and notes what the object must know.
func (r *registry) resolve(about eventElement, id uint64, typ EventType, port int) Event {
	ev := Event{Type: typ}
	switch about {
	case aboutDevice:
		ev.Port = port
	case aboutCQ:
		if ev.CQ = get(r, r.cqs, id); ev.CQ != nil && typ == EventCQErr {
			ev.CQ.overrun.Store(true)
		}
	case aboutQP:
		ev.QP = get(r, r.qps, id)
	case aboutSRQ:
		ev.SRQ = get(r, r.srqs, id)
	}
	return ev
}

// deliver never blocks: when the channel is full the oldest event goes.
func (s *eventSource) deliver(ev Event) {
	for {
		select {
		case s.out <- ev:
			return
		default:
		}
		select {
		case <-s.out:
			s.lost.Add(1)
		default:
		}
	}
}

// pollable returns a file over a duplicate of fd that the Go runtime waits for without occupying a
// thread. The library keeps its own descriptor.
func pollable(fd int, name string) (*os.File, error) {
	if errno := C.ibc_set_nonblock(C.int(fd)); errno != 0 {
		return nil, syscall.Errno(errno)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), name)
	// Fails when the runtime cannot poll it; a blocked thread per wait is not what was asked for.
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
