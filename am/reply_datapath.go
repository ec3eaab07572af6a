package am

import (
	"cmp"
	"errors"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
)

// replier sends replies. A reply takes neither place nor credit; without a send buffer it waits in
// memory. So a handler never waits.
type replier struct {
	*core
	emitter *emitter
}

// reply sends a reply or a failure.
func (r *replier) reply(rank int, o *outgoing, args []uint64) error {
	if rank == r.cfg.Rank {
		return r.replyToSelf(o, args)
	}
	if o.cat == long && !o.own && len(o.payload) > 0 {
		o.payload, o.own = append([]byte(nil), o.payload...), true
	}
	return r.replyTo(r.known(rank), o, args)
}

// replyTo is reply to another rank, with a payload that the endpoint owns if it is a Long's.
func (r *replier) replyTo(p *peer, o *outgoing, args []uint64) error {
	switch err := r.tryReply(p, o, args); err {
	case nil:
		return nil
	case ErrNoBuffer, ErrQueueFull:
		return r.postpone(p, o, args)
	default:
		return r.concludeReply(p.rank, o, err)
	}
}

// refuse sends a failure.
func (r *replier) refuse(rank int, token uint64, why Reason, text string) error {
	args := [1]uint64{uint64(why)}
	return r.reply(rank, &outgoing{kind: failure, cat: medium, token: token, payload: []byte(clip(text))}, args[:])
}

// concludeReply follows a reply that was sent or cannot be: the caller learns of one that the
// network refuses.
func (r *replier) concludeReply(rank int, o *outgoing, err error) error {
	if err == nil {
		return nil
	}
	end := r.ended()
	if o.kind == reply && !errors.Is(err, fabric.ErrPeerDown) && end == nil {
		_ = r.refuse(rank, o.token, TooLarge, err.Error())
		return err
	}
	r.stats.nowhere.Add(1)
	return cmp.Or(end, err)
}

// reserve takes a send buffer for a reply. While requests wait for one it leaves one of theirs: a
// rank that replies all the time would send nothing else.
func (r *replier) reserve() (fabric.SendBuf, error) {
	r.mu.Lock()
	waits := r.acquirer.buffers.Len() > 0
	r.mu.Unlock()
	if waits {
		if theirs, err := r.net.Reserve(0); err == nil {
			defer r.net.Release(theirs)
		}
	}
	return r.net.Reserve(fabric.Urgent)
}

// tryReply needs a buffer, if it is not small, and nothing else.
func (r *replier) tryReply(p *peer, o *outgoing, args []uint64) error {
	if o.small(len(args)) {
		p.sending.Lock()
		err := r.launchReply(p, o, args, &p.copied)
		p.sending.Unlock()
		return err
	}
	b, err := r.reserve()
	if err != nil {
		return r.emitter.obstacle(err)
	}
	p.sending.Lock()
	err = r.launchReply(p, o, args, &b)
	p.sending.Unlock()
	if err != nil {
		r.net.Release(b)
	}
	return err
}

func (r *replier) launchReply(p *peer, o *outgoing, args []uint64, b *fabric.SendBuf) error {
	r.mu.Lock()
	if err := r.end; err != nil || p.down != nil {
		r.mu.Unlock()
		if err == nil {
			err = &fabric.PeerDownError{Rank: p.rank, Op: "reply", Cause: p.down}
		}
		return err
	}
	if !r.acquirer.reply(p) {
		r.mu.Unlock()
		return ErrNoBuffer
	}
	var (
		now    = r.emitter.dateLocked(p, o)
		cookie uint64
		err    error
	)
	if h := &p.head; o.kind == reply && o.cat != long { // the straight path
		h.kind, h.cat, h.wants, h.nargs, h.handler = reply, o.cat, false, uint8(len(args)), 0
		h.token, h.length, h.credit = o.token, uint32(len(o.payload)), credit.Header{}
		r.stats.answered++
		err = r.emitter.sendHead(p, b, o.payload, args, now, sendFlags|fabric.Urgent)
	} else {
		cookie = r.emitter.enterLocked(p, o, len(args), now)
		r.mu.Unlock()
		err = r.emitter.emit(p, o, args, b, cookie, sendFlags|fabric.Urgent)
	}
	if err != nil {
		r.mu.Lock()
		r.emitter.withdrawLocked(p, o, &p.head, cookie)
		p.credits.Unsaid(&p.head.credit)
		r.mu.Unlock()
	}
	return err
}

// lateReply is a reply that waits for a send buffer.
type lateReply struct {
	p    *peer
	o    outgoing
	args []uint64
}

// postpone keeps a reply in memory. What its caller has reserved for replies bounds that.
func (r *replier) postpone(p *peer, o *outgoing, args []uint64) error {
	x := &lateReply{p: p, o: *o, args: append([]uint64(nil), args...)}
	if !o.own {
		x.o.payload = append([]byte(nil), o.payload...)
		x.o.own = o.cat == long
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		r.stats.nowhere.Add(1)
		return r.end
	}
	r.late = append(r.late, x)
	r.countLateLocked(p, 1)
	r.stats.queued.Add(1)
	r.arm(r.net.Now() + retryAfter)
	return nil
}

// countLateLocked counts the replies that wait for a peer. While more wait than this rank would
// itself await, the peer is granted no credits: one that takes no replies would have them fill the
// memory.
func (r *replier) countLateLocked(p *peer, more int) {
	p.late += more
	r.pool.Bar(p.rank, p.late > r.cfg.Replies, r.net.Now())
}

// sendLate sends the replies that wait, as far as there are buffers.
func (r *replier) sendLate() {
	r.mu.Lock()
	n := len(r.late)
	r.mu.Unlock()
	for range n {
		r.mu.Lock()
		if len(r.late) == 0 {
			r.mu.Unlock()
			return
		}
		x := r.late[0]
		r.late = r.late[1:]
		r.mu.Unlock()
		err := r.tryReply(x.p, &x.o, x.args)
		r.mu.Lock()
		if again := err == ErrNoBuffer || err == ErrQueueFull; again && r.end == nil {
			r.late = append(r.late, x)
			r.mu.Unlock()
			if err == ErrNoBuffer {
				return
			}
			continue
		} else if again {
			r.stats.nowhere.Add(1)
			r.mu.Unlock()
			return
		}
		r.countLateLocked(x.p, -1)
		r.mu.Unlock()
		_ = r.concludeReply(x.p.rank, &x.o, err) // the caller is told
	}
}

// replyToSelf ends a call of this rank to itself.
func (r *replier) replyToSelf(o *outgoing, args []uint64) error {
	lands := false
	if o.cat == long {
		err := fabric.CheckRange("reply", r.cfg.Rank, o.off, uint64(len(o.payload)), uint64(len(r.cfg.Segment)))
		if lands = err == nil; !lands {
			o = &outgoing{kind: failure, cat: medium, token: o.token, payload: []byte(err.Error())}
			args = []uint64{uint64(TooLarge)}
		}
	}
	h := head{kind: o.kind, cat: o.cat, nargs: uint8(len(args)), token: o.token, length: uint32(len(o.payload)),
		off: o.off}
	copy(h.args[:], args)
	r.mu.Lock()
	defer r.mu.Unlock()
	if lands && r.end == nil {
		r.copyToSelfLocked(o.off, o.payload)
	}
	if err := r.answeredLocked(nil, r.cfg.Rank, &h, o.payload); err != nil { // the endpoint was closed meanwhile
		r.stats.nowhere.Add(1)
		return ErrClosed
	}
	r.stats.replies++
	r.stats.local++
	r.stats.answered++
	return nil
}
