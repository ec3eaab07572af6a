//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// closeRun hands the run of slots that go to one link to the doorbell.
func (e *endpoint) closeRun() {
	if e.runLink == none {
		return
	}
	e.queueRun(e.runFirst, len(e.pending))
	e.runLink = none
	e.runs++
}

// queueRun hands slots that go to one link to the doorbell.
func (e *endpoint) queueRun(first, end int) {
	k := e.linkOf(first)
	// It fails only for a closed queue pair or a full doorbell, neither of which can be: see room and release.
	if err := e.bell.Send(k.qp, e.chain, first, end-first); err != nil {
		panic(err)
	}
}

// linkOf is the link that a pending slot goes to.
func (e *endpoint) linkOf(slot int) *link { return &e.links[e.wrs[e.pending[slot]].link] }

// post rings the doorbell for what is pending.
func (e *endpoint) post() error {
	if len(e.pending)+len(e.owing) == 0 {
		return nil
	}
	_, err := e.progress(0, 0)
	return err
}

// progress posts what is pending and polls within a budget, as Doorbell.Ring
// does, and completes what came. The count is of completions. An error means
// that polling failed and that nothing is out any more.
func (e *endpoint) progress(want int, budget time.Duration) (int, error) {
	if len(e.owing) > 0 {
		e.settle()
	}
	c := e.counters
	if len(e.pending) > 0 {
		c.Doorbells++
	}
	if want > 0 {
		c.Polls++
	}
	var n int
	var err error
	if e.runs == 0 && e.runLink != none { // all that is pending goes to one link
		k := &e.links[e.runLink]
		e.runLink, e.runs = none, 1
		n, err = e.bell.Call(k.qp, e.chain, 0, len(e.pending), want, budget)
	} else {
		e.closeRun()
		n, err = e.bell.Ring(want, budget)
	}
	return n, e.rung(n, err)
}

// rung enters into the books what a ring brought.
func (e *endpoint) rung(n int, err error) error {
	e.counters.Requests += uint64(e.bell.Posted())
	if n > 0 {
		e.reap(e.bell.Completions())
	}
	if err != nil {
		err = e.ringFailed(err)
	}
	e.pending, e.runs = e.pending[:0], 0
	if len(e.again)+len(e.dead)+len(e.lost) > 0 {
		e.afterwards()
	}
	if e.rings++; e.rings%ringsPerClock == 0 {
		e.yieldNowAndThen()
	}
	return err
}

// yieldNowAndThen lets the scheduler see this goroutine once in yieldEvery.
func (e *endpoint) yieldNowAndThen() {
	if now := time.Now(); now.Sub(e.yielded) >= yieldEvery {
		runtime.Gosched()
		e.yielded = now
	}
}

// reap retires the work requests that completed, and those before them on the
// same queue pair: their success is implied.
func (e *endpoint) reap(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		w := int32(wc.WRID)
		k := &e.links[e.wrs[w].link]
		for k.head != w {
			e.retire(k, nil)
		}
		if wc.Status == verbs.StatusSuccess {
			e.retire(k, nil)
			continue
		}
		e.broken(k, e.wrs[w].kind, wc.Err())
		e.retire(k, k.err)
	}
}

// broken notes why a link is of no more use.
func (e *endpoint) broken(k *link, what kind, cause error) {
	if k.err != nil {
		return
	}
	k.err = &fabric.PeerDownError{Rank: int(k.rank), Op: what.String(), Cause: cause}
	e.dead = append(e.dead, k.rank)
}

// retire ends a link's oldest work request, with err or with success.
func (e *endpoint) retire(k *link, err error) {
	i := k.head
	w := &e.wrs[i]
	if k.head = w.next; k.head == none {
		k.tail = none
	}
	e.outstanding--
	e.ended++
	if k.outstanding--; k.outstanding == 0 {
		k.silent = 0
		moved := e.active[len(e.active)-1]
		e.active[k.place] = moved
		e.links[moved].place = k.place
		e.active = e.active[:len(e.active)-1]
	}
	var old uint64
	if w.block != none {
		switch {
		case w.kind == kindGet && err == nil && !(w.op != none && e.ops[w.op].abandoned):
			copy(w.dst, e.slab.bytes(w.block, len(w.dst)))
		case w.kind == kindAtomic:
			old = e.word(w.block)
		}
		e.slab.give(w.block)
	}
	if w.op != none {
		e.finishPart(w.op, old, err)
	} else if w.last {
		e.countDone(err)
		if err != nil && e.implicitErr == nil {
			e.implicitErr = err
		}
	}
	if w.dst != nil {
		w.dst = nil
		if w.hold != 0 {
			e.letGo(w.hold-1, 1)
			w.hold = 0
		}
	}
	w.next, e.freeWR = e.freeWR, i
}

