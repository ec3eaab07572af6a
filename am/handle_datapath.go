package am

import (
	"fmt"
	"slices"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// offer lets others help with a batch. The caller leads still: the next leader knows of the
// work, and does not sleep while some of it waits behind a handler that takes its time.
func (x *inbox) offer(b *batch) {
	if b.n > 1 {
		b.claimed.Store(0)
		b.finished.Store(0)
		x.mu.Lock()
		x.active = append(x.active, b)
		x.unclaimed.Add(int32(b.n))
		x.mu.Unlock()
	}
}

// run runs the handlers of a batch that was offered, if there is one, and takes it back. The caller
// does not lead. Others help if one of the handlers takes its time: the requests behind it do not
// wait for it.
func (x *inbox) run(b *batch) {
	if b == nil {
		return
	}
	if b.n <= 1 { // nobody else knows of it
		if b.n == 1 {
			x.runOne(&b.work[0])
		}
		x.retire(b)
		return
	}
	for {
		i, ok := x.claimOf(b)
		if !ok {
			break
		}
		x.runOne(&b.work[i])
		x.finished(b)
	}
	x.finished(b)
}

// claimOf takes on the next request of a batch that is offered, if there is one.
func (x *inbox) claimOf(b *batch) (int, bool) {
	i := int(b.claimed.Add(1)) - 1
	if i >= b.n {
		return 0, false
	}
	x.unclaimed.Add(-1)
	return i, true
}

// help runs handlers of batches of others. It reports whether there were some.
func (x *inbox) help() (some bool) {
	for x.unclaimed.Load() > 0 {
		b, i := x.claim()
		if b == nil {
			break
		}
		some = true
		x.runOne(&b.work[i])
		x.finished(b)
	}
	return some
}

// claim finds a request with a handler that has not begun.
func (x *inbox) claim() (*batch, int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range x.active {
		if int(b.claimed.Load()) < b.n {
			if i, ok := x.claimOf(b); ok {
				return b, i // which keeps it from being retired
			}
		}
	}
	return nil, 0
}

// runOne runs the handler of a request, and gives back the buffer that it was lent.
func (x *inbox) runOne(w *work) {
	x.handle(w)
	if w.slot < 0 {
		return
	}
	x.mu.Lock()
	x.lent--
	x.giveBackLocked(w.slot)
	var err error
	if !x.mayStayBare() {
		err = x.postLocked()
	}
	x.mu.Unlock()
	if err != nil {
		x.fail(err)
	}
}

// finished is called for each handler of a batch, and by the goroutine that took it on. The last
// one retires it.
func (x *inbox) finished(b *batch) {
	all := int32(b.n) + 1 // read first: once it is counted here, another may retire the batch
	if b.finished.Add(1) == all {
		x.retire(b)
	}
}

// retire takes a batch back.
func (x *inbox) retire(b *batch) {
	if b.n <= 1 {
		if b.n = 0; x.nextBatch.CompareAndSwap(nil, b) {
			return
		}
	}
	x.mu.Lock()
	if i := slices.Index(x.active, b); i >= 0 {
		x.active = slices.Delete(x.active, i, i+1)
	}
	b.n = 0
	x.batches = append(x.batches, b)
	x.mu.Unlock()
}

// handle runs the handler of one request, if the handler and place that it names are there.
func (x *inbox) handle(w *work) {
	h := x.table.find(w.head.handler)
	if h == nil || w.head.cat == long {
		if err := x.locate(h, w); err != nil {
			x.report(w.rank, of(w.rank, err))
			if w.head.wants {
				_ = x.replier.refuse(w.rank, w.head.token, Refused, err.Error())
			}
			x.stats.refused.Add(1) // now Close and Quiesce need not wait for it
			return
		}
	}
	c := &w.call // field by field: a literal is made elsewhere first, and copied
	c.x, c.h, c.head, c.rank, c.from, c.payload = x, h, &w.head, w.rank, w.from, w.payload
	c.state, c.unfit, c.token = fresh, nil, nil
	x.invoke(c)
	if c.state == fresh && w.head.wants {
		_ = c.replyForHandler() // what went wrong is counted
	}
	c.state = over
	x.stats.handled.Add(1)
}

// locate finds the payload of a Long, and the mistake of a request that names no handler.
func (x *inbox) locate(h *Handler, w *work) error {
	if h == nil {
		return broken("names a handler that is not there", int(w.head.handler), len(x.table.sorted)-1)
	}
	off, n, size := w.head.off, uint64(w.head.length), uint64(len(x.cfg.Segment))
	if off > size || n > size-off {
		return &MessageError{Peer: -1, Rule: "writes beyond the segment", Got: off + n, Limit: size}
	}
	w.payload = x.cfg.Segment[off : off+n : off+n]
	return nil
}

// invoke calls the handler. A panic becomes a failure; one of the rules' checks goes on. A handler
// that ends the goroutine ends one that is not its own, perhaps the only one that polls: what would
// hang later stops here.
func (x *inbox) invoke(c *Call) {
	lockrank.EnterHandler(c.h.name)
	g := lockrank.Goroutine()
	mark := inHandler.mark(g)
	returned := false
	fenceHandler(&x.cfg, c.rank)
	defer func() {
		fenceHandler(&x.cfg, c.rank)
		inHandler.leave(g, mark)
		v := recover()
		if v == nil {
			lockrank.LeaveHandler()
			if !returned {
				x.stats.handled.Add(1)
				panic(fmt.Sprintf("am: handler %q called runtime.Goexit, as a test's FailNow and Fatal do: it runs on a "+
					"goroutine of others; return instead", c.h.name))
			}
			return
		}
		if _, ok := v.(*lockrank.Violation); ok {
			x.stats.handled.Add(1)
			defer panic(v) // whatever LeaveHandler finds in addition
		}
		lockrank.LeaveHandler()
		x.panicked(c, v)
	}()
	c.h.f(c)
	returned = true
}

func (x *inbox) panicked(c *Call, v any) {
	x.stats.panics.Add(1)
	text := clip(fmt.Sprint(v))
	x.report(c.rank, &RemoteError{Rank: x.cfg.Rank, Handler: c.h.name, Reason: Panicked, Text: text})
	if c.head.wants && (c.state == fresh || c.state == deferred && c.token.take(replyAnswered) == nil) {
		c.state = replied
		_ = x.replier.refuse(c.rank, c.head.token, Panicked, text)
	}
}
