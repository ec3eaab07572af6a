package coll

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/racesync"
)

// Team is a list of ranks of the job, as one of them sees it, with an order of operations of its
// own. Methods may be called from any goroutine; operations run one after the other, in the order
// in which they were called. The members must call the same ones in the same order.
type Team struct {
	membership
	teams  *Teams
	health health

	// The rest belongs to the holder of the turn.
	turns  turns
	op     op     // that runs
	number uint64 // of operations begun

	// The rest belongs to the holder of slots.mu.
	parent *Team // that was split, of a team which this rank declined; nil else
	over   bool  // no other member is in an operation of this team any more
}

// Broken is what broke the team, as far as this rank knows: nil or a *BrokenError. Once the job is
// closed it learns of nothing more.
func (t *Team) Broken() error {
	if t.teams.gate.enter() != nil { // the slot's memory is gone
		if e := t.health.broken.Load(); e != nil {
			return e
		}
		return nil
	}
	defer t.teams.gate.leave()
	if e := t.health.known(); e != nil {
		return e
	}
	return nil
}

// run does an operation in the caller's goroutine.
func (t *Team) run(ctx context.Context, c *call) error {
	if ctx.Err() != nil {
		return fmt.Errorf("coll: %v: %w", c.kind, context.Cause(ctx))
	}
	if err := t.teams.gate.admit(c.kind); err != nil {
		return err
	}
	defer t.teams.gate.leave()
	if err := t.turns.lock(ctx); err != nil {
		return fmt.Errorf("coll: %v did not begin: waiting for an earlier operation of the team in slot %d: %w", c.kind,
			t.slot, err)
	}
	defer t.turns.unlock()
	return t.perform(ctx, c)
}

// perform does an operation when its turn has come.
func (t *Team) perform(ctx context.Context, c *call) error {
	if err := t.health.usable(); err != nil {
		return fmt.Errorf("coll: %v: %w", c.kind, err)
	}
	racesync.Release()
	t.number++
	o := &t.op
	o.call, o.ctx, o.number, o.mute, o.verdict, o.since, o.notified = *c, ctx, t.number, false, nil, 0, false
	o.sign = signature(c.kind, o.number, c.root, c.name)
	atomic.StoreUint64(word(t.mem, whereWord), position(t.generation, c.kind, o.number))
	var ended func()
	if watch := t.teams.watch; watch != nil {
		ended = watch(Operation{Kind: c.kind, Root: c.root, Me: t.me, Size: t.n, First: t.Member(0), Slot: t.slot,
			Generation: t.generation, Number: t.number})
	}
	err := c.do(o)
	if err == nil && len(o.flights) > 0 {
		err = o.settle(ctx)
	}
	racesync.Acquire()
	if err == nil {
		if o.notified {
			o.ctx = context.Background() // what is not taken back counts when numbers come round
			_ = o.notify(0)              // what fails goes to a rank that is down
		}
		o.forget()
		if ended != nil {
			ended()
		}
		if learned := t.teams.learned; learned != nil {
			learned()
		}
		return o.verdict
	}
	broken := t.health.fail(c.kind, o.number, err)
	err = fmt.Errorf("coll: %v: %w", c.kind, broken)
	if broken.Reason == Abandoned && broken.Rank == t.Member(t.me) {
		err = fmt.Errorf("%w%s", err, awaited(ctx, o))
	}
	// Writes on their way end by themselves: the network's tries are finite.
	_ = o.land(context.WithoutCancel(ctx))
	o.forget()
	return err
}

// end makes the team of no use, and does to its slot what follows from how.
func (t *Team) end(how string, then func(*slot)) {
	t.health.ended.Store(&how)
	t.teams.open.remove(&t.health)
	t.teams.slots.change(t.slot, then)
}

// On is what an operation on data goes to: a [*Team], or [Through], with lanes that it waits with.
// The lanes of an operation that was started (StartReduce and its kind) are the operation's until
// it is done.
type On interface {
	on() (*Team, env.Lanes)
}

func (t *Team) on() (*Team, env.Lanes) { return t, nil }

func (x Through) on() (*Team, env.Lanes) { return x.t, x.lanes }

func checkRoot(on On, k Kind, root int) error {
	t, _ := on.on()
	if root < 0 || root >= t.n {
		return fmt.Errorf("coll: %w", &fabric.RankError{Op: k.String(), Rank: root, Size: t.n})
	}
	return nil
}

// Through is a team whose operations wait with lanes that the caller uses, such as a worker's, and
// so make progress for these. They send through the lanes that all teams share: what a team has
// sent is complete before another one has its slot.
type Through struct {
	t     *Team
	lanes env.Lanes
}

// Through returns the team with other lanes to wait with. A copy is as good; there is nothing to
// close.
func (t *Team) Through(lanes env.Lanes) Through { return Through{t, lanes} }

// do runs an operation on data in the caller's goroutine.
func do(ctx context.Context, on On, k Kind, root int, d *payload, f func(*op) error) error {
	t, lanes := on.on()
	err := t.run(ctx, &call{kind: k, root: root, lanes: lanes, data: d, do: f})
	d.release()
	return err
}