// finishPart ends one work request of an operation with a handle.
func (e *endpoint) finishPart(o int32, old uint64, err error) {
	p := &e.ops[o]
	if err != nil && p.err == nil {
		p.err = err
	}
	if p.swap && err == nil && old != p.compare {
		p.compare = old
		e.again = append(e.again, o)
		return
	}
	p.old = old
	if p.parts--; p.parts > 0 {
		return
	}
	e.countDone(p.err)
	if p.abandoned {
		e.freeOpAt(o)
	}
}

func (e *endpoint) countDone(err error) {
	if err != nil {
		e.counters.Errors++
	} else {
		e.counters.Completed++
	}
}

// owe notes that somebody waits for a link's last requests, which are silent.
func (e *endpoint) owe(k *link) {
	if !k.owes {
		k.owes = true
		e.owing = append(e.owing, k.rank)
	}
}

// settle collects, for each link that owes one, a request that asks for a
// completion: a write of nothing. A link without room keeps its debt until the
// next time; sign has seen to it that something of it completes until then.
func (e *endpoint) settle() {
	left := e.owing[:0]
	for _, r := range e.owing {
		k := &e.links[r]
		switch {
		case k.silent == 0:
			k.owes = false
		case len(e.pending) == chainSlots || e.runs >= verbs.MaxBatch-1 ||
			k.outstanding >= int32(e.net.cfg.Depth) || e.outstanding >= e.limit:
			left = append(left, r)
		default:
			k.owes = false
			slot := e.slot(k, none, kindFlush, none, false)
			w := e.chain.WR(slot)
			w.Opcode = verbs.OpWrite
			w.SetNumSGE(0)
			w.SetRemote(k.base, k.rkey)
			e.sign(k, slot, true)
		}
	}
	e.owing = left
}

// afterwards does what must not be done while completions are read: it takes
// lost queue pairs from the device, posts swaps again, and tells of broken links.
func (e *endpoint) afterwards() {
	for len(e.lost) > 0 {
		k := &e.links[e.lost[len(e.lost)-1]]
		e.lost = e.lost[:len(e.lost)-1]
		e.abandon(k)
	}
	for len(e.dead) > 0 {
		k := &e.links[e.dead[len(e.dead)-1]]
		e.dead = e.dead[:len(e.dead)-1]
		var down *fabric.PeerDownError
		if errors.As(k.err, &down) {
			e.net.found(int(k.rank), down.Cause)
		}
	}
	for len(e.again) > 0 {
		o := e.again[len(e.again)-1]
		e.again = e.again[:len(e.again)-1]
		k := &e.links[e.ops[o].rank]
		err := k.err
		if err == nil {
			var slot int
			if slot, err = e.postAtomic(k, o, false); err == nil {
				e.sign(k, slot, true)
				err = e.post()
			}
		}
		if err != nil && e.ops[o].live && e.ops[o].parts > 0 {
			e.finishPart(o, 0, err)
		}
	}
}

// ringFailed deals with the error of a ring. One that is returned means that
// polling failed.
func (e *endpoint) ringFailed(err error) error {
	var refused *verbs.PostError
	if errors.As(err, &refused) {
		return e.refused(refused)
	}
	return e.goDeaf(err)
}

// goDeaf loses every link of this lane, since it will hear of no completions any
// more. The peers are alive for all we know, and nobody is told otherwise: when it
// is the device that has gone, each lane finds out by itself.
func (e *endpoint) goDeaf(err error) error {
	if e.deaf == nil {
		e.deaf = fmt.Errorf("ibv: the lane is lost, close it and open another: %w", err)
		e.net.log.Warn("ibv: a lane is lost", "lane", e.index, "err", err)
	}
	for i := range e.links {
		if k := &e.links[i]; k.qp != nil && k.err == nil {
			k.err = e.deaf
		}
	}
	for len(e.active) > 0 {
		k := &e.links[e.active[0]]
		_ = e.takeFromDevice(k) // it has warned
		for k.head != none {
			e.retire(k, k.err)
		}
	}
	return e.deaf
}

