package coll

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/peek"
)

// Members of one host that may read each other's memory do so for long data: each byte is copied
// once, from one program's buffer to the other's. A member shows the others where its data is, all
// read, and each lets the members that it has read from know. A member that gives the
// operation up says so before its program can change anything; so a member that sees no such word
// after it has read has read the right bytes.

// pulls reports whether the operation goes this way.
func (o *op) pulls() (*near, bool, error) {
	near, err := o.nearby()
	return near, err == nil && near.pids != nil, err
}

// show gives a member the place of the next bytes for it. The word is valid once that has a signal.
func (near *near) show(t *membership, to int, b []byte) {
	w := word(near.slots[to], t.shared.shape.refs+8*uint64(t.me))
	atomic.StoreUint64(w, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))))
}

// pull copies what a member has shown.
func (near *near) pull(t *membership, k Kind, from int, dst []byte) error {
	at := atomic.LoadUint64(word(t.mem, t.shared.shape.refs+8*uint64(from)))
	err := peek.Read(near.pids[from], at, dst)
	if errors.Is(err, unix.ESRCH) {
		return &fabric.PeerDownError{Rank: t.Member(from), Op: k.String(), Cause: err}
	}
	return err
}

// pulled ends the reading: it waits until all others have ended theirs.
func (o *op) pulled(near *near) error {
	if e := o.health.known(); e != nil { // what was read may have been changed
		return e
	}
	o.pairs.signal(near, noMember)
	return o.pairs.signalled(near)
}

// pullBlocks has each member read the blocks that are for it. from is what this one has for
// another.
func (o *op) pullBlocks(near *near, dst *blocks, from func(to int) []byte) error {
	err := o.readBlocks(near, dst, from)
	if err != nil {
		// The sender of that word may not have reached the others yet, and they may still read here.
		t := o.t
		t.write(brokenWord, encodeBroken(t.generation, o.health.fail(o.kind, o.number, err)))
	}
	return err
}

func (o *op) readBlocks(near *near, dst *blocks, from func(to int) []byte) error {
	t := o.t
	for i := range t.n {
		near.show(t, i, from(i))
	}
	o.pairs.signal(near, noMember)
	copy(dst.of(t.me), from(t.me))
	for k := 1; k < t.n; k++ {
		i := (t.me + k) % t.n
		if err := o.pairs.arrived(i); err != nil {
			return err
		}
		if err := near.pull(t, o.kind, i, dst.of(i)); err != nil {
			return err
		}
	}
	return o.pulled(near)
}
