package am

import (
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// of says whose message it was.
func of(rank int, err error) error {
	if e, ok := err.(*MessageError); ok {
		e.Peer = rank
	}
	return err
}

// cut ends what there is with a peer that broke the protocol: its books cannot be trusted any
// more. What still arrives from it is counted and dropped.
func (l *Endpoint) cut(p *peer, why error) { l.down(p, of(p.rank, why), false) }

// death is one that somebody else found out.
type death struct {
	rank  int
	cause error
	next  *death
}

// PeerDown tells the lane that a rank is dead, as somebody else found out: its calls end when somebody polls next, which this
// brings about. It may be called with any lock held, and by the network.
func (l *Endpoint) PeerDown(rank int, cause error) {
	if rank < 0 || rank >= l.peers.Len() || rank == l.cfg.Rank {
		return
	}
	d := &death{rank: rank, cause: cause}
	for d.next = l.deaths.Load(); !l.deaths.CompareAndSwap(d.next, d); d.next = l.deaths.Load() {
	}
	l.port.Wake()
}

// bury ends what there is with those whom PeerDown named, if there are any: what they held may be due to others. The
// caller leads.
func (l *Endpoint) bury() (some bool) {
	if l.deaths.Load() == nil {
		return false
	}
	var first *death
	for d := l.deaths.Swap(nil); d != nil; {
		d.next, first, d = first, d, d.next // the last one told is the first in the list
	}
	for d := first; d != nil; d = d.next {
		l.down(l.known(d.rank), d.cause, false) // the network itself tells how its writes ended
	}
	return true
}

// down ends everything that has to do with a peer, once. dead says that the network knows of
// it, and has ended its writes. OnClosed is told first: whoever learns of the death by a call finds that
// the rest of the program knows. The caller leads.
func (l *Endpoint) down(p *peer, cause error, dead bool) {
	if cause == nil {
		cause = errors.New("the network gave no cause")
	}
	p.mu.Lock()
	known := p.down != nil
	p.mu.Unlock()
	if known {
		return // who leads is the only one to find out
	}
	if f := l.cfg.OnClosed; f != nil {
		f(p.rank, cause)
	}
	p.mu.Lock()
	p.down = cause
	now := l.port.Now()
	p.purse.Close()
	for w := p.waiting.First(); w != nil; w = w.links[atPeer].Next() {
		w.wake(l)
	}
	l.mu.Lock()
	l.pool.Close(p.rank, now)
	needs := needReply
	if dead {
		needs |= needSent
	}
	l.endCalls(p.rank, needs, &fabric.PeerDownError{Rank: p.rank, Op: "call", Cause: cause}, &l.stats.dead)
	if f := l.calls.free; planted == doubleReturn && f != 0 {
		l.calls.e[f-1].next = f
	}
	l.dropOwed(p.rank)
	l.replyless.wake(l)
	l.replyless.wakeOf(l, atReplies, p.rank) // the replies of others may be far away, and what their messages hold
	l.waiting.wakeOf(l, atLane, p.rank)
	l.mu.Unlock()
	p.mu.Unlock()
	l.stats.closed.Add(1)
	l.report(p.rank, fmt.Errorf("am: rank %d is closed: %w", p.rank, cause))
}

// endCalls ends what is in flight to a rank, or to all, with the lane's lock.
func (l *Endpoint) endCalls(rank int, n need, cause error, count *uint64) {
	for i := range l.calls.e {
		e := &l.calls.e[i]
		n := n & e.needs
		if n == 0 || rank >= 0 && int(e.peer) != rank {
			continue
		}
		if n&needReply != 0 {
			*count++
		}
		if n&needSent != 0 {
			l.stats.written++
		}
		if e.w != nil && e.w.err == nil {
			e.w.err = cause
		}
		if w := l.calls.settle(int32(i+1), n); w != nil {
			w.rouse(l)
		}
	}
}

// fail ends the lane because its port does not work.
func (l *Endpoint) fail(err error) {
	l.report(-1, err)
	l.shut(fmt.Errorf("am: the lane's port failed: %w", err))
}

// ended is why the lane is of no use any more, or nil.
func (l *Endpoint) ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// shut wakes everybody with an error, once.
func (l *Endpoint) shut(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		return
	}
	l.end = cause
	if cause == ErrClosed {
		l.rest = l.inFlight()
	}
	l.engine.closing.Store(true)
	l.endCalls(-1, needReply|needSent, cause, &l.stats.ended)
	l.dropOwed(-1)
	l.stats.nowhere.Add(uint64(len(l.late)))
	l.late = nil
	for w := l.parked.First(); w != nil; w = w.links[parked].Next() {
		w.wake(l)
	}
	if w := l.engine.attendant; w != nil {
		w.wake(l)
	}
	l.port.Wake()
}

// Close ends the lane. Everything pending gets ErrClosed. Its error wraps an
// *InFlightError if that was something, which is for the caller to judge: a lane is closed
// in good order as Quiesce says. With handlers that do not end, or memory lent by Prepare, it
// wraps ErrBusy after Config.CloseAfter, and the port stays open: call it again. What else was in flight is told by the Close that
// succeeds; one after that is nil.
func (l *Endpoint) Close() error {
	if err := l.mayUse("close"); err != nil {
		return err
	}
	lockrank.MustHoldNone("close")
	l.shut(ErrClosed)
	l.eachPeer(func(*peer) {}) // messages that are being handed to the port, whose memory ends with it, come first
	const step = time.Millisecond
	for waited := time.Duration(0); !l.takeLast(); waited += step {
		if l.engine.closed.Load() {
			return nil
		}
		if waited >= l.cfg.CloseAfter {
			l.mu.Lock()
			l.rest.Handlers = 0 // of them this error tells
			l.mu.Unlock()
			return fmt.Errorf("%w, after %v: %s", ErrBusy, waited, l.users())
		}
		l.port.Wake()
		l.cfg.Host.Sleep(step)
	}
	l.engine.closed.Store(true)
	err := l.port.Close()
	l.mu.Lock()
	rest := l.rest
	l.mu.Unlock()
	if rest != (InFlightError{}) {
		rest.Op = "close"
		return errors.Join(err, &rest)
	}
	return err
}

// eachPeer calls f with each peer and its lock. Who is sending to it has the message in the network then; who comes later sees what was
// set before.
func (l *Endpoint) eachPeer(f func(*peer)) {
	for _, at := range l.peers.All() {
		if p := at.Load(); p != nil {
			p.mu.Lock()
			f(p)
			p.mu.Unlock()
		}
	}
}

// takeLast takes the lead for good, if nobody uses the lane any more. Nothing arrives while it looks.
func (l *Endpoint) takeLast() bool {
	e := &l.engine
	if e.attendant != nil && !e.gone.Load() || e.parked.Load() > 0 || l.prepared.Load() > 0 || !l.tryLead() {
		return false
	}
	l.mu.Lock()
	still := l.handling() == 0 && l.lent == 0
	l.mu.Unlock()
	if still {
		return true
	}
	l.leave()
	return false
}

// users says who keeps a lane from being closed.
func (l *Endpoint) users() string {
	e := &l.engine
	s := fmt.Sprintf("%d handlers run or are yet to run, %d messages are prepared", l.look().running, l.prepared.Load())
	if n := e.parked.Load(); n > 0 {
		s += fmt.Sprintf(", %d goroutines wait", n)
	}
	if e.attendant != nil && !e.gone.Load() {
		s += ", the attendant has not ended"
	}
	if e.lead.Load() {
		s += ", somebody polls"
	}
	return s
}
