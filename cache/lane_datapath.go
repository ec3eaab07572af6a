package cache

import (
	"context"
	"errors"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Lane is a lane with the cache above it: operations that the cache takes end there, all else goes
// on to the lane below, and the cache keeps nothing that it makes old. So do operations on a rank
// of which it keeps nothing (Config.Size). A put or get that waits is complete when it returns, in
// the sense of Put and Get. An atomic that returns a value has a Deliver before it and an Acquire
// after it.
//
// Offsets count from the begin of a segment, as in the lane below and in its errors. That they lie
// in the rank's memory is the caller's to check.
type Lane struct {
	fabric.Lane
	// Passed has all puts and gets go on to the lane below.
	Passed  bool
	c       *Cache
	fetches bool // atomics that return a value were begun since the last Flush
}

// Lanes are those that the cache was made with, in their order, with the cache above them.
func (c *Cache) Lanes() (all []*Lane) {
	for _, l := range c.net.lanes {
		all = append(all, &Lane{Lane: l, c: c})
	}
	return all
}

// SetContext bounds the operations on the cache's lanes (fabric.Bounded).
func (l *Lane) SetContext(ctx context.Context) { l.c.ctx = ctx }

// Get implements fabric.Lane.
func (l *Lane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	c, at, n := l.c, off-l.c.pages.cfg.Begin, uint64(len(dst))
	switch {
	case !c.Keeps(peer):
		return l.Lane.Get(peer, off, dst, f)
	case l.Passed || f != fabric.Blocking:
		return l.start(peer, off, dst, f)
	case c.usage.passes(peer, at, n)&passGets != 0:
		if c.usage.passGet(peer, at) {
			return l.Lane.Get(peer, off, dst, f)
		}
		if c.usage.stillPassesGet(peer, at) {
			return fabric.Done, c.net.getAround(c.ctx, peer, at, dst)
		}
	}
	if kept := c.Hit(peer, at, n); kept != nil {
		copy(dst, unsafe.Slice((*byte)(kept), n))
		return fabric.Done, nil
	}
	return fabric.Done, c.reader.get(c.ctx, peer, at, dst)
}

// start is Get where the caller does not wait. Where the cache has no place for it it passes by.
func (l *Lane) start(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	c, at := l.c, off-l.c.pages.cfg.Begin
	if !l.Passed {
		if h, begun, err := c.begun.begin(peer, at, dst, f&fabric.Implicit != 0); begun {
			return h, err
		}
	}
	if err := c.Direct(c.ctx, peer, at, len(dst), false); err != nil {
		return fabric.Done, err
	}
	return l.Lane.Get(peer, off, dst, f)
}

// Put implements fabric.Lane.
func (l *Lane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	c, at, n := l.c, off-l.c.pages.cfg.Begin, uint64(len(src))
	switch {
	case !c.Keeps(peer):
		return l.Lane.Put(peer, off, src, f)
	case l.Passed || f != fabric.Blocking && len(src) >= c.pages.cfg.DirectMin:
		if err := c.Direct(c.ctx, peer, at, len(src), true); err != nil {
			return fabric.Done, err
		}
		return l.Lane.Put(peer, off, src, f)
	case f == fabric.Blocking && c.usage.passes(peer, at, n)&passPuts != 0 &&
		(c.usage.passPut(peer, at) || c.usage.stillPassesPut(peer, at)):
		return fabric.Done, c.writer.putAround(c.ctx, peer, at, src)
	}
	return fabric.Done, c.Put(c.ctx, peer, at, src)
}

// Atomic implements fabric.Lane. One that returns a value forgets the word, as an acquire follows,
// unless its copy survives that.
func (l *Lane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (old uint64, h fabric.Handle, err error) {
	c, at, n, fetches := l.c, off-l.c.pages.cfg.Begin, a.Type.Size(), f&fabric.Implicit == 0
	if fetches && !c.delivered() {
		if err := c.Deliver(c.ctx); err != nil {
			return 0, fabric.Done, err
		}
	}
	if (!fetches || c.pages.survivesAt(peer, at)) && c.Keeps(peer) && !c.writer.yielded(peer, at, n) {
		if err := c.Direct(c.ctx, peer, at, int(n), true); err != nil {
			return 0, fabric.Done, err
		}
	}
	old, h, err = l.Lane.Atomic(peer, off, a, f)
	switch {
	case err != nil || !fetches:
	case h == fabric.Done:
		c.Acquire()
	default:
		h |= fabric.MarkAtomic
		l.fetches = true
	}
	return old, h, err
}

// Wait implements fabric.Lane.
func (l *Lane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	if h&fabric.MarkCache != 0 {
		return 0, l.c.begun.wait(ctx, h)
	}
	old, err := l.Lane.Wait(ctx, h&^fabric.MarkAtomic)
	if err == nil && h&fabric.MarkAtomic != 0 {
		l.c.Acquire()
	}
	return old, err
}

// Test implements fabric.Lane. Of a get it waits where the fetched lines have been evicted, or made
// old: otherwise two gets could keep each other from their end.
func (l *Lane) Test(h fabric.Handle) (old uint64, done bool, err error) {
	if h&fabric.MarkCache != 0 {
		done, err = l.c.begun.test(h)
		return 0, done, err
	}
	old, done, err = l.Lane.Test(h &^ fabric.MarkAtomic)
	if done && err == nil && h&fabric.MarkAtomic != 0 {
		l.c.Acquire()
	}
	return old, done, err
}

// Abandon implements fabric.Lane. Nothing is written to the bytes of a get of the cache any more.
func (l *Lane) Abandon(h fabric.Handle) {
	if h&fabric.MarkCache != 0 {
		l.c.begun.abandon(h)
		return
	}
	l.Lane.Abandon(h &^ fabric.MarkAtomic)
}

// Flush implements fabric.Lane, and ends the gets that the cache has begun on any lane. Puts
// through the cache are Release's.
func (l *Lane) Flush(ctx context.Context) error {
	err := l.c.begun.flush(ctx)
	if e := l.Lane.Flush(ctx); err == nil {
		err = e
	} else if e != nil {
		err = errors.Join(err, e)
	}
	if l.fetches {
		l.fetches = err != nil
		l.c.Acquire()
	}
	return err
}
