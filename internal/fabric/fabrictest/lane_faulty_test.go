package fabrictest

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit/internal/fabric"
)

// fault is one way in which a network can be broken, and the checks that must
// notice. The hooks replace one method each; nil leaves it sound.
type fault struct {
	name   string
	caught []string

	put      func(l *faultyLane, peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error)
	get      func(l *faultyLane, peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error)
	atomic   func(l *faultyLane, peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, error)
	flush    func(l *faultyLane, ctx context.Context) error
	wait     func(l *faultyLane, ctx context.Context, h fabric.Handle) (uint64, error)
	word     func(l *faultyLane, ctx context.Context, word *uint64, c fabric.Cond, v uint64, stop func() error) error
	post     func(l *faultyLane, b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error
	await    func(l *faultyLane, ctx context.Context, q *fabric.Completions) error
	register func(l *faultyLane, b []byte) (*fabric.Memory, error)
	quiet    func(l *faultyLane, peer int) bool
	abandon  func(l *faultyLane, h fabric.Handle)
	mapped   func(l *faultyLane, peer int) []byte
	down     func(n *faultyNet, rank int, cause error)
	reach    func(n *faultyNet, rank int, addr []byte) error
	newLane  func(n *faultyNet) (fabric.Lane, error)
	netEnd   func(n *faultyNet) error
	limits   func(l fabric.Limits) fabric.Limits
}

type faultyNet struct {
	fabric.Network
	fault
	lanes int
}

type faultyLane struct {
	fabric.Lane
	fault
	net  *faultyNet
	n    int // calls of the faulty method
	held []func() error
	sink any
}

func (n *faultyNet) NewLane() (fabric.Lane, error) {
	if n.newLane != nil {
		return n.newLane(n)
	}
	l, err := n.Network.NewLane()
	if err != nil {
		return nil, err
	}
	return &faultyLane{Lane: l, fault: n.fault, net: n}, nil
}

func (n *faultyNet) PeerDown(rank int, cause error) {
	if n.down != nil {
		n.down(n, rank, cause)
		return
	}
	n.Network.PeerDown(rank, cause)
}

func (n *faultyNet) Reach(rank int, addr []byte) error {
	if n.reach != nil {
		return n.reach(n, rank, addr)
	}
	return n.Network.Reach(rank, addr)
}

func (n *faultyNet) Close() error {
	if n.netEnd != nil {
		return n.netEnd(n)
	}
	return n.Network.Close()
}

func (n *faultyNet) Limits() fabric.Limits {
	if n.limits != nil {
		return n.limits(n.Network.Limits())
	}
	return n.Network.Limits()
}

func (l *faultyLane) Put(peer int, off uint64, src []byte, f fabric.Flag) (fabric.Handle, error) {
	if l.put != nil {
		return l.put(l, peer, off, src, f)
	}
	return l.Lane.Put(peer, off, src, f)
}

func (l *faultyLane) Get(peer int, off uint64, dst []byte, f fabric.Flag) (fabric.Handle, error) {
	if l.get != nil {
		return l.get(l, peer, off, dst, f)
	}
	return l.Lane.Get(peer, off, dst, f)
}

func (l *faultyLane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	if l.atomic != nil {
		old, err := l.atomic(l, peer, off, a, f)
		return old, fabric.Done, err
	}
	return l.Lane.Atomic(peer, off, a, f)
}

func (l *faultyLane) Flush(ctx context.Context) error {
	if l.flush != nil {
		return l.flush(l, ctx)
	}
	return l.Lane.Flush(ctx)
}

func (l *faultyLane) Wait(ctx context.Context, h fabric.Handle) (uint64, error) {
	if l.wait != nil {
		return l.wait(l, ctx, h)
	}
	return l.Lane.Wait(ctx, h)
}

func (l *faultyLane) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, v uint64, stop func() error) error {
	if l.word != nil {
		return l.word(l, ctx, word, c, v, stop)
	}
	return l.Lane.WaitWord(ctx, word, c, v, stop)
}

func (l *faultyLane) Post(b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
	if l.post != nil {
		return l.post(l, b, q, f)
	}
	return l.Lane.Post(b, q, f)
}

func (l *faultyLane) Await(ctx context.Context, q *fabric.Completions) error {
	if l.await != nil {
		return l.await(l, ctx, q)
	}
	return l.Lane.Await(ctx, q)
}

func (l *faultyLane) Quiet(peer int) bool {
	if l.quiet != nil {
		return l.quiet(l, peer)
	}
	return l.Lane.Quiet(peer)
}

func (l *faultyLane) Register(b []byte) (*fabric.Memory, error) {
	if l.register != nil {
		return l.register(l, b)
	}
	return l.Lane.Register(b)
}

func (l *faultyLane) Abandon(h fabric.Handle) {
	if l.abandon != nil {
		l.abandon(l, h)
		return
	}
	l.Lane.Abandon(h)
}

func (l *faultyLane) Mapped(peer int) []byte {
	if l.mapped != nil {
		return l.mapped(l, peer)
	}
	return l.Lane.Mapped(peer)
}

// release does what a fault held back.
func (l *faultyLane) release() error {
	var errs []error
	for _, f := range l.held {
		errs = append(errs, f())
	}
	l.held = nil
	return errors.Join(errs...)
}
