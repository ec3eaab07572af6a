//go:build linux && cgo

package verbs

/*
#include "ibc_verbs.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/owner"
)

// MaxBatch is how many sub-chains one ring of a doorbell posts.
const MaxBatch = C.IBC_MAX_BATCH

// DoorbellConfig says how a doorbell waits.
type DoorbellConfig struct {
	Completions int // how many completions one ring returns at most; 0 means 64
}

// Doorbell posts sub-chains and waits for completions in one cgo call, without allocation. It
// belongs to one goroutine at a time; in the debug build (-tags debug) use by two at once is an
// ErrConcurrent.
//
// Queue sub-chains with Send, Recv and SRQRecv, then call Ring. The chains'
// slots must stay as they are until their requests complete, except inline data and the requests
// themselves, which are copied by the post.
type Doorbell struct {
	object
	cq   *CQ
	user owner.Guard // the goroutine in Ring, in the debug build
	mem  []byte
	d    *C.struct_ibc_doorbell
	wcs  []WC

	queued [MaxBatch]queuedBatch
}

// queuedBatch is released after a post, and named by an error.
type queuedBatch struct {
	queue *object
	chain *chain
	first int
}

// NewDoorbell makes a doorbell that waits for completions of this queue.
func (q *CQ) NewDoorbell(cfg DoorbellConfig) (*Doorbell, error) {
	const op = "new doorbell"
	if cfg.Completions == 0 {
		cfg.Completions = 64
	}
	if cfg.Completions < 1 || cfg.Completions > 1<<16 {
		return nil, q.fail(op, syscall.EINVAL, fmt.Sprintf("%+v is out of range", cfg), "at most 65536 completions")
	}
	d := &Doorbell{object: object{dev: q.dev, parents: []*object{&q.object}, kind: "doorbell",
		name: "doorbell of " + q.name}, cq: q}
	if err := d.adopt(op); err != nil {
		return nil, err
	}
	head := alignUp(C.sizeof_struct_ibc_doorbell, cacheLine)
	mem, err := unix.Mmap(-1, 0, head+cfg.Completions*int(sizeofWC), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		d.orphan(d.parents)
		return nil, q.fail(op, errnoOf(err), "", "")
	}
	d.mem = mem
	d.d = (*C.struct_ibc_doorbell)(unsafe.Pointer(&mem[0]))
	d.wcs = unsafe.Slice((*WC)(unsafe.Pointer(&mem[head])), cfg.Completions)
	d.d.cq, d.d.wc, d.d.wc_cap = q.c, (*C.struct_ibv_wc)(unsafe.Pointer(&d.wcs[0])), C.uint32_t(cfg.Completions)
	d.d.ticks_per_us = C.uint64_t(ticksPerMicrosecond())
	d.handle = handle.New(d, "doorbell", d.name)
	return d, nil
}

// Send queues n requests of a chain, from slot first on and around its end, for the send queue of a
// QP.
func (d *Doorbell) Send(q *QP, c *SendChain, first, n int) error {
	return d.push(C.IBC_SEND, unsafe.Pointer(q.c), &q.object, &c.chain, first, n)
}

// Recv queues n requests of a chain, from slot first on and around its end, for the receive queue
// of a QP.
func (d *Doorbell) Recv(q *QP, c *RecvChain, first, n int) error {
	return d.push(C.IBC_RECV, unsafe.Pointer(q.c), &q.object, &c.chain, first, n)
}

// SRQRecv queues n requests of a chain, from slot first on and around its end, for a shared receive
// queue.
func (d *Doorbell) SRQRecv(s *SRQ, c *RecvChain, first, n int) error {
	return d.push(C.IBC_SRQ_RECV, unsafe.Pointer(s.c), &s.object, &c.chain, first, n)
}

// push queues a sub-chain, and keeps its queue open until it has been posted.
func (d *Doorbell) push(kind C.uint32_t, queue unsafe.Pointer, o *object, c *chain, first, n int) error {
	x := d.d
	if x == nil || x.batches == MaxBatch || uint(first) >= uint(c.slots) ||
		uint(n-1) >= uint(c.slots) || !o.guard.enter() {
		return d.refuse(o, c, first, n)
	}
	last := first + n - 1
	if last >= c.slots {
		last -= c.slots
	}
	i := x.batches
	p := &x.batch[i]
	p.queue, p.kind, p.count = queue, kind, C.uint32_t(n)
	// The slots are mapped memory: their addresses are numbers to Go.
	*(*uintptr)(unsafe.Pointer(&p.first)) = c.base + uintptr(first)*c.size
	*(*uintptr)(unsafe.Pointer(&p.last)) = c.base + uintptr(last)*c.size
	b := &d.queued[i]
	b.queue, b.chain, b.first = o, c, first
	c.queued++
	x.batches = i + 1
	return nil
}

// refuse says why push did nothing.
func (d *Doorbell) refuse(o *object, c *chain, first, n int) error {
	switch {
	case d.d == nil:
		return d.closedError("post")
	case d.d.batches == MaxBatch:
		return d.fail("post", 0, fmt.Sprintf("%d sub-chains wait already", MaxBatch), "ring the doorbell").with(ErrFull)
	case c.closed:
		return &Error{Op: "post", Object: c.kind, Err: os.ErrClosed}
	case uint(first) >= uint(c.slots) || uint(n-1) >= uint(c.slots):
		return &Error{Op: "post", Object: c.kind, Errno: unix.EINVAL,
			Detail: fmt.Sprintf("slots %d..%d of a chain with %d", first, first+n-1, c.slots)}
	}
	return o.closedError("post")
}

// Ring posts queued sub-chains, then polls until want completions have come or the budget has
// passed, and returns how many came, at most the configured number. It polls at least once, unless
// want is 0: then it only posts. Completions returns them.
//
// A sub-chain that was refused keeps only those behind it for the same queue from being posted.
// Then the error is the first one's *PostError, see Refused; completions that came are returned
// beside it.
func (d *Doorbell) Ring(want int, budget time.Duration) (int, error) {
	x := d.d
	if x == nil || owner.Checked && d.user.Enter() != nil {
		return 0, d.misused()
	}
	return d.ring(x, want, budget)
}

// Call posts n requests of a chain, from slot first on, then polls: Send and Ring in fewer steps,
// for a doorbell in which nothing is queued.
func (d *Doorbell) Call(q *QP, c *SendChain, first, n, want int, budget time.Duration) (int, error) {
	x, last := d.d, first+n-1
	if x == nil || x.batches != 0 || first < 0 || n < 1 || last >= c.slots || owner.Checked {
		return d.sendAndRing(q, c, first, n, want, budget)
	}
	if !q.guard.enter() {
		return d.sendAndRing(q, c, first, n, want, budget)
	}
	p := &x.batch[0]
	p.kind, p.count = C.IBC_SEND, C.uint32_t(n)
	*(*uintptr)(unsafe.Pointer(&p.queue)) = uintptr(unsafe.Pointer(q.c))
	*(*uintptr)(unsafe.Pointer(&p.first)) = c.addr(first)
	*(*uintptr)(unsafe.Pointer(&p.last)) = c.addr(last)
	x.batches, x.want = 1, C.uint32_t(max(want, 0))
	x.budget_ns = C.uint64_t(min(max(budget, 0), C.IBC_MAX_BUDGET_NS))
	C.ibc_ring_at(C.uintptr_t(uintptr(unsafe.Pointer(x))))
	x.batches = 0
	q.guard.leave()
	if x.refused != 0 || x.poll_errno != 0 || d.cq.overrun.Load() {
		d.queued[0] = queuedBatch{&q.object, &c.chain, first}
		return int(x.completed), d.failure()
	}
	return int(x.completed), nil
}

// PostOne posts one request of a chain and does not poll: Send and Ring in the fewest steps where
// nothing is queued; else behind the queued ones.
func (d *Doorbell) PostOne(q *QP, c *SendChain, i int) error {
	x := d.d
	if x == nil || x.batches != 0 || uint(i) >= uint(c.slots) || owner.Checked {
		_, err := d.sendAndRing(q, c, i, 1, 0, 0)
		return err
	}
	if !q.guard.enter() {
		_, err := d.sendAndRing(q, c, i, 1, 0, 0)
		return err
	}
	p, at := &x.batch[0], c.addr(i)
	p.kind, p.count = C.IBC_SEND, 1
	*(*uintptr)(unsafe.Pointer(&p.queue)) = uintptr(unsafe.Pointer(q.c))
	*(*uintptr)(unsafe.Pointer(&p.first)) = at
	*(*uintptr)(unsafe.Pointer(&p.last)) = at
	x.batches, x.want = 1, 0
	C.ibc_ring_at(C.uintptr_t(uintptr(unsafe.Pointer(x))))
	x.batches = 0
	q.guard.leave()
	if x.refused != 0 || d.cq.overrun.Load() {
		d.queued[0] = queuedBatch{&q.object, &c.chain, i}
		return d.failure()
	}
	return nil
}

func (d *Doorbell) sendAndRing(q *QP, c *SendChain, first, n, want int, budget time.Duration) (int, error) {
	if err := d.Send(q, c, first, n); err != nil {
		return 0, err
	}
	return d.Ring(want, budget)
}

// PollFor is Ring for a doorbell in which nothing is queued, in fewer steps.
func (d *Doorbell) PollFor(want int, budget time.Duration) (int, error) {
	x := d.d
	if x == nil || x.batches != 0 || owner.Checked {
		return d.Ring(want, budget)
	}
	x.want, x.budget_ns = C.uint32_t(max(want, 0)), C.uint64_t(min(max(budget, 0), C.IBC_MAX_BUDGET_NS))
	C.ibc_ring_at(C.uintptr_t(uintptr(unsafe.Pointer(x))))
	if x.poll_errno != 0 || d.cq.overrun.Load() {
		return int(x.completed), d.failure()
	}
	return int(x.completed), nil
}

// misused says why a ring did nothing: after Close, or, in the debug build, two goroutines ring at
// a time.
func (d *Doorbell) misused() error {
	if d.d == nil {
		return d.closedError("ring")
	}
	return d.fail("ring", 0, "", "one goroutine at a time").with(ErrConcurrent)
}

// ring makes the call, and lets the queues of posted sub-chains be closed again.
func (d *Doorbell) ring(x *C.struct_ibc_doorbell, want int, budget time.Duration) (n int, err error) {
	x.want, x.budget_ns = C.uint32_t(max(want, 0)), C.uint64_t(min(max(budget, 0), C.IBC_MAX_BUDGET_NS))
	// As a number: a pointer to C memory would be looked up in Go's heap at each call.
	C.ibc_ring_at(C.uintptr_t(uintptr(unsafe.Pointer(x))))
	if x.refused != 0 || x.poll_errno != 0 || d.cq.overrun.Load() {
		err = d.failure()
	}
	d.release()
	if owner.Checked {
		d.user.Exit()
	}
	return int(x.completed), err
}

// release forgets queued sub-chains, so that their queues can be closed.
func (d *Doorbell) release() {
	for i := range d.d.batches {
		b := &d.queued[i]
		b.queue.guard.leave()
		b.chain.queued--
	}
	d.d.batches = 0
}

func (d *Doorbell) failure() error {
	switch {
	case d.d.refused != 0:
		i := 0
		for d.d.batch[i].err == 0 {
			i++
		}
		return d.Refused(i)
	case d.cq.overrun.Load():
		return d.cq.overrunError("ibv_poll_cq")
	default:
		return d.cq.fail("ibv_poll_cq", syscall.Errno(d.d.poll_errno), "", "")
	}
}

// Refused returns the refusal of a part of sub-chain i of the last ring, which failed with a
// *PostError; nil: it was posted.
func (d *Doorbell) Refused(i int) *PostError {
	b, q := &d.d.batch[i], &d.queued[i]
	if b.err == 0 {
		return nil
	}
	e := &PostError{Device: d.dev.info.Name, Queue: q.queue.name, Batch: i, Slot: q.first, Errno: syscall.Errno(b.err),
		Posted: int(d.d.posted)}
	if bad := uintptr(b.bad) - q.chain.base; bad < uintptr(q.chain.slots)*q.chain.size {
		e.Slot = int(bad / q.chain.size)
		e.WRID = *(*uint64)(b.bad)
	}
	return e
}

// Completions returns the completions of the last ring. The slice is valid until the next.
func (d *Doorbell) Completions() []WC {
	if d.d == nil {
		return nil
	}
	return d.wcs[:d.d.completed]
}

// Posted returns how many work requests the last ring posted.
func (d *Doorbell) Posted() int {
	if d.d == nil {
		return 0
	}
	return int(d.d.posted)
}

// DoorbellStats counts what went through a doorbell.
type DoorbellStats struct{ Rings, Completions uint64 }

// Stats returns the counters. It may be called at any time until Close.
func (d *Doorbell) Stats() (s DoorbellStats) {
	if !d.guard.enter() {
		return s
	}
	defer d.guard.leave()
	s.Rings = atomic.LoadUint64((*uint64)(&d.d.n_rings))
	s.Completions = atomic.LoadUint64((*uint64)(&d.d.n_completions))
	return s
}

// Close frees the doorbell and forgets queued sub-chains. In the debug build it is refused with
// ErrBusy while another goroutine rings it.
func (d *Doorbell) Close() error {
	return d.close(func() error {
		if owner.Checked {
			if d.user.Enter() != nil {
				return d.busy("a ring is in progress", "let it end first")
			}
			defer d.user.Exit()
		}
		d.release()
		mem := d.mem
		d.mem, d.d, d.wcs = nil, nil, nil
		if err := unix.Munmap(mem); err != nil {
			return d.fail("munmap", errnoOf(err), "", "")
		}
		return nil
	})
}
