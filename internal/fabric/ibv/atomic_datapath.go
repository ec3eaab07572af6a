//go:build linux && cgo

package ibv

import (
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/verbs"
)

// A device has two atomics: fetch-add and compare-swap of 64 bits (IBTA vol 1 §9.4.5; verbs has no
// portable way to those that some devices have besides). All others are loops of compare-swaps
// through the device. So everything that changes a word goes through the device of its rank, and
// is atomic to everything else that does.

// offloaded reports whether the device has an operation.
func offloaded(a *fabric.Atomic) bool { return a.Op <= fabric.CompareSwap && a.Type <= fabric.Int64 }

// Atomic applies an operation to a word of the peer's segment. The old value arrives in the slab.
func (l *lane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	if owner.Checked {
		if err := l.guard.Enter(); err != nil {
			return 0, fabric.Done, err
		}
		defer l.guard.Exit()
	}
	q, direct := l.target(peer, off, 8), offloaded(&a)
	if q == nil || !direct || (off|q.base)%8 != 0 || !l.set.net.atomics {
		var err error
		if q, err = l.checkTarget(a.Op.String(), peer, off, a.Type.Size()); err == nil {
			err = a.Check(peer, off, q.size)
		}
		if err == nil {
			err = l.set.checkAtomics(a.Op.String(), peer)
		}
		if err != nil {
			return 0, fabric.Done, err
		}
	}
	e := l.set
	e.counters.Atomics++
	if direct && l.synchronous(f) {
		return l.atomicNow(q, off, &a)
	}
	h, err := l.atomic(q, off, &a, f)
	if f&fabric.Implicit != 0 {
		return 0, h, err
	}
	return e.lastOld, h, err
}

// checkAtomics returns why there are no atomics on a rank.
func (e *queueSet) checkAtomics(op string, rank int) error {
	n := e.net
	if n.peers[rank].base%8 != 0 {
		return fmt.Errorf("ibv: %s: the segment of rank %d does not begin at a multiple of 8 bytes", op, rank)
	}
	if !n.atomics {
		return fmt.Errorf("ibv: %s: device %s has no atomics: %w", op, n.dev.Name(), verbs.ErrNotSupported)
	}
	return nil
}

// atomic starts an operation. It has a record if its old value is wanted, or it is a loop of
// compare-swaps on the aligned word of 64 bits around its own.
func (l *lane) atomic(q *sendQueue, off uint64, a *fabric.Atomic, f fabric.Flag) (fabric.Handle, error) {
	e, direct, recorded := l.set, offloaded(a), f
	if !direct {
		recorded &^= fabric.Implicit
	}
	o, err := l.begin(q, 1, recorded)
	if err == nil && o != none {
		err = e.block(q, &e.slab.small)
	}
	if err != nil {
		return fabric.Done, l.cutShort(o, err)
	}
	switch {
	case o == none:
		return l.commit(q, o, e.stageAtomic(q, o, none, off, a), false, f)
	case direct:
		return l.commit(q, o, e.stageAtomic(q, o, e.slab.small.take(), off, a), true, f)
	}
	p := &e.ops.all[o]
	p.loop, p.off, p.atomic, p.attempts = true, off, *a, attempts{}
	e.loops.n++
	if f&fabric.Implicit != 0 && !e.batch.on {
		p.piece, p.parent, p.offset, p.length, p.name, p.result = true, none, off, a.Type.Size(), a.Op.String(), nil
	}
	return l.commit(q, o, e.loops.attempt(q, o), true, f)
}
