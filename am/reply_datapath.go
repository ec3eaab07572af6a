package am

import (
	"errors"

	"github.com/ibconduit/conduit/fabric"
)

// reply sends a reply or a failure. Without a send buffer it waits in memory: so whoever
// handles a message never waits.
func (l *Endpoint) reply(rank int, o *outgoing, args []uint64) error {
	p := l.known(rank)
	if rank == l.cfg.Rank {
		return l.replyHere(o, args)
	}
	if o.cat == long && !o.own && len(o.payload) > 0 {
		o.payload, o.own = append([]byte(nil), o.payload...), true
	}
	err := l.tryReply(p, o, args)
	if err == ErrNoBuffer || err == ErrQueueFull {
		return l.keep(p, o, args)
	}
	return l.concludeReply(rank, o, err)
}

// concludeReply is what follows when a reply was sent or cannot be. Who waits for one that the network refuses is told.
func (l *Endpoint) concludeReply(rank int, o *outgoing, err error) error {
	if err == nil {
		return nil
	}
	if o.kind == reply && !errors.Is(err, fabric.ErrPeerDown) && l.ended() == nil {
		_ = l.refuse(rank, o.token, TooLarge, err.Error())
		return err
	}
	l.stats.nowhere.Add(1)
	return err
}

// reserveUrgent takes a send buffer for a reply. While requests wait for one it leaves one of theirs: a rank that
// answers all the time would send nothing else.
func (l *Endpoint) reserveUrgent() (fabric.SendBuf, error) {
	l.mu.Lock()
	waits := l.waiting.First() != nil
	l.mu.Unlock()
	if waits {
		if theirs, err := l.port.Reserve(0); err == nil {
			defer l.port.Release(theirs)
		}
	}
	return l.port.Reserve(fabric.Urgent)
}

// tryReply needs a buffer and nothing else.
func (l *Endpoint) tryReply(p *peer, o *outgoing, args []uint64) error {
	b := fabric.SendBuf{ID: fabric.Copied}
	var err error
	if o.cat != short {
		if b, err = l.reserveUrgent(); err != nil {
			return l.obstacle(err)
		}
	}
	p.mu.Lock()
	err = l.launchReply(p, o, args, &b)
	p.mu.Unlock()
	if err != nil && b.ID != fabric.Copied {
		l.port.Release(b)
	}
	return err
}

func (l *Endpoint) launchReply(p *peer, o *outgoing, args []uint64, b *fabric.SendBuf) error {
	if p.down != nil {
		return &fabric.PeerDownError{Rank: p.rank, Op: "reply", Cause: p.down}
	}
	now := l.date(p, o)
	if planted == replyTakesCredit {
		if _, err := p.purse.Take(now); err != nil {
			return ErrNoBuffer
		}
	}
	h := p.heading(o, len(args))
	l.mu.Lock()
	if err := l.end; err != nil {
		l.mu.Unlock()
		return err
	}
	cookie := l.enter(p, o, h, now)
	l.mu.Unlock()
	p.purse.Fill(&h.credit, now)
	err := l.emit(p, o, args, h, b, cookie, sendFlags|fabric.Urgent)
	if err != nil {
		l.withdraw(p, o, h, cookie)
	}
	return err
}
