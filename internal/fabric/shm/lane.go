package shm

import (
	"context"
	"fmt"
	"os"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/internal/spin"
)

// lane is a view of all targets with counters of its own. The operations are
// in lane_datapath.go.
type lane struct {
	targets []target // the Network's; nil once closed
	count   *fabric.Counters
	net     *Network
	guard   owner.Guard
	failed  fabric.Failures // of implicit operations of batches
	waiter  spin.Waiter
}

var _ fabric.Lane = (*lane)(nil)

// NewLane opens a lane. There is no limit on their number.
func (n *Network) NewLane() (fabric.Lane, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != joined {
		return nil, fmt.Errorf("shm: NewLane needs a connected network: %w", os.ErrClosed)
	}
	l := &lane{targets: n.targets, net: n, waiter: spin.Waiter{Sharing: n.cfg.Sharing}}
	if k := len(n.counters); k > 0 {
		l.count, n.counters = n.counters[k-1], n.counters[:k-1]
		*l.count = fabric.Counters{}
	} else {
		c, free, err := offheap.Alloc[fabric.Counters]()
		if err != nil {
			return nil, fmt.Errorf("shm: counters of a lane: %w", err)
		}
		l.count = c
		n.release = append(n.release, free)
	}
	n.lanes++
	return l, nil
}

// Counters are readable until the Network closes; after the lane's Close they
// may be given to another.
func (l *lane) Counters() *fabric.Counters { return l.count }

// Close gives the lane back.
func (l *lane) Close() error {
	if l.targets == nil {
		return nil
	}
	if err := l.enter("close"); err != nil {
		return err
	}
	defer l.guard.Exit()
	l.targets = nil
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	l.net.lanes--
	l.net.counters = append(l.net.counters, l.count)
	return l.failed.Take()
}

// enter detects a second goroutine in the debug build.
func (l *lane) enter(op string) error {
	if err := l.guard.Enter(); err != nil {
		return fmt.Errorf("shm: %s: lane %w", op, err)
	}
	return nil
}

// usable is nil while the lane is open.
func (l *lane) usable(op string) error {
	if l.targets == nil {
		return fmt.Errorf("shm: %s: lane: %w", op, os.ErrClosed)
	}
	return nil
}

// collect checks a handle: this network gives out no other than Done.
func (l *lane) collect(op string, h fabric.Handle) error {
	if h != fabric.Done {
		return fmt.Errorf("shm: %s: no operation has the handle %#x", op, uint64(h))
	}
	return l.usable(op)
}

// Test of Done is true.
func (l *lane) Test(h fabric.Handle) (uint64, bool, error) { return 0, true, l.collect("test", h) }

// Wait returns at once.
func (l *lane) Wait(_ context.Context, h fabric.Handle) (uint64, error) {
	return 0, l.collect("wait", h)
}

// Abandon has nothing to give up: every handle is Done.
func (l *lane) Abandon(fabric.Handle) {}

// Poll has no progress to make.
func (l *lane) Poll() error { return l.usable("poll") }

// Flush orders everything before it, at whatever peer, before everything after it.
func (l *lane) Flush(context.Context) error {
	if err := l.usable("flush"); err != nil {
		return err
	}
	fullFence()
	return l.failed.Take()
}

// Quiet is that operations are complete when they return.
func (l *lane) Quiet(int) bool { return true }

// Await finds completions that Post reported; nothing is ever in flight.
func (l *lane) Await(_ context.Context, q *fabric.Completions) error {
	if err := l.usable("await"); err != nil {
		return err
	}
	if q.Len() == 0 {
		return fmt.Errorf("shm: await: %w", fabric.ErrIdle)
	}
	return nil
}

// Register has nothing to do: any memory will do.
func (l *lane) Register(mem []byte) (*fabric.Memory, error) {
	if err := l.usable("register"); err != nil {
		return nil, err
	}
	return fabric.NewMemory(l.net, mem, 0, nil), nil
}

// WaitWord spins, then yields, then sleeps; see internal/spin.
func (l *lane) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	if err := l.usable("wait for a word"); err != nil {
		return err
	}
	if err := l.enter("wait for a word"); err != nil {
		return err
	}
	defer l.guard.Exit()
	return fabric.WaitWord(ctx, &l.waiter, word, c, value, stop)
}

// refuse is why an operation cannot be done, the slow half of address.
func (l *lane) refuse(op string, peer int, off, n uint64) error {
	if err := l.usable(op); err != nil {
		return err
	}
	if err := l.net.checkAlive(op, peer); err != nil {
		return err
	}
	return fabric.CheckTarget(l.net, op, peer, off, n)
}
