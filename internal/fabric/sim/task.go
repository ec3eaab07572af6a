package sim

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// task is one coroutine. One runs at a time, from one call that waits to the next.
type task struct {
	w      *World
	r      *Rank // nil: belongs to none
	name   string
	serial uint32
	state  taskState
	frozen bool // its rank was killed
	parks  int  // after the end
	broken error

	f      func() error
	next   func() (struct{}, bool) // nil: has not begun
	yield  func(struct{}) bool
	listed queue.Link[task] // in World.tasks

	timer timer
	why   reason
	since int64
	ctx   context.Context // while it waits
	place int             // in the list of waiters for that
	on    *vctx
	word  word
}

type taskState uint8

const (
	ready taskState = iota
	running
	parked
	over
)

// reason is what a task waits for.
type reason struct {
	what string
	n    int // an endpoint, a rank; -1: nothing
}

func (y reason) String() string {
	if y.n < 0 {
		return y.what
	}
	return fmt.Sprintf("%s %d", y.what, y.n)
}

// word is what WaitWord waits for.
type word struct {
	p     *uint64
	c     fabric.Cond
	value uint64
	place int
}

func (x *word) holds() bool { return x.c.Holds(atomic.LoadUint64(x.p), x.value) }

// unwound is what a task panics with that goes on after the end of its world.
type unwound struct{}

var errKilled = errors.New("sim: the rank was killed")

// spawn makes a task that is ready.
func (w *World) spawn(r *Rank, name string, ctx *vctx, f func(context.Context) error) {
	w.serial++
	t := &task{w: w, r: r, name: name, serial: uint32(w.serial)}
	t.timer.owner = t
	t.f = func() error { return f(ctx) }
	w.tasks.Add(&t.listed, t)
	if t.frozen = r != nil && r.dead; !t.frozen {
		w.live++
	}
	w.runq.Push(t)
}

// begin makes the coroutine. A task that never runs has none.
func (t *task) begin() {
	t.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer t.end()
		t.w.emit(markStart, t.id(), -1, uint64(t.serial), 0)
		if err := t.f(); err != nil && t.gone() == nil {
			t.w.errs = append(t.w.errs, fmt.Errorf("%s: %w", t, err))
		}
	})
}

// end is deferred: the task returned, panicked, or ended its test.
func (t *task) end() {
	if v := recover(); v != nil {
		if _, ok := v.(unwound); !ok {
			t.broken = fmt.Errorf("sim: %s panicked (seed %d, %v): %v\n%s", t, t.w.cfg.Seed, t.w.Now(), v, debug.Stack())
		}
	}
	t.state = over
	t.listed.Leave()
	if !t.frozen {
		t.w.live--
	}
	t.w.quiet = 0
	if t.w.ended == nil {
		t.w.emit(markEnd, t.id(), -1, uint64(t.serial), 0)
	}
}

// id is the task's rank, -1 for none.
func (t *task) id() int32 {
	if t.r == nil {
		return -1
	}
	return t.r.id
}

func (t *task) String() string {
	if t.r == nil {
		return t.name
	}
	return fmt.Sprintf("rank %d (%s)", t.r.id, t.name)
}

// gone is not nil when the task should have ended.
func (t *task) gone() error {
	if t.frozen {
		return errKilled
	}
	return t.w.ended
}

// resume runs a task until it waits. A panic in it panics here.
func (w *World) resume(t *task) {
	if t.frozen && w.ended == nil {
		return // unwind ends it
	}
	t.state, w.current = running, t
	w.touch(t.r)
	defer func() { w.current = nil }()
	if t.next == nil {
		t.begin()
	}
	t.next()
	if t.broken != nil {
		panic(t.broken)
	}
}

// wake makes a parked task ready.
func (w *World) wake(t *task) {
	if t == nil || t.state != parked {
		return
	}
	t.state = ready
	w.emit(markWake, t.id(), -1, uint64(t.serial), 0)
	w.runq.Push(t)
}

// fire ends a task's wait in time.
func (t *task) fire(*timer) { t.w.wake(t) }

const forever = -1

// park waits until the task is woken, its context ends, or it is time. The caller
// looks which. The error is that the world has ended, or the rank was killed.
func (t *task) park(why reason, ctx context.Context, until int64) error {
	w := t.w
	if err := t.gone(); err != nil {
		// The task is being ended. It may clean up, but not for ever.
		if t.parks++; t.parks > 1000 {
			panic(unwound{})
		}
		return err
	}
	t.why, t.since, t.state = why, w.now, parked
	if until != forever {
		w.arm(&t.timer, until)
	}
	t.watch(ctx)
	t.sleep()
	t.unwatch()
	w.heap.remove(&t.timer)
	t.state = running
	return t.gone()
}

