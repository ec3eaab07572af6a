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

	"github.com/ibconduit/conduit/internal/handle"
)

var errTimeOver = errors.New("verbs: the time of a wait is over")

// CompChannel wakes goroutines that wait for completions, through the Go runtime's poller: no
// thread is blocked.
type CompChannel struct {
	object
	c       *C.struct_ibv_comp_channel
	f       *os.File
	waiting sync.Mutex // held by the one goroutine in Wait or WaitFor
	taken   *cqEvents
}

// cqEvents are what a wait takes from the kernel: made once, so that it allocates nothing. They do
// not point to their channel, or a forgotten one would never be noticed.
type cqEvents struct {
	c       *C.struct_ibv_comp_channel
	raw     syscall.RawConn
	ids     [16]C.uint64_t
	n       C.int
	errno   syscall.Errno
	pending []C.uint64_t // of ids: not yet returned
	take    func(uintptr) bool
	look    func(uintptr) // take, into found
	found   bool
}

func newCQEvents(c *C.struct_ibv_comp_channel, raw syscall.RawConn) *cqEvents {
	e := &cqEvents{c: c, raw: raw}
	e.take = func(uintptr) bool {
		e.errno = syscall.Errno(C.ibc_get_cq_events(e.c, &e.ids[0], C.int(len(e.ids)), &e.n))
		return e.errno != syscall.EAGAIN && e.errno != syscall.EINTR
	}
	e.look = func(fd uintptr) { e.found = e.take(fd) }
	return e
}

// CreateCompChannel makes a completion channel.
func (x *Context) CreateCompChannel() (*CompChannel, error) {
	const op = "ibv_create_comp_channel"
	h := &CompChannel{object: object{dev: x, parents: []*object{&x.object}, kind: "completion channel",
		name: "completion channel"}}
	if err := h.adopt(op); err != nil {
		return nil, err
	}
	c, err := C.ibv_create_comp_channel(x.c)
	if c == nil {
		h.orphan(h.parents)
		return nil, x.fail(op, errnoPtr(err), "", "")
	}
	if h.f, err = pollable(int(c.fd), x.info.Name+" completions"); err != nil {
		C.ibv_destroy_comp_channel(c)
		h.orphan(h.parents)
		return nil, x.fail(op, errnoOf(err), "", "")
	}
	raw, err := h.f.SyscallConn()
	if err != nil {
		h.f.Close()
		C.ibv_destroy_comp_channel(c)
		h.orphan(h.parents)
		return nil, x.fail(op, errnoOf(err), "", "")
	}
	h.c, h.taken = c, newCQEvents(c, raw)
	h.handle = handle.New(h, h.kind, x.info.Name)
	return h, nil
}

// Wait returns the next CQ that has made an event since it was armed, or the context's error. One
// goroutine waits at a time; a second gets ErrConcurrent.
//
// An event is a hint: arm the CQ, poll it until it is empty, and only then wait, or a completion
// between the last poll and the arming is slept through.
func (h *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	return h.await(func() error { return waitRead(ctx, h.f, h.taken.raw, h.taken.take) })
}

// WaitFor is Wait with a time in place of a context: it returns nil and no error when that is over.
// With none left it looks, and returns at once. It allocates nothing.
func (h *CompChannel) WaitFor(d time.Duration) (*CQ, error) {
	end := time.Now().Add(d)
	return h.await(func() error {
		if err := h.f.SetReadDeadline(end); err != nil {
			return err
		}
		err := h.taken.raw.Read(h.taken.take)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// Read does not look where the time is over before it begins.
			if err = h.taken.raw.Control(h.taken.look); err == nil && !h.taken.found {
				err = errTimeOver
			}
		}
		if e := h.f.SetReadDeadline(time.Time{}); e != nil {
			return e
		}
		return err
	})
}

// await returns a CQ that has made an event. It calls wait, which fills h.taken, where none is
// known yet.
func (h *CompChannel) await(wait func() error) (*CQ, error) {
	const op = "wait for completion"
	if err := h.use(op); err != nil {
		return nil, err
	}
	defer h.done()
	if !h.waiting.TryLock() {
		return nil, &Error{Op: op, Device: h.dev.info.Name, Object: h.name, Err: ErrConcurrent}
	}
	defer h.waiting.Unlock()
	for e := h.taken; ; {
		for len(e.pending) > 0 {
			id := uint64(e.pending[0])
			e.pending = e.pending[1:]
			if q := h.dev.reg.get(id); q != nil {
				return q, nil
			}
		}
		switch err := wait(); {
		case err == errTimeOver:
			return nil, nil
		case errors.Is(err, os.ErrClosed):
			return nil, h.closedError(op)
		case err != nil:
			return nil, &Error{Op: op, Device: h.dev.info.Name, Object: h.name, Err: err}
		case e.errno != 0:
			return nil, h.fail(op, e.errno, "", "")
		}
		e.pending = e.ids[:e.n]
	}
}