// refused loses the link whose queue refused a request, and rings for the runs
// that stood behind it, which the doorbell did not come to.
func (e *endpoint) refused(why *verbs.PostError) error {
	first := 0
	for range why.Batch {
		first = e.runEnd(first)
	}
	end := e.runEnd(first)
	e.lose(first, max(first, why.Posted), end, why)
	for first = end; first < len(e.pending); first = end {
		end = e.runEnd(first)
		if e.linkOf(first).err != nil {
			e.lose(first, first, end, why)
			continue
		}
		e.queueRun(first, end)
		_, err := e.bell.Ring(0, 0)
		e.counters.Requests += uint64(e.bell.Posted())
		switch {
		case err == nil:
		case errors.As(err, &why):
			e.lose(first, first+why.Posted, end, why)
		default:
			return e.goDeaf(err)
		}
	}
	return nil
}

// runEnd is the end of the run of pending slots that begins at first.
func (e *endpoint) runEnd(first int) int {
	end := first + 1
	for end < len(e.pending) && e.linkOf(end) == e.linkOf(first) {
		end++
	}
	return end
}

// lose ends the requests of a run that were not posted, from unposted on, and
// marks their link as lost.
func (e *endpoint) lose(first, unposted, end int, cause error) {
	k := e.linkOf(first)
	e.broken(k, e.wrs[e.pending[first]].kind, cause)
	for _, w := range e.pending[unposted:end] {
		e.unlink(k, w)
	}
	e.lost = append(e.lost, k.rank)
}

// abandon takes a lost link's queue pair from the device, after which nothing of
// it completes, and ends what was out. Requests that were posted before the
// refused one may have been done; nobody will tell. A queue pair that cannot be taken
// from the device may still write into blocks that others would get, and complete
// what is in no book any more: the lane is lost.
func (e *endpoint) abandon(k *link) {
	if err := e.takeFromDevice(k); err != nil {
		_ = e.goDeaf(err) // each request tells
		return
	}
	for {
		n, err := e.bell.Ring(1, 0) // what completed before
		if n > 0 {
			e.reap(e.bell.Completions())
		}
		if err != nil {
			_ = e.goDeaf(err) // each request tells
		}
		if n == 0 || err != nil {
			break
		}
	}
	for k.head != none {
		e.retire(k, k.err)
	}
}

// takeFromDevice resets a link's queue pair: the device works on it no more, and the memory of its requests is their
// callers' again. Where that fails, registrations stay until the endpoint is released.
func (e *endpoint) takeFromDevice(k *link) error {
	err := k.qp.Reset()
	if err == nil {
		return nil
	}
	e.net.log.Warn("ibv: lost queue pair cannot be reset", "rank", k.rank, "err", err)
	for i := k.head; i != none; i = e.wrs[i].next {
		e.wrs[i].hold = 0
	}
	return err
}

// unlink ends a work request that was never posted, wherever it stands in its
// link's queue.
func (e *endpoint) unlink(k *link, w int32) {
	before := none
	for i := k.head; i != w; i = e.wrs[i].next {
		before = i
	}
	if before != none { // bring it to the front, where retire takes it
		e.wrs[before].next = e.wrs[w].next
		if k.tail == w {
			k.tail = before
		}
		e.wrs[w].next = k.head
		k.head = w
	}
	e.retire(k, k.err)
}

// noticeDowns breaks the links to ranks that somebody found dead. What is in
// flight to them completes as flushed; silent requests that are done already
// make no completion of their own and need one behind them.
func (e *endpoint) noticeDowns() {
	e.downSeen = e.net.downSeq.Load()
	e.net.downs.Range(func(rank, cause any) bool {
		k := &e.links[rank.(int)]
		if k.qp == nil || k.err != nil {
			return true
		}
		k.err = &fabric.PeerDownError{Rank: int(k.rank), Op: "operation", Cause: cause.(error)}
		if err := k.qp.ToError(); err != nil {
			e.net.log.Warn("ibv: queue pair of a dead peer cannot be stopped", "rank", k.rank, "err", err)
		}
		if k.silent > 0 {
			e.owe(k)
		}
		return true
	})
}