// sleep lets the world go on until the task is ready. As long as no other task is, it does
// so right here: two changes of stacks saved.
func (t *task) sleep() {
	w := t.w
	for w.fatal == nil && !t.frozen {
		if w.runq.Len() == 0 {
			if !w.settle() {
				w.step()
			}
			continue
		}
		if *w.runq.Item(0) != t {
			break
		}
		w.runq.Pop()
		w.current = t
		w.touch(t.r)
		return
	}
	t.yield(struct{}{})
}

// task is the caller. Only a task can wait.
func (w *World) task(op string) (*task, error) {
	if w.current == nil {
		return nil, fmt.Errorf("sim: %s: would wait, but is not called by a task of the world (see World.Run and World.Do)",
			op)
	}
	return w.current, nil
}

// pause is what a call costs that finds nothing.
func (w *World) pause(op string, d time.Duration) error {
	t, err := w.task(op)
	if err != nil {
		return err
	}
	for until := w.now + int64(d); w.now < until; {
		if err := t.park(reason{op, -1}, nil, until); err != nil {
			return err
		}
	}
	return nil
}

// unwind ends the tasks that are left. Every call that would wait returns an error.
func (w *World) unwind() {
	if w.ended == nil && (w.fatal != nil || w.live > 0) {
		if w.ended = w.fatal; w.ended == nil {
			w.ended = errors.New("sim: a task panicked or ended its test")
		}
	}
	all := false
	defer func() {
		w.current, w.live, w.runq = nil, 0, queue.Ring[*task]{}
		if !all { // a task ended its test while it was ended itself
			w.unwind()
		}
	}()
	for t := w.tasks.First(); t != nil; t = w.tasks.First() {
		if t.next == nil {
			t.listed.Leave()
			continue
		}
		w.current = t
		t.next()
	}
	all = true
}

// DeadlockError: nothing can happen any more, and which tasks wait for what.
type DeadlockError struct {
	At      time.Duration
	Tasks   int      // that wait
	Waiting []string // the first of them
}

func (e *DeadlockError) Error() string {
	return fmt.Sprintf("sim: deadlock at %v: nothing can happen any more and %d tasks wait%s",
		e.At, e.Tasks, list(e.Waiting, e.Tasks))
}

// LimitError: a run was ended by one of its limits.
type LimitError struct {
	Limit   string
	At      time.Duration
	Tasks   int
	Waiting []string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("sim: stopped at %v by the limit of %s, with %d tasks%s",
		e.At, e.Limit, e.Tasks, list(e.Waiting, e.Tasks))
}

func list(lines []string, n int) string {
	s := ":\n\t" + strings.Join(lines, "\n\t")
	if more := n - len(lines); more > 0 {
		s += fmt.Sprintf("\n\tand %d more", more)
	}
	return s
}

func (w *World) limit(what string) error {
	n, lines := w.waiting()
	return &LimitError{Limit: what, At: w.Now(), Tasks: n, Waiting: lines}
}

// waiting describes the tasks of ranks that live.
func (w *World) waiting() (n int, lines []string) {
	const most = 32
	for t := w.tasks.First(); t != nil; t = t.listed.Next() {
		if t.frozen {
			continue
		}
		if n++; len(lines) < most {
			lines = append(lines, fmt.Sprintf("%s: %s, since %v", t, t.why, time.Duration(t.since)))
		}
	}
	return n, lines
}

// Parker lets one task wait for another, as a channel does elsewhere: Unpark ends one
// Park, the present or the next one.
type Parker struct {
	w    *World
	t    *task
	flag bool
}

// NewParker returns a parker for a task of any rank.
func (w *World) NewParker() *Parker { return &Parker{w: w} }

// Park waits for Unpark, or for the end of ctx, whose cause it returns.
func (p *Parker) Park(ctx context.Context) error {
	t, err := p.w.task("park")
	if err != nil {
		return err
	}
	defer func() { p.t = nil }()
	for !p.flag {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.t = t
		if err := t.park(reason{"is parked", -1}, ctx, forever); err != nil {
			return err
		}
	}
	p.flag = false
	return nil
}

// Unpark ends a Park.
func (p *Parker) Unpark() {
	p.flag = true
	p.w.wake(p.t)
}
