package sim

import (
	"context"
	"time"
)

// vctx is a context whose deadline is virtual. Whatever ends it, those derived from it end in
// the same instant, and no goroutine is needed for that.
//
// The standard library cancels contexts that it derives from one of its own within the call that
// cancels the first. Hence inner: a standard context, which the derived ones find; its parent is a
// source, a context that fixes what Err returns.
type vctx struct {
	context.Context                         // inner
	stop            context.CancelCauseFunc // ends inner as cancelled
	w               *World
	parent          context.Context
	timer           timer
	source          source
	over            bool
	waiters         []*task
	children        []*vctx // in the order in which they came
	from            *vctx   // its parent
	adopted         bool    // is in World.adopted
}

type vctxKey struct{}

// source is the parent of a vctx's inner context.
type source struct {
	context.Context // the parent's values
	done            chan struct{}
	err             error
	end             func() // ends inner with err
}

func (s *source) Done() <-chan struct{} { return s.done }
func (s *source) Err() error            { return s.err }

// AfterFunc is looked for by package context, which needs no goroutine then.
func (s *source) AfterFunc(f func()) (stop func() bool) {
	s.end = f
	return func() bool { return true }
}

// WithTimeout is context.WithTimeout in virtual time. The context's Deadline method knows nothing
// of it: it is not on the machine's clock.
func (w *World) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	c := w.newContext(parent)
	if !c.over {
		c.timer.owner = c
		w.arm(&c.timer, w.now+int64(max(0, d)))
	}
	return c, func() { c.cancel(context.Canceled, nil) }
}

// WithCancel is context.WithCancelCause in virtual time.
func (w *World) WithCancel(parent context.Context) (context.Context, context.CancelCauseFunc) {
	c := w.newContext(parent)
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
	c.source = source{Context: context.WithoutCancel(parent), done: make(chan struct{})}
	c.Context, c.stop = context.WithCancelCause(&c.source)
	switch p := virtual(parent); {
	case parent.Err() != nil:
		c.cancel(parent.Err(), context.Cause(parent))
	case parent.Done() == nil:
	case p != nil:
		c.from = p
		p.children = append(p.children, c)
	default:
		c.adopted = true
		w.adopted = append(w.adopted, c)
	}
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

// Err notices the end of a parent of the standard library.
func (c *vctx) Err() error {
	c.look()
	return c.Context.Err()
}

// look ends the context if its parent has ended.
func (c *vctx) look() {
	if c.adopted {
		if err := c.parent.Err(); err != nil {
			c.cancel(err, context.Cause(c.parent))
		}
	}
}

// Value finds the context itself, for those derived from it.
func (c *vctx) Value(key any) any {
	if key == (vctxKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// fire is the deadline.
func (c *vctx) fire(*timer) {
	c.w.emit(markExpire, -1, -1, 0, 0)
	c.cancel(context.DeadlineExceeded, context.DeadlineExceeded)
}

// cancel ends the context and wakes its waiters.
func (c *vctx) cancel(err, cause error) {
	if c.over {
		return
	}
	c.over = true
	c.w.heap.remove(&c.timer)
	c.leave()
	if err == context.Canceled {
		c.stop(cause)
	} else {
		// package context takes Err from the source, and the cause from the context in its values.
		why, because := context.WithCancelCause(c.source.Context)
		because(cause)
		c.source.Context, c.source.err = why, err
		c.source.end()
	}
	for _, t := range c.waiters {
		c.w.wake(t)
	}
	for len(c.children) > 0 {
		c.children[0].cancel(err, context.Cause(c)) // takes itself out
	}
}

// leave takes the context out of the list in which its end is looked for.
func (c *vctx) leave() {
	list := &c.w.adopted
	if c.from != nil {
		list = &c.from.children
	} else if !c.adopted {
		return
	}
	c.adopted, c.from = false, nil
	for i, d := range *list {
		if c == d {
			*list = append((*list)[:i], (*list)[i+1:]...)
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
