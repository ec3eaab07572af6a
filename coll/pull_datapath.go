package coll

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/peek"
)

// Members of one host that may read each other's memory do so for long data: each byte is copied
// once, from one program's buffer to the other's. A member shows the others where its data is, all
// read, and each tells those that it has read from that they may change it. Whoever gives the
// operation up says so before its program can change anything; so a member that is not told after
// it has read has read the right bytes.

// pulls reports whether the operation goes this way.
func (o *op) pulls() (*near, bool, error) {
	near, err := o.nearby()
	return near, err == nil && near.pids != nil, err
}

// show tells a member where the next bytes for it are. The word is valid once that has a signal.
func (o *op) show(near *near, to int, b []byte) {
	w := word(near.slots[to], o.t.teams.shape.refs+8*uint64(o.t.me))
	atomic.StoreUint64(w, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))))
}

// pull copies from what a member has shown, beginning at an offset.
func (o *op) pull(near *near, from, at int, dst []byte) error {
	t := o.t
	base := atomic.LoadUint64(word(t.mem, t.teams.shape.refs+8*uint64(from)))
	err := peek.Read(near.pids[from], base+uint64(at), dst)
	if errors.Is(err, unix.ESRCH) {
		return &fabric.PeerDownError{Rank: t.Member(from), Op: o.kind.String(), Cause: err}
	}
	return err
}

// pulled ends the reading: it waits until all others have ended theirs.
func (o *op) pulled(near *near) error {
	if e := o.t.known(); e != nil { // what was read may have been changed
		return e
	}
	o.signal(near, -1)
	return o.signalled(near, -1)
}

// pullBlocks has each member read the blocks that are for it. from is what this one has for another.
func (o *op) pullBlocks(near *near, dst *blocks, from func(to int) []byte) error {
	t := o.t
	for i := range t.n {
		o.show(near, i, from(i))
	}
	o.signal(near, -1)
	copy(dst.of(t.me), from(t.me))
	for k := 1; k < t.n; k++ {
		i := (t.me + k) % t.n
		if err := o.arrived(i); err != nil {
			return err
		}
		if err := o.pull(near, i, 0, dst.of(i)); err != nil {
			return err
		}
	}
	return o.pulled(near)
}

// reducePulled has each member read its share of all others' buffers, piece by piece, reduce it in
// the order of ranks, and put it into its own buffer, from where the others read it.
func (o *op) reducePulled(near *near, buf []byte) error {
	t, d := o.t, o.data
	for i := range t.n {
		o.show(near, i, buf)
	}
	o.signal(near, -1)
	if err := o.signalled(near, -1); err != nil {
		return err
	}
	from, to := d.share(len(buf), t.me, t.n)
	desk := t.desk()
	first, next := desk[:len(desk)/2], desk[len(desk)/2:]
	unit := d.whole(uint64(len(first)))
	for at := from; at < to; at += unit {
		mine := buf[at:min(at+unit, to)]
		acc := mine
		if t.me > 0 {
			acc = first[:len(mine)]
			if err := o.pull(near, 0, at, acc); err != nil {
				return err
			}
		}
		for i := 1; i < t.n; i++ {
			src := mine
			if i != t.me {
				src = next[:len(mine)]
				if err := o.pull(near, i, at, src); err != nil {
					return err
				}
			}
			if err := o.fold(acc, src); err != nil {
				return err
			}
		}
		if t.me > 0 {
			copy(mine, acc)
		}
	}
	if e := o.t.known(); e != nil { // what was read may have been changed
		return e
	}
	o.signal(near, -1)
	for k := 1; k < t.n; k++ {
		i := (t.me + k) % t.n
		if err := o.arrived(i); err != nil {
			return err
		}
		from, to := d.share(len(buf), i, t.n)
		if err := o.pull(near, i, from, buf[from:to]); err != nil {
			return err
		}
	}
	return o.pulled(near)
}
