package sim

import "github.com/ibconduit/conduit/internal/fabric"

// Atomic is applied when it arrives.
func (l *lane) Atomic(peer int, off uint64, a fabric.Atomic, f fabric.Flag) (uint64, fabric.Handle, error) {
	op := a.Op.String()
	if err := l.check(op, peer, off, a.Type.Size()); err != nil {
		return 0, fabric.Done, err
	}
	if err := a.Check(peer, off, uint64(len(l.n.r.w.ranks[peer].segment))); err != nil {
		return 0, fabric.Done, err
	}
	l.count.Start(fabric.KindAtomic, 0)
	o, err := l.start(fabric.KindAtomic, peer, off, f)
	if err != nil {
		return 0, fabric.Done, err
	}
	o.atomic = a
	h, err := l.post(o, f)
	if h == fabric.Done && f&fabric.Implicit == 0 {
		return o.old, h, err
	}
	return 0, h, err
}
