package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Test looks, and lets a little time pass if the operation is not complete.
func (l *lane) Test(h fabric.Handle) (uint64, bool, error) {
	if err := l.usable("test"); err != nil || h == fabric.Done {
		return 0, err == nil, err
	}
	o, err := l.find(h)
	if err != nil {
		return 0, false, err
	}
	l.ring()
	if o.phase != complete {
		if err := l.pause("test"); err != nil {
			return 0, false, err
		}
	}
	if o.phase != complete {
		return 0, false, nil
	}
	old, err := l.collect(o)
	return old, true, err
}

// Wait waits for one operation.
func (l *lane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	if err := l.usable("wait"); err != nil || h == fabric.Done {
		return 0, err
	}
	o, err := l.find(h)
	if err != nil {
		return 0, err
	}
	if err := l.until(ctx, reason{"waits for an operation on rank", int(o.f.peer)}, want{op: o}); err != nil {
		return 0, err
	}
	return l.collect(o)
}

// Flush waits for all.
func (l *lane) Flush(ctx context.Context) error {
	if err := l.usable("flush"); err != nil {
		return err
	}
	if err := l.until(ctx, reason{"flushes a lane", -1}, want{all: true}); err != nil {
		return err
	}
	return l.failed.Take()
}

// Quiet looks at the counts of operations in flight.
func (l *lane) Quiet(peer int) bool {
	if peer < 0 {
		return l.flight == 0
	}
	f := l.flows[int32(peer)] // nil also of a rank that another network serves
	return f == nil || f.flight == 0
}

// Await waits for a completion.
func (l *lane) Await(ctx context.Context, q *fabric.Completions) error {
	if err := l.usable("await"); err != nil {
		return err
	}
	if q.Len() == 0 && (q.InFlight() == 0 || l.flight == 0) {
		return fmt.Errorf("sim: await: %w", fabric.ErrIdle)
	}
	return l.until(ctx, reason{"waits for a completion", -1}, want{reports: q})
}

// Poll lets a little time pass.
func (l *lane) Poll() error {
	if err := l.usable("poll"); err != nil {
		return err
	}
	l.ring()
	return l.pause("poll")
}

func (l *lane) pause(op string) error {
	l.count.Polls++
	return l.n.r.w.pause(op, l.n.r.w.cfg.PollCost)
}

// WaitWord parks until the word has changed. stop is called in growing
// intervals.
func (l *lane) WaitWord(ctx context.Context, p *uint64, c fabric.Cond, value uint64, stop func() error) error {
	if err := l.usable("wait for a word"); err != nil {
		return err
	}
	l.ring()
	const first, most = 10_000, 10_000_000 // ns between calls of stop
	w, r := l.n.r.w, l.n.r
	x := word{p: p, c: c, value: value}
	for interval := int64(first); !x.holds(); interval = min(2*interval, most) {
		t, err := w.task("wait for a word")
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		until := int64(forever)
		if stop != nil {
			if err := stop(); err != nil {
				return err
			}
			until = w.now + interval
		}
		if err := t.parkWord(r, x, ctx, until); err != nil {
			return err
		}
	}
	return nil
}

// parkWord is park as one of the waiters for words of a rank's segment.
func (t *task) parkWord(r *Rank, x word, ctx context.Context, until int64) error {
	x.place = len(r.words)
	t.word, t.timer.periodic = x, true
	r.words = append(r.words, t)
	err := t.park(reason{"waits for a word of rank", int(r.id)}, ctx, until)
	t.timer.periodic = false
	last := len(r.words) - 1
	moved := r.words[last]
	moved.word.place = t.word.place
	r.words[t.word.place] = moved
	r.words[last] = nil
	r.words = r.words[:last]
	return err
}

// Abandon leaves an operation to itself.
func (l *lane) Abandon(h fabric.Handle) {
	if h == fabric.Done || l.closed {
		return
	}
	if o, err := l.find(h); err == nil {
		o.orphan = true
		if o.phase == complete {
			l.recycle(o)
		}
	}
}

// Close abandons the operations in flight.
func (l *lane) Close() error {
	if l.closed {
		return nil
	}
	l.ring()
	l.closed = true
	l.n.lanes = slices.DeleteFunc(l.n.lanes, func(o *lane) bool { return o == l })
	return l.failed.Take()
}

// Mapped is nil: loads and stores do not reach other ranks, as over verbs.
func (l *lane) Mapped(int) []byte { return nil }

// Register has nothing to do: any memory will do.
func (l *lane) Register(mem []byte) (*fabric.Memory, error) {
	if err := l.usable("register"); err != nil {
		return nil, err
	}
	return fabric.NewMemory(l.n, mem, 0, nil), nil
}
