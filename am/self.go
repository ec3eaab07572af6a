package am

import "github.com/ibconduit/conduit/internal/fabric"

// sendToSelf runs the handler of a request to this rank, on the caller's goroutine.
func (x *inbox) sendToSelf(o *outgoing, args []uint64) error {
	x.mu.Lock()
	if err := x.refusalLocked(o.kind); err != nil {
		x.mu.Unlock()
		return err
	}
	token := uint64(0)
	if o.wants {
		token = x.calls.add(o.w, x.cfg.Rank, needReply, nil, x.net.Now())
		o.w.token = token // which Close takes away
		x.stats.calls++
		x.stats.wanted++
	} else {
		x.stats.posts++
	}
	x.stats.requests++ // from here on Close waits
	x.stats.local++
	x.mu.Unlock()
	b := x.batch()
	w := &b.work[0]
	w.head.kind, w.head.cat, w.head.wants, w.head.token = request, o.cat, o.wants, token
	w.head.nargs, w.head.handler = uint8(len(args)), o.handler
	w.head.length, w.head.off = uint32(len(o.payload)), o.off
	copy(w.head.args[:], args)
	w.rank, w.from, w.payload, w.slot = x.cfg.Rank, nil, o.payload[:len(o.payload):len(o.payload)], -1
	if o.cat == long {
		if fabric.CheckRange("write", x.cfg.Rank, o.off, uint64(len(o.payload)), uint64(len(x.cfg.Segment))) == nil {
			copy(x.cfg.Segment[o.off:], o.payload) // else the handler's lookup refuses it
		}
	}
	b.n = 1
	x.offer(b)
	x.run(b)
	return nil
}
