package am

import "github.com/ibconduit/conduit/fabric"

// here runs the handler of a request to this rank, on the caller's goroutine.
func (l *Endpoint) here(o *outgoing, args []uint64) error {
	l.mu.Lock()
	if err := l.refusal(o.kind); err != nil {
		l.mu.Unlock()
		return err
	}
	token := uint64(0)
	if o.wants {
		token = l.calls.add(o.w, l.cfg.Rank, needReply, nil, l.port.Now())
		o.w.token = token // which Close takes away
		l.stats.calls++
		l.stats.wanted++
	} else {
		l.stats.posts++
	}
	l.stats.requests++ // from here on Close waits
	l.stats.local++
	l.mu.Unlock()
	b := l.batch()
	w := &b.work[0]
	w.head.kind, w.head.cat, w.head.wants, w.head.token = request, o.cat, o.wants, token
	w.head.nargs, w.head.handler = uint8(len(args)), o.handler
	w.head.length, w.head.off = uint32(len(o.payload)), o.off
	copy(w.head.args[:], args)
	w.rank, w.payload, w.slot[0] = l.cfg.Rank, o.payload[:len(o.payload):len(o.payload)], -1
	if o.cat == long {
		if fabric.CheckRange("write", l.cfg.Rank, o.off, uint64(len(o.payload)), uint64(len(l.cfg.Segment))) == nil {
			copy(l.cfg.Segment[o.off:], o.payload) // else the handler's lookup refuses it
		}
	}
	b.n = 1
	l.offer(b)
	l.run(b)
	return nil
}

// replyHere ends a call of this rank to itself.
func (l *Endpoint) replyHere(o *outgoing, args []uint64) error {
	if o.cat == long {
		if err := fabric.CheckRange("reply", l.cfg.Rank, o.off, uint64(len(o.payload)), uint64(len(l.cfg.Segment))); err != nil {
			o = &outgoing{kind: failure, cat: medium, token: o.token, payload: []byte(err.Error())}
			args = []uint64{uint64(TooLarge)}
		} else {
			copy(l.cfg.Segment[o.off:], o.payload)
		}
	}
	h := head{kind: o.kind, cat: o.cat, nargs: uint8(len(args)), token: o.token, length: uint32(len(o.payload)), off: o.off}
	copy(h.args[:], args)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.answered(l.cfg.Rank, &h, o.payload); err != nil { // the lane was closed meanwhile
		l.stats.nowhere.Add(1)
		return ErrClosed
	}
	l.stats.replies++
	l.stats.local++
	l.stats.answered++
	return nil
}
