package am

import (
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// offer lets others help with a batch. The caller leads still: whoever leads after it knows of the work, and does not sleep
// while some of it waits behind a handler that takes its time.
func (l *Endpoint) offer(b *batch) {
	if b.n > 1 {
		b.claimed.Store(0)
		b.finished.Store(0)
		l.mu.Lock()
		l.active = append(l.active, b)
		l.engine.unclaimed.Add(int32(b.n))
		l.mu.Unlock()
	}
}

// leaveWith gives the lead up with what the last round brought: a batch that is offered, or nil if nothing is to be
// done.
func (l *Endpoint) leaveWith(b *batch) *batch {
	if b.n == 0 && b.taken == 0 {
		l.engine.spare, b = b, nil
	} else {
		l.offer(b)
	}
	l.leave()
	return b
}

// run runs the handlers of a batch that was offered, if there is one, and takes it back. The caller does not lead. Others
// help if one of the handlers takes its time: the requests behind it do not wait for it.
func (l *Endpoint) run(b *batch) {
	if b == nil {
		return
	}
	if b.n <= 1 { // nobody else knows of it
		if b.n == 1 {
			l.runOne(&b.work[0])
		}
		l.retire(b)
		return
	}
	for {
		i, ok := l.claimOf(b)
		if !ok {
			break
		}
		l.runOne(&b.work[i])
		l.finished(b)
	}
	l.finished(b)
}

// claimOf takes on the next request of a batch that is offered, if there is one.
func (l *Endpoint) claimOf(b *batch) (int, bool) {
	i := int(b.claimed.Add(1)) - 1
	if i >= b.n {
		return 0, false
	}
	l.engine.unclaimed.Add(-1)
	return i, true
}

// help runs handlers of batches of others. It reports whether there were some.
func (l *Endpoint) help() (some bool) {
	for l.engine.unclaimed.Load() > 0 {
		b, i := l.claim()
		if b == nil {
			break
		}
		some = true
		l.runOne(&b.work[i])
		l.finished(b)
	}
	return some
}

// claim finds a request whose handler nobody has begun.
func (l *Endpoint) claim() (*batch, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.active {
		if int(b.claimed.Load()) < b.n {
			if i, ok := l.claimOf(b); ok {
				return b, i // which keeps it from being retired
			}
		}
	}
	return nil, 0
}

// runOne runs the handler of a request, and gives back the buffer that it was lent.
func (l *Endpoint) runOne(w *work) {
	l.handle(w)
	if w.slot[0] < 0 {
		return
	}
	if err := l.port.Post(w.slot[:]...); err != nil {
		l.fail(err)
	}
	l.mu.Lock()
	l.stats.posted++
	l.lent--
	l.mu.Unlock()
}

// finished is called for each handler of a batch, and by who took it on. The last one retires it.
func (l *Endpoint) finished(b *batch) {
	all := int32(b.n) + 1 // read first: once it is counted here, another may retire the batch
	if b.finished.Add(1) == all {
		l.retire(b)
	}
}

// retire takes a batch back.
func (l *Endpoint) retire(b *batch) {
	if planted == spareLate {
		l.mu.Lock()
		_ = l.repost(b, l.port.Now())
		l.mu.Unlock()
	}
	if b.n <= 1 {
		if b.n = 0; l.nextBatch.CompareAndSwap(nil, b) {
			return
		}
	}
	l.mu.Lock()
	if i := slices.Index(l.active, b); i >= 0 {
		l.active = slices.Delete(l.active, i, i+1)
	}
	b.n = 0
	l.batches = append(l.batches, b)
	l.mu.Unlock()
}

// handle runs the handler of one request, if what the request names is there.
func (l *Endpoint) handle(w *work) {
	h := l.table.find(w.head.handler)
	if err := l.locate(h, w); err != nil {
		l.report(w.rank, of(w.rank, err))
		if w.head.wants {
			_ = l.refuse(w.rank, w.head.token, Refused, err.Error())
		}
		l.stats.refused.Add(1) // now Close and Quiesce need not wait for it
		return
	}
	c := &w.call
	*c = Call{l: l, h: h, head: &w.head, rank: w.rank, payload: w.payload}
	l.invoke(c)
	if c.state == fresh && w.head.wants {
		_ = c.replyForHandler() // what went wrong is counted
	}
	c.state = over
	l.stats.handled.Add(1)
}

// locate checks what a request refers to.
func (l *Endpoint) locate(h *Handler, w *work) error {
	if h == nil {
		return broken("names a handler that is not there", int(w.head.handler), len(l.table.sorted)-1)
	}
	if w.head.cat != long {
		return nil
	}
	off, n, size := w.head.off, uint64(w.head.length), uint64(len(l.cfg.Segment))
	if off > size || n > size-off {
		return &MessageError{Peer: -1, Rule: "writes beyond the segment", Got: off + n, Limit: size}
	}
	w.payload = l.cfg.Segment[off : off+n : off+n]
	return nil
}

// invoke calls the handler. A panic becomes a failure; one of the rules' checks goes on. A handler that
// ends the goroutine ends one that is not its own, perhaps the only one that polls: what would hang later stops here.
func (l *Endpoint) invoke(c *Call) {
	lockrank.EnterHandler(c.h.name)
	mark := running.enter()
	returned := false
	defer func() {
		running.leave(mark)
		v := recover()
		if v == nil {
			lockrank.LeaveHandler()
			if !returned {
				l.stats.handled.Add(1)
				panic(fmt.Sprintf("am: handler %q called runtime.Goexit, as a test's FailNow and Fatal do: it runs on a goroutine of others; return instead", c.h.name))
			}
			return
		}
		if _, ok := v.(*lockrank.Violation); ok {
			l.stats.handled.Add(1)
			defer panic(v) // whatever LeaveHandler finds in addition
		}
		lockrank.LeaveHandler()
		l.panicked(c, v)
	}()
	c.h.f(c)
	returned = true
}

func (l *Endpoint) panicked(c *Call, v any) {
	l.stats.panics.Add(1)
	text := clip(fmt.Sprint(v))
	l.report(c.rank, &RemoteError{Rank: l.cfg.Rank, Handler: c.h.name, Reason: Panicked, Text: text})
	if c.head.wants && (c.state == fresh || c.state == deferred && c.token.take(tokenAnswered) == nil) {
		c.state = replied
		_ = l.refuse(c.rank, c.head.token, Panicked, text)
	}
}

// refuse sends a failure.
func (l *Endpoint) refuse(rank int, token uint64, why Reason, text string) error {
	args := [1]uint64{uint64(why)}
	return l.reply(rank, &outgoing{kind: failure, cat: medium, token: token, payload: []byte(clip(text))}, args[:])
}