// Close destroys the channel. It is refused with ErrBusy while CQs use it or a goroutine waits.
func (h *CompChannel) Close() error {
	return h.close(func() error {
		if rc, err := C.ibv_destroy_comp_channel(h.c); rc != 0 {
			return h.fail("ibv_destroy_comp_channel", errnoRC(rc, err), "", "")
		}
		h.f.Close()
		return nil
	})
}

// CQConfig says what a completion queue is for.
type CQConfig struct {
	Entries int          // capacity; the device may give more; 0 means 256
	Channel *CompChannel // to be woken by; nil: polled only
	Vector  int          // completion vector (interrupt), 0 to the device's number of them
}

// CQ is a completion queue. Size it for everything that can complete at once: what does not fit is
// lost, and the queue with it.
type CQ struct {
	object
	c       *C.struct_ibv_cq
	id      uint64
	channel *CompChannel
	overrun atomic.Bool // it has lost completions and is of no more use: close the QPs on it, and it
}

// CreateCQ makes a completion queue.
func (x *Context) CreateCQ(cfg CQConfig) (*CQ, error) {
	const op = "ibv_create_cq"
	if cfg.Entries == 0 {
		cfg.Entries = 256
	}
	q := &CQ{object: object{dev: x, parents: []*object{&x.object}, kind: "CQ"}, channel: cfg.Channel}
	var ch *C.struct_ibv_comp_channel
	if cfg.Channel != nil {
		q.parents = append(q.parents, &cfg.Channel.object)
		ch = cfg.Channel.c
	}
	if err := q.adopt(op); err != nil {
		return nil, err
	}
	q.id = x.reg.put(q)
	q.name = fmt.Sprintf("CQ %d", q.id)
	c, err := C.ibc_create_cq(x.c, C.int(cfg.Entries), C.uint64_t(q.id), ch, C.int(cfg.Vector))
	if c == nil {
		x.reg.drop(q.id)
		q.orphan(q.parents)
		return nil, x.explainCQ(op, cfg, errnoPtr(err))
	}
	q.c = c
	q.handle = handle.New(q, "CQ", x.info.Name)
	return q, nil
}

func (x *Context) explainCQ(op string, cfg CQConfig, errno syscall.Errno) error {
	detail := fmt.Sprintf("%d entries, vector %d", cfg.Entries, cfg.Vector)
	remedy := ""
	switch {
	case cfg.Entries < 1 || cfg.Entries > x.attr.MaxCQE:
		remedy = fmt.Sprintf("ask for 1 to %d entries", x.attr.MaxCQE)
	case cfg.Vector < 0 || cfg.Vector >= x.attr.CompVectors:
		remedy = fmt.Sprintf("the device has %d completion vectors", x.attr.CompVectors)
	case errno == syscall.ENOMEM:
		remedy = fmt.Sprintf("the device allows %d CQs; its memory, or the memlock limit, may be exhausted", x.attr.MaxCQ)
	}
	return x.fail(op, errno, detail, remedy)
}

// Cap returns how many completions fit.
func (q *CQ) Cap() int { return int(q.c.cqe) }

// Arm requests one event on the channel when the next completion arrives; with solicitedOnly, the
// next solicited or failed one.
func (q *CQ) Arm(solicitedOnly bool) error {
	const op = "ibv_req_notify_cq"
	if err := q.use(op); err != nil {
		return err
	}
	defer q.done()
	if q.channel == nil {
		return q.fail(op, syscall.EINVAL, "the CQ was made without a completion channel", "set CQConfig.Channel")
	}
	only := C.int(0)
	if solicitedOnly {
		only = 1
	}
	rc, err := C.ibv_req_notify_cq(q.c, only)
	return q.result(op, rc, err)
}

// Resize requests another capacity. Not every device can.
func (q *CQ) Resize(entries int) error {
	const op = "ibv_resize_cq"
	if err := q.use(op); err != nil {
		return err
	}
	defer q.done()
	if rc, err := C.ibv_resize_cq(q.c, C.int(entries)); rc != 0 {
		return q.fail(op, errnoRC(rc, err), fmt.Sprintf("to %d entries; the device allows %d", entries, q.dev.attr.MaxCQE),
			"it cannot be smaller than the completions it holds")
	}
	return nil
}

func (q *CQ) overrunError(op string) error {
	return &Error{Op: op, Device: q.dev.info.Name, Object: q.name, Errno: syscall.EOVERFLOW, Err: ErrOverrun,
		Detail: fmt.Sprintf("more than %d completions were outstanding; some are lost", q.Cap()),
		Remedy: "make it as large as all signalled sends and posted receives of its QPs together"}
}

// Close destroys the queue. It is refused with ErrBusy while QPs or doorbells use it.
func (q *CQ) Close() error {
	return q.close(func() error {
		if rc, err := C.ibv_destroy_cq(q.c); rc != 0 {
			return q.fail("ibv_destroy_cq", errnoRC(rc, err), "", "")
		}
		q.dev.reg.drop(q.id)
		return nil
	})
}
