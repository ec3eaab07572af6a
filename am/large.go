package am

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/queue"
)

// maxAnnounced is how many payloads one rank may have announced to another at once. It bounds what
// a receiver keeps of those that it has granted nothing yet; further senders wait at home.
const maxAnnounced = 16

// Receiver is what a rank does with the large payloads that are sent to it under a name. The
// functions run on goroutines of their own, unless they are Quick: they may send, call and wait.
// Close waits for them, so one that has to wait for long keeps the Announcement and returns. A
// panic is kept (Endpoint.Errors), and so is the end of the goroutine (runtime.Goexit, FailNow of a
// test): after either in Announced the payload is refused, unless that was decided before.
type Receiver struct {
	// Announced is called for each payload that a rank wants to send. It decides by Grant or Refuse,
	// or keeps the Announcement for any goroutine to decide later. One that is never decided ends when
	// its sender withdraws it.
	Announced func(a *Announcement)
	// Ended is called once for each Announcement that was not refused, after Announced has returned:
	// with nil when the payload is in its memory, else with why it does not come (ErrWithdrawn, a
	// *fabric.PeerDownError, ErrClosed). Either way memory that was granted is the receiver's again.
	Ended func(a *Announcement, err error)
	// Quick says that neither function waits, panics or takes long: a goroutine that makes progress
	// of the endpoint may call them then.
	Quick bool
}

// Large names a Receiver on every rank.
type Large struct{ h *Handler }

// HandleLarge registers a receiver. It panics where Handle does.
func (t *Table) HandleLarge(name string, r Receiver) *Large {
	if r.Announced == nil || r.Ended == nil {
		panic(fmt.Sprintf("am: HandleLarge(%q): a receiver needs both functions", name))
	}
	h := t.Handle(name, func(*Call) { panic("it takes large payloads and no other requests") })
	h.large = &r
	return &Large{h}
}

// Name is the name of the receiver.
func (x *Large) Name() string { return x.h.name }

// Send announces a payload to a rank, with at most MaxArgs-1 arguments, waits until the receiver
// there grants memory for it, and writes it there; at most 2^31-1 bytes. The payload may be reused
// when it returns, but after a *StallError or ErrClosed the network may read it until the endpoint
// is closed. Without an error the payload is the network's, as after Post.
//
// While it waits for memory it holds no credit and no buffer, of either rank; at most 16 payloads
// of a rank are announced to another at once, and more wait for these. The end of ctx withdraws
// the payload, but not when it is being written. Errors beside those of Post: a *RefusedError.
func (x *Large) Send(ctx context.Context, v Via, rank int, payload []byte, args ...uint64) error {
	l := laneOf(v, rank)
	if l == nil {
		return x.h.failed("send", rank, ErrNoEndpoint)
	}
	if len(args) >= MaxArgs {
		return &SizeError{"arguments of a large payload", len(args), MaxArgs - 1, "send the others as payload"}
	}
	if err := x.h.check("send", l, rank, &Payload{bytes: payload}, args); err != nil {
		return err
	}
	if l.core.cfg.Fencer != nil { // its place is known with the grant only
		if err := x.h.order(ctx, "send", v, l, rank, &Payload{}); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return x.h.failed("send", rank, context.Cause(ctx))
	}
	s := &sending{p: l.core.known(rank), h: x.h, size: uint64(len(payload)), v: v}
	s.w = l.progress.waiter()
	w := s.w
	err := l.transfer(ctx, s, payload, args)
	l.progress.recycle(w)
	return x.h.failed("send", rank, err)
}

// sending is a payload that this rank sends.
type sending struct {
	p        *peer
	h        *Handler
	size     uint64
	w        *waiter // of Send
	token    uint64  // names it to the receiver; its entry in calls has the peer pinged until the answer
	turn     queue.Link[sending]
	step     sendStep
	announce bool   // the announcement is the network's
	answered bool   // by a grant or a refusal
	sent     bool   // the withdrawal is the network's
	off      uint64 // granted
	err      error  // of stepOver
	v        Via
}

type sendStep uint8

const (
	stepQueued    sendStep = iota // for a place among those announced to the peer
	stepAnnounced                 // has a place, until stepOver
	stepGranted
	stepWithdrawn // Send has returned; the place is kept until the receiver has answered and been told
	stepOver
)

// The words of the watchdog.
const (
	opAnnounce = "announce a payload for"
	opGrant    = "wait for memory at"
)

