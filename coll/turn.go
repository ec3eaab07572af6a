package coll

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
)

// turns is a lock that goes to the first that waits. Waiting for it parks the goroutine through the
// host, as a simulation needs it. Where none waits it costs one atomic operation to take, and one
// to give back.
type turns struct {
	host    am.Host
	state   atomic.Uint32
	mu      sync.Mutex
	waiting []*turn
}

// States of turns. Only the holder of mu makes it contended, or frees it then.
const (
	free      = iota
	held      // and nobody has waited
	contended // held, and some may wait
)

// turn is a place in the queue; nil: the lock was free.
type turn struct {
	of      *turns
	parker  am.Parker
	granted bool
}

// join takes a place. It must be waited for.
func (q *turns) join() *turn {
	if q.try() {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state.Swap(contended) == free {
		return nil
	}
	t := &turn{of: q, parker: q.host.NewParker()}
	q.waiting = append(q.waiting, t)
	return t
}

// wait waits for the turn. With an error the place is given up.
func (t *turn) wait(ctx context.Context) error {
	for t != nil && !t.has() {
		if err := t.parker.Park(ctx); err != nil && t.leave() {
			return err
		}
	}
	return nil
}

func (t *turn) has() bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	return t.granted
}

// leave gives the place up, unless it is its turn.
func (t *turn) leave() bool {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.granted {
		return false
	}
	t.of.waiting = slices.DeleteFunc(t.of.waiting, func(o *turn) bool { return o == t })
	return true
}

// try takes the lock if it is free.
func (q *turns) try() bool { return q.state.CompareAndSwap(free, held) }

// lock waits for the lock.
func (q *turns) lock(ctx context.Context) error {
	if q.try() {
		return nil
	}
	return q.join().wait(ctx)
}

// unlock gives the lock to the next.
func (q *turns) unlock() {
	if q.state.CompareAndSwap(held, free) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.state.Store(free)
		return
	}
	next := q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	next.granted = true
	next.parker.Unpark()
}
