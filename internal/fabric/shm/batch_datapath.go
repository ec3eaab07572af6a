package shm

import (
	"encoding/binary"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Post carries a batch out: all of it is complete when it returns. Its operations themselves look
// for a second goroutine.
func (l *lane) Post(b *fabric.Batch, q *fabric.Completions, _ fabric.Flag) error {
	if err := l.usable("post"); err != nil {
		return err
	}
	if err := fabric.CheckBatch(l.net, b, q); err != nil {
		return err
	}
	for g, pieces := range b.All() {
		var failed *fabric.OpError
		for i := range pieces {
			err := l.piece(&pieces[i])
			switch {
			case err == nil:
			case g.Implicit:
				l.failed.Add(err)
			case failed == nil:
				failed = err
			}
		}
		switch {
		case g.Implicit:
		case failed != nil:
			q.Expect()
			q.Tell(g.Tag, failed)
		default:
			q.Expect()
			q.Tell(g.Tag, nil)
		}
	}
	return nil
}

// piece does one operation. Its error is that the peer is down.
func (l *lane) piece(p *fabric.Piece) *fabric.OpError {
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
		return p.Failed(err)
	}
	return nil
}
