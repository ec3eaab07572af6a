package cache_test

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/fabric"
)

// remote is what the tests go through: the cache, or nothing at all.
type remote interface {
	Get(ctx context.Context, rank int, off uint64, dst []byte) error
	Put(ctx context.Context, rank int, off uint64, src []byte) error
	Acquire()
	Release(ctx context.Context) error
	Direct(ctx context.Context, rank int, off uint64, n int, write bool) error
	Prefetch(ctx context.Context, rank int, off uint64, n int) error
	PrefetchEach(ctx context.Context, rank int, offs []uint64, n int) error
	Verify() error
	Close() error
}

// uncached is no cache: each operation goes through the lanes and is complete when it returns.
type uncached struct{ lanes env.Lanes }

func (u uncached) Get(ctx context.Context, rank int, off uint64, dst []byte) error {
	l := u.lanes.To(rank)
	h, err := l.Get(rank, off, dst, fabric.Blocking)
	if err == nil {
		_, err = l.Wait(ctx, h)
	}
	return err
}

func (u uncached) Put(ctx context.Context, rank int, off uint64, src []byte) error {
	l := u.lanes.To(rank)
	h, err := l.Put(rank, off, src, fabric.Blocking)
	if err == nil {
		_, err = l.Wait(ctx, h)
	}
	return err
}

func (u uncached) Release(ctx context.Context) error {
	var err error
	for _, l := range u.lanes.All() {
		err = errors.Join(err, l.Flush(ctx))
	}
	return err
}

func (uncached) Acquire()                                               {}
func (uncached) Direct(context.Context, int, uint64, int, bool) error   { return nil }
func (uncached) Prefetch(context.Context, int, uint64, int) error       { return nil }
func (uncached) PrefetchEach(context.Context, int, []uint64, int) error { return nil }
func (uncached) Verify() error                                          { return nil }
func (uncached) Close() error                                           { return nil }
