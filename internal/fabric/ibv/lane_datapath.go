//go:build linux && cgo

package ibv

import (
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/owner"
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
