package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Post carries a batch out: all of it is complete when it returns. Its operations themselves look
// for a second goroutine.
func (l *lane) Post(b *fabric.Batch, q *fabric.Completions, _ fabric.Flag) error {
	if err := l.checkBatch(b, q); err != nil {
		return err
	}
	pieces, first := b.Pieces(), 0
	for _, g := range b.Groups() {
		if g.Implicit {
			l.implicit(pieces[first:g.End])
			first = g.End
			continue
		}
		var failed error
		for i := first; i < g.End; i++ {
			if err := l.piece(&pieces[i]); err != nil && failed == nil {
				failed = err
			}
		}
		q.Expect()
		q.Tell(g.Tag, failed)
		first = g.End
	}
	l.implicit(pieces[first:])
	return nil
}

// implicit does pieces with errors that Flush reports.
func (l *lane) implicit(pieces []fabric.Piece) {
	for i := range pieces {
		if err := l.piece(&pieces[i]); err != nil {
			l.failed.Add(err.(*fabric.OpError))
		}
	}
}

// checkBatch refuses a batch that is wrong whatever happens to the peers.
func (l *lane) checkBatch(b *fabric.Batch, q *fabric.Completions) error {
	if err := l.usable("post"); err != nil {
		return err
	}
	if err := b.Check(q); err != nil {
		return fmt.Errorf("shm: %w", err)
	}
	pieces := b.Pieces()
	for i := range pieces {
		p := &pieces[i]
		if uint(p.Peer) >= uint(len(l.targets)) || l.targets[p.Peer].state.Load() == absent {
			return &fabric.RankError{Op: p.Op(), Rank: p.Peer, Size: len(l.targets)}
		}
		if size, n := l.targets[p.Peer].size, p.Len(); p.Off > size || n > size-p.Off {
			return &fabric.BoundsError{Op: p.Op(), Rank: p.Peer, Off: p.Off, Len: n, Size: size}
		}
		if p.Memory != nil {
			if err := p.Memory.Check(l.net); err != nil {
				return fmt.Errorf("shm: %s: %w", p.Op(), err)
			}
		}
		if p.Kind == fabric.KindAtomic {
			if err := p.Atomic.Check(p.Peer, p.Off, l.targets[p.Peer].size); err != nil {
				return err
			}
		}
	}
	return nil
}

// piece does one operation. Its error is an *OpError: the peer is down.
func (l *lane) piece(p *fabric.Piece) error {
	var err error
	switch p.Kind {
	case fabric.KindPut:
		_, err = l.Put(p.Peer, p.Off, p.Buf, 0)
	case fabric.KindGet:
		_, err = l.Get(p.Peer, p.Off, p.Buf, 0)
	case fabric.KindAtomic:
		var old uint64
		if old, _, err = l.Atomic(p.Peer, p.Off, p.Atomic, 0); err == nil && p.Buf != nil {
			binary.NativeEndian.PutUint64(p.Buf, old)
		}
	}
	if err != nil {
		return &fabric.OpError{Op: p.Op(), Rank: p.Peer, Off: p.Off, Len: p.Len(), Err: err}
	}
	return nil
}
