package sim

import "github.com/ibconduit/conduit/internal/fabric"

// Post sends a batch.
func (l *lane) Post(b *fabric.Batch, q *fabric.Completions, f fabric.Flag) error {
	if err := l.usable("post"); err != nil {
		return err
	}
	if err := fabric.CheckBatch(l.n, b, q); err != nil {
		return err
	}
	for x, pieces := range b.All() {
		var g *group
		if !x.Implicit {
			g = l.group(x.Tag, q)
			q.Expect()
		}
		for i := range pieces {
			l.piece(&pieces[i], g)
		}
		if g != nil {
			g.end(l, nil)
		}
	}
	l.ring()
	if f&fabric.Blocking != 0 && q != nil && q.Len() == 0 && q.InFlight() > 0 {
		l.spin(want{reports: q}, reason{"polls for a completion", -1})
	}
	return nil
}

// piece starts one operation of a batch, of a group or implicit. Sources in registered memory are
// read when they leave, as a device does.
func (l *lane) piece(p *fabric.Piece, g *group) {
	l.count.Start(p.Kind, uint64(len(p.Buf)))
	o, err := l.start(p.Kind, p.Peer, p.Off, fabric.Implicit)
	if err != nil {
		if g == nil {
			l.failed.Add(p.Failed(err))
		} else if g.err == nil {
			g.err = p.Failed(err)
		}
		return
	}
	switch p.Kind {
	case fabric.KindPut:
		l.source(o, p.Buf, p.Memory)
	case fabric.KindGet:
		l.count.Direct++
		o.buf = p.Buf
		scribble(p.Buf)
	case fabric.KindAtomic:
		o.atomic, o.result = p.Atomic, p.Buf
	}
	if o.memory = p.Memory; p.Memory != nil {
		p.Memory.Use()
	}
	if o.implicit, o.group = g == nil, g; g != nil {
		g.left++
	}
	l.held = append(l.held, o)
}