// transfer is Send: place, announcement, grant, data.
func (l *Endpoint) transfer(ctx context.Context, s *sending, payload []byte, args []uint64) error {
	l.progress.begin(s.w, opAnnounce, s.h, s.p.rank)
	l.core.mu.Lock()
	err := l.core.transfersLocked(s.p).queue(s)
	l.core.mu.Unlock()
	if err == nil {
		err = l.awaitStep(ctx, s, stepQueued)
	}
	if err == nil {
		o := outgoing{kind: announce, handler: s.h.index, token: s.token}
		err = l.sendStep(ctx, s.p, &o, append([]uint64{s.size}, args...), s.w)
	}
	if err != nil {
		return l.giveUp(s, err)
	}
	l.core.mu.Lock()
	s.announce = true
	l.core.stats.large.Announced++
	l.core.mu.Unlock()
	l.progress.begin(s.w, opGrant, s.h, s.p.rank)
	if err = l.awaitStep(ctx, s, stepAnnounced); err == nil && l.core.cfg.Fencer != nil {
		err = l.core.cfg.Fencer.Request(ctx, s.v, s.p.rank, s.off, len(payload))
	}
	if err == nil {
		l.progress.begin(s.w, "post", s.h, s.p.rank)
		err = l.sendStep(ctx, s.p, &outgoing{kind: data, cat: long, token: s.token, payload: payload, off: s.off, w: s.w},
			nil, s.w)
	}
	if err != nil {
		return l.giveUp(s, err)
	}
	return s.conclude(l)
}

// conclude ends a payload with its data in the network. Where the peer has died since, it waits as
// well until the network has read the data: their entry in calls has the waiter of Send.
func (s *sending) conclude(l *Endpoint) error {
	err := l.delivered(s)
	if err != nil {
		err = l.giveUp(s, err)
	}
	if s.size == 0 || s.p.rank == l.core.cfg.Rank {
		return err
	}
	l.progress.beginAgain(s.w)
	read := l.awaitRead(s.w)
	if (read == ErrClosed || errors.As(read, new(*StallError))) && err != nil && err != read {
		return errors.Join(err, read) // the network may read the data yet
	}
	return cmp.Or(err, read)
}

// awaitStep waits until a payload has gone on from a step.
func (l *Endpoint) awaitStep(ctx context.Context, s *sending, from sendStep) error {
	for {
		l.core.mu.Lock()
		step, err := s.step, s.err
		if err == nil && step == from {
			err = l.core.end
			if from == stepQueued {
				err = l.core.refusalLocked(announce)
			}
		}
		l.core.mu.Unlock()
		if err != nil || step != from {
			return err
		}
		if err := l.progress.stalled(s.w); err != nil {
			return err
		}
		if err := l.progress.await(ctx, s.w); err != nil {
			return err
		}
	}
}

// delivered ends a payload with its data in the network, unless its peer is dead.
func (l *Endpoint) delivered(s *sending) error {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if s.step == stepOver {
		return s.err
	}
	s.step = stepOver
	l.core.stats.large.Sent++
	s.p.large.drop(s)
	return nil
}

// giveUp ends a payload that was not sent, because of an error of its sender unless the
// receiver was quicker to refuse it or to die. It returns the error that holds.
func (l *Endpoint) giveUp(s *sending, err error) error {
	l.core.mu.Lock()
	announced := s.announce
	switch {
	case s.step == stepOver:
		if s.err != nil {
			err = s.err
		}
	case s.step == stepQueued:
		s.turn.Leave()
		s.step = stepOver
	case !announced:
		s.step = stepOver
		s.p.large.drop(s)
	default:
		s.step, s.w = stepWithdrawn, nil
	}
	if announced {
		switch _, refused := err.(*RefusedError); {
		case refused:
			l.core.stats.large.Refused++
		case s.step == stepWithdrawn:
			l.core.stats.large.Withdrawn++
		default:
			l.core.stats.large.Ended++
		}
	}
	withdrawn := s.step == stepWithdrawn
	l.core.mu.Unlock()
	if withdrawn {
		l.sendSurely(s.p, &outgoing{kind: withdraw, token: s.token}, nil, func() {
			l.core.mu.Lock()
			if s.sent = true; s.answered {
				s.p.large.drop(s)
			}
			l.core.mu.Unlock()
		})
	}
	return err
}

// sendStep sends a step of a large payload as soon as it can; one to this rank is taken at once.
func (l *Endpoint) sendStep(ctx context.Context, p *peer, o *outgoing, args []uint64, w *waiter) error {
	if p.rank != l.core.cfg.Rank {
		return l.send(ctx, p, o, args, w)
	}
	h := head{kind: o.kind, cat: o.cat, nargs: uint8(len(args)), handler: o.handler, token: o.token,
		length: uint32(len(o.payload)), off: o.off}
	copy(h.args[:], args)
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if l.core.end != nil {
		return l.core.end
	}
	if o.kind == data {
		return l.core.transfersLocked(p).copyLocked(&h, o.payload)
	}
	return l.core.stepLocked(p, &h, o.payload)
}

