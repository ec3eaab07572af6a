//go:build linux && cgo

package ibv

import (
	"fmt"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/verbs"
)

// lane is a queue set in the hands of its user.
type lane struct {
	set      *queueSet // nil once closed
	counters *fabric.Counters
	guard    owner.Guard
}

var (
	_ fabric.Lane    = (*lane)(nil)
	_ fabric.Bounded = (*lane)(nil)
)

// Put writes src into the peer's segment.
func (l *lane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return fabric.Done, err
		}
		defer l.guard.Exit()
	}
	n := uint64(len(src))
	q := l.target(peer, off, n)
	if q == nil {
		var err error
		if q, err = l.checkTarget("put", peer, off, n); err != nil {
			return fabric.Done, err
		}
	}
	e := l.set
	c := e.counters
	c.Puts++
	c.PutBytes += n
	switch {
	case n == 0:
		c.Completed++
		return fabric.Done, nil
	case n <= uint64(e.net.inline):
		c.Inline++
		if l.synchronous(f) {
			return l.putInlineNow(q, off, src)
		}
		return l.putInline(q, off, src, f)
	default:
		return l.transfer(q, off, src, f, kindPut)
	}
}

// Get reads from the peer's segment into dst.
func (l *lane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return fabric.Done, err
		}
		defer l.guard.Exit()
	}
	n := uint64(len(dst))
	q := l.target(peer, off, n)
	if q == nil {
		var err error
		if q, err = l.checkTarget("get", peer, off, n); err != nil {
			return fabric.Done, err
		}
	}
	c := l.set.counters
	c.Gets++
	c.GetBytes += n
	if n == 0 {
		c.Completed++
		return fabric.Done, nil
	}
	return l.transfer(q, off, dst, f, kindGet)
}

// Atomic applies op to a word of the peer's segment. The old value arrives in
// the slab. A swap is a compare-swap that is tried again until it finds what it
// expects: IBTA has no swap of its own.
func (l *lane) Atomic(code fabric.AtomicOp, peer int, off, operand, compare uint64, f fabric.Flag) (uint64, fabric.Handle, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return 0, fabric.Done, err
		}
		defer l.guard.Exit()
	}
	q := l.target(peer, off, 8)
	if q == nil {
		var err error
		if q, err = l.checkTarget(code.String(), peer, off, 8); err != nil {
			return 0, fabric.Done, err
		}
	}
	e := l.set
	if err := e.checkAtomic(int(q.rank), code, off); err != nil {
		return 0, fabric.Done, err
	}
	f &^= fabric.Implicit
	if code != fabric.Swap && l.synchronous(f) {
		e.counters.Atomics++
		return l.atomicNow(q, off, operand, compare, code == fabric.FetchAdd)
	}
	h, err := l.atomic(q, code, off, operand, compare, f)
	return e.lastOld, h, err
}

// checkAtomic says why an atomic cannot be done at an offset.
func (e *queueSet) checkAtomic(rank int, code fabric.AtomicOp, off uint64) error {
	switch {
	case off%8 != 0 || e.net.peers[rank].base%8 != 0:
		return &fabric.AlignError{Op: code.String(), Rank: rank, Off: off, Align: 8}
	case !code.Valid():
		return fmt.Errorf("ibv: no atomic operation %d", code)
	case !e.net.atomics:
		return fmt.Errorf("ibv: %s: device %s has no atomics: %w", code, e.net.dev.Name(), verbs.ErrNotSupported)
	}
	return nil
}

// atomic starts an atomic. Once it is done lastOld is the word's old value.
func (l *lane) atomic(q *sendQueue, code fabric.AtomicOp, off, operand, compare uint64, f fabric.Flag) (fabric.Handle, error) {
	e := l.set
	e.counters.Atomics++
	o, err := l.begin(q, 1, f)
	if err != nil {
		return fabric.Done, l.refuse(err)
	}
	p := &e.ops.all[o]
	p.offset, p.operand, p.compare, p.swap = off, operand, compare, code == fabric.Swap
	if p.swap {
		p.compare = 0
	}
	w, err := e.postAtomic(q, o, code == fabric.FetchAdd)
	if err != nil {
		return fabric.Done, l.cutShort(o, err)
	}
	if e.ops.all[o].swap {
		e.loops++
	}
	return l.commit(q, o, w, true, f)
}
