package coll

import (
	"context"
	"slices"
	"sync"

	"github.com/ibconduit/conduit/am"
)

// turns is a lock that goes to who came first. Waiting for it parks the goroutine through the host,
// as a simulation needs it.
type turns struct {
	host    am.Host
	mu      sync.Mutex
	held    bool
	waiting []*turn
}

// turn is a place in the queue.
type turn struct {
	of      *turns
	parker  am.Parker // nil: it was free
	granted bool
}

// join takes a place. It must be waited for.
func (q *turns) join() *turn {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := &turn{of: q}
	if !q.held {
		q.held, t.granted = true, true
		return t
	}
	t.parker = q.host.NewParker()
	q.waiting = append(q.waiting, t)
	return t
}

// wait waits for the turn. With an error the place is given up.
func (t *turn) wait(ctx context.Context) error {
	for !t.has() {
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
func (q *turns) try() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.held {
		return false
	}
	q.held = true
	return true
}

// lock waits for the lock.
func (q *turns) lock(ctx context.Context) error {
	if q.try() {
		return nil
	}
	return q.join().wait(ctx)
}

// unlock gives the lock to the next.
func (q *turns) unlock() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		q.held = false
		return
	}
	next := q.waiting[0]
	q.waiting = slices.Delete(q.waiting, 0, 1)
	next.granted = true
	next.parker.Unpark()
}