// stepSender is the name of a goroutine that waits to send a step.
const stepSender = "step of a large payload"

// sendSurely sends a step that must not get lost, unless the peer dies or the endpoint ends, which
// end the payload. It does not wait: a goroutine of its own does, without a limit, if something is
// missing. Then sent is called.
func (l *Endpoint) sendSurely(p *peer, o *outgoing, args []uint64, sent func()) {
	var err error
	if p.rank == l.core.cfg.Rank {
		err = l.sendStep(context.Background(), p, o, args, nil)
	} else {
		err = l.emitter.trySend(p, o, args, nil)
	}
	if passing(err) {
		l.core.cfg.Host.Go(stepSender, func() {
			w := l.progress.waiter()
			defer l.progress.recycle(w)
			w.op, w.rank, w.since = "answer", p.rank, 0
			if l.send(context.Background(), p, o, args, w) == nil && sent != nil {
				sent()
			}
		})
		return
	}
	if err == nil && sent != nil {
		sent()
	}
}

// Announcement is a payload that a rank wants to send here. Any goroutine may use it.
type Announcement struct {
	l     *Endpoint
	p     *peer
	h     *Handler
	token uint64 // the sender's
	watch uint64 // the entry in calls that has the sender pinged; 0: none
	size  int
	off   uint64
	args  []uint64

	// Under the endpoint's lock.
	decided bool // granted or refused
	granted bool
	busy    int   // goroutines that run Announced, or copy the payload: Ended waits for them
	ended   bool  // Ended is to be called, or was
	err     error // for Ended, and for a decision that comes too late
}

// From is the rank that sends.
func (a *Announcement) From() int { return a.p.rank }

// Size is the length of the payload in bytes.
func (a *Announcement) Size() int { return a.size }

// Endpoint is where it was announced.
func (a *Announcement) Endpoint() *Endpoint { return a.l }

// Args are the arguments, for as long as the Announcement.
func (a *Announcement) Args() []uint64 { return a.args }

// Arg returns argument i, and 0 for one that there is not.
func (a *Announcement) Arg(i int) uint64 {
	if uint(i) >= uint(len(a.args)) {
		return 0
	}
	return a.args[i]
}

// Granted is where in this rank's segment the payload goes, and whether it was granted memory.
func (a *Announcement) Granted() (off uint64, ok bool) {
	a.l.core.mu.Lock()
	defer a.l.core.mu.Unlock()
	return a.off, a.granted
}

// Payload is the memory that was granted, and nil before. It has the payload when Ended is called
// without an error.
func (a *Announcement) Payload() []byte {
	off, ok := a.Granted()
	if !ok {
		return nil
	}
	return a.l.core.cfg.Segment[off : off+uint64(a.size) : off+uint64(a.size)]
}

// Grant gives the payload Size bytes of this rank's segment from an offset on, until Ended is
// called. It does not wait, and handlers may call it. After an error the memory is the caller's
// still: ErrAnswered if it was decided before, the error of Ended if that has come to an end, or a
// *fabric.BoundsError, after which other memory may be granted.
func (a *Announcement) Grant(off uint64) error {
	l := a.l
	if err := fabric.CheckRange("grant", l.core.cfg.Rank, off, uint64(a.size),
		uint64(len(l.core.cfg.Segment))); err != nil {
		return err
	}
	l.core.mu.Lock()
	if err := a.decideLocked(); err != nil {
		l.core.mu.Unlock()
		return err
	}
	a.granted, a.off = true, off
	a.watch = a.p.large.watch()
	l.core.stats.large.Granted++
	l.core.mu.Unlock()
	l.sendSurely(a.p, &outgoing{kind: grant, token: a.token}, []uint64{off, uint64(a.size)}, nil)
	return nil
}

// Refuse lets the sender know why the payload is not taken; of the text of the reason 512 bytes
// travel. No reason at all is one too. It does not wait, and handlers may call it. Errors as
// Grant's.
func (a *Announcement) Refuse(reason error) error {
	if reason == nil {
		reason = errors.New("no reason is given")
	}
	l := a.l
	l.core.mu.Lock()
	err := a.decideLocked()
	if err == nil {
		a.p.large.forget(a)
		l.core.stats.large.Declined++
	}
	l.core.mu.Unlock()
	if err == nil {
		l.refuseLarge(a.p, a.token, reason.Error())
	}
	return err
}

// decideLocked takes the right to decide.
func (a *Announcement) decideLocked() error {
	switch {
	case a.ended && !a.decided:
		return a.err
	case a.decided:
		return ErrAnswered
	}
	a.decided = true
	return nil
}
