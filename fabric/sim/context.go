package sim

import (
	"context"
	"time"
)

// vctx is a context whose deadline is virtual. Unlike the standard library's it tells those
// derived from it at once, in the same instant, and never from another goroutine.
type vctx struct {
	w       *World
	parent  context.Context
	timer   timer
	done    chan struct{}
	err     error
	cause   error
	waiters []*task
	after   []*after // in the order in which they came
	detach  func() bool
	adopted bool            // is in World.adopted
	shadow  context.Context // where context.Cause finds a cause that differs from Err
	shade   context.CancelCauseFunc
}

type after struct{ f func() }

type vctxKey struct{}

// WithTimeout is context.WithTimeout in virtual time. The context's Deadline method knows nothing
// of it: it is not on the machine's clock.
func (w *World) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	c := w.newContext(parent)
	if c.err == nil {
		c.timer.owner = c
		w.arm(&c.timer, w.now+int64(max(0, d)))
	}
	return c, func() { c.cancel(context.Canceled, nil) }
}

// WithCancel is context.WithCancelCause; whoever waits with the context need not be searched for.
func (w *World) WithCancel(parent context.Context) (context.Context, context.CancelCauseFunc) {
	c := w.newContext(parent)
	c.shadow, c.shade = context.WithCancelCause(context.WithoutCancel(parent))
	if c.err != nil {
		c.shade(c.cause)
	}
	return c, func(cause error) { c.cancel(context.Canceled, cause) }
}

// WithTimeout is World.WithTimeout.
func (r *Rank) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return r.w.WithTimeout(parent, d)
}

// WithCancel is World.WithCancel.
func (r *Rank) WithCancel(parent context.Context) (context.Context, context.CancelCauseFunc) {
	return r.w.WithCancel(parent)
}

// newContext returns a context that ends with its parent.
func (w *World) newContext(parent context.Context) *vctx {
	c := &vctx{w: w, parent: parent}
	if parent.Done() == nil {
		return c
	}
	if parent.Err() != nil {
		c.cancel(parent.Err(), context.Cause(parent))
		return c
	}
	if p := virtual(parent); p != nil {
		c.detach = p.AfterFunc(func() { c.cancel(parent.Err(), context.Cause(parent)) })
		return c
	}
	c.adopted = true
	w.adopted = append(w.adopted, c)
	return c
}

// virtual is the virtual context that ends when ctx does, or nil.
func virtual(ctx context.Context) *vctx {
	if c, ok := ctx.(*vctx); ok {
		return c
	}
	if c, ok := ctx.Value(vctxKey{}).(*vctx); ok && ctx.Done() == c.Done() {
		return c
	}
	return nil
}

// Deadline knows none: see WithTimeout.
func (c *vctx) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done is made for those who ask.
func (c *vctx) Done() <-chan struct{} {
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err notices the end of a parent of the standard library.
func (c *vctx) Err() error {
	if c.adopted {
		if err := c.parent.Err(); err != nil {
			c.cancel(err, context.Cause(c.parent))
		}
	}
	return c.err
}

// Value finds the context itself, for those derived from it.
func (c *vctx) Value(key any) any {
	if key == (vctxKey{}) {
		return c
	}
	if c.shadow != nil {
		return c.shadow.Value(key)
	}
	return c.parent.Value(key)
}

// AfterFunc lets package context cancel what is derived without a goroutine.
func (c *vctx) AfterFunc(f func()) (stop func() bool) {
	if c.err != nil {
		f()
		return func() bool { return false }
	}
	a := &after{f}
	c.after = append(c.after, a)
	return func() bool {
		for i, b := range c.after {
			if a == b {
				c.after = append(c.after[:i], c.after[i+1:]...)
				return true
			}
		}
		return false
	}
}

// fire is the deadline.
func (c *vctx) fire(*timer) {
	c.w.emit(markExpire, -1, -1, 0, 0)
	c.cancel(context.DeadlineExceeded, nil)
}

// cancel ends the context and tells everybody.
func (c *vctx) cancel(err, cause error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.cause = cause; cause == nil {
		c.cause = err
	}
	if c.shade != nil {
		c.shade(c.cause)
	}
	c.w.heap.remove(&c.timer)
	if c.done != nil {
		close(c.done)
	}
	if c.detach != nil {
		c.detach()
	}
	if c.adopted {
		c.leave()
	}
	for _, t := range c.waiters {
		c.w.wake(t)
	}
	for len(c.after) > 0 {
		a := c.after[0]
		c.after = c.after[1:]
		a.f()
	}
}

// leave takes the context out of those whose parents are looked at.
func (c *vctx) leave() {
	c.adopted = false
	for i, d := range c.w.adopted {
		if c == d {
			c.w.adopted = append(c.w.adopted[:i], c.w.adopted[i+1:]...)
			return
		}
	}
}

// watch has the end of ctx wake the task.
func (t *task) watch(ctx context.Context) {
	if ctx == nil {
		return
	}
	if c := virtual(ctx); c != nil {
		t.ctx, t.on, t.place = ctx, c, len(c.waiters)
		c.waiters = append(c.waiters, t)
	} else if ctx.Done() != nil {
		t.ctx, t.place = ctx, len(t.w.foreign)
		t.w.foreign = append(t.w.foreign, t)
	}
}

func (t *task) unwatch() {
	switch {
	case t.ctx == nil:
		return
	case t.on != nil:
		t.on.waiters = forget(t.on.waiters, t.place)
	default:
		t.w.foreign = forget(t.w.foreign, t.place)
	}
	t.ctx, t.on = nil, nil
}

// forget takes one task out of a list whose members know their places.
func forget(list []*task, i int) []*task {
	last := len(list) - 1
	list[i] = list[last]
	list[i].place = i
	list[last] = nil
	return list[:last]
}
