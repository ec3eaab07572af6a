package flow

import (
	"context"
	"time"

	"github.com/ibconduit/conduit/internal/queue"
)

// claim is a wish for bytes, and then the bytes. It is in one of these places:
//
//	queue, and smalls if it is small    waits
//	nested                              waits for the reserve
//	holders                             granted: left of its bytes are held
//	holders and placing                 and waits for a place in a region
//	none                                over, or never posted
type claim struct {
	bytes    int64
	messages int    // fetches and payloads in it
	seq      uint64 // in the order of posting
	left     int64  // held
	open     int    // messages that have not given back their bytes, once granted
	counted  bool   // those are tokens of BudgetConfig.Messages
	from     *pool  // once granted
	state    claimState
	err      error         // why it ended before it was granted
	since    time.Duration // when its state began, or its wait for a place, or its place
	owner    *Owner        // nil: none
	place    bool          // in the queue, of one of the offers; it has nothing else
	plain    bool          // of Acquire: over as soon as it is granted
	placed   bool          // its memory is in a region (FetchSet.Placed)
	offer    *Offer        // that it belongs to
	pending  *Pending      // that it belongs to
	parker   Parker        // of the goroutine that waits; nil: none does

	// Its places in queue, nested or placing, in smalls, in holders, and among what its owner holds.
	turn, short, held, own queue.Link[claim]
}

type claimState uint8

const (
	claimNew claimState = iota
	claimWaiting
	claimGranted
	claimOver
)

// refusalLocked is why a claim of n bytes cannot be posted.
func (b *ledger) refusalLocked(n int64, fetches int) error {
	switch most := b.cfg.largest(); {
	case b.closed != nil:
		return b.closed
	case n < 0 || n > most || b.cfg.Messages > 0 && fetches > b.cfg.Messages:
		b.stats.TooLarge++
		return &SetTooLargeError{Need: n, Limit: most, Fetches: fetches, Messages: b.cfg.Messages}
	}
	return nil
}

// atOnceLocked is the pool that serves n bytes of some messages without a wait; nil: they must be
// queued.
func (b *ledger) atOnceLocked(n int64, messages int) *pool {
	switch {
	case b.isSmall(n) && b.smalls.Len() == 0 && b.small.fits(n):
		if b.queue.Len() > 0 {
			b.stats.Passed++
		}
		return &b.small
	case n == 0 || b.queue.Len() == 0 && b.fitsLocked(n, messages):
		return &b.bulk
	}
	return nil
}

// fitsLocked reports whether there are bulk bytes and tokens for a claim.
func (b *ledger) fitsLocked(n int64, messages int) bool {
	return b.bulk.fits(n) && (n == 0 || b.cfg.Messages == 0 || messages <= b.cfg.Messages-b.tokens)
}

func (b *ledger) isSmall(n int64) bool { return n > 0 && n <= b.cfg.SmallMax }

// postLocked grants a claim at once, or queues it.
func (b *ledger) postLocked(c *claim) {
	b.posted++
	c.since, c.seq = b.cfg.Now(), b.posted
	if from := b.atOnceLocked(c.bytes, c.messages); from != nil {
		b.grantLocked(c, from)
		return
	}
	b.enqueueLocked(c)
}

func (b *ledger) enqueueLocked(c *claim) {
	c.since, c.state = b.cfg.Now(), claimWaiting
	b.stats.Queued++
	b.waited = true
	b.queue.Add(&c.turn, c)
	if b.isSmall(c.bytes) {
		b.smalls.Add(&c.short, c)
	}
}

// takeLocked has n bytes of a pool held.
func (b *ledger) takeLocked(from *pool, n int64) {
	from.held += n
	b.stats.Granted++
	b.peakLocked()
}

func (b *ledger) peakLocked() {
	held := b.bulk.held + b.small.held + b.unscheduled.held
	b.recent = max(b.recent, held)
	b.stats.Peak = max(b.stats.Peak, held)
	b.stats.PeakReserve = max(b.stats.PeakReserve, b.reserve.held)
}

func (b *ledger) grantLocked(c *claim, from *pool) {
	c.turn.Leave()
	c.short.Leave()
	b.takeLocked(from, c.bytes)
	c.from, c.left, c.open, c.since, c.state = from, c.bytes, c.messages, b.cfg.Now(), claimGranted
	if c.plain {
		b.plain.add(b, from, c.bytes)
		c.left, c.state = 0, claimOver
	} else if c.bytes > 0 {
		if c.counted = from == &b.bulk && b.cfg.Messages > 0; c.counted {
			b.tokens += c.open
		}
		b.holders.Add(&c.held, c)
		c.owner.take(c)
		if c.pending != nil {
			c.pending.unmakeLocked(c.bytes)
		}
	}
	if c.parker != nil {
		c.parker.Unpark()
	}
}

// giveBackLocked returns n of the bytes that a claim holds, the share of one message, and ends it
// with the last.
func (b *ledger) giveBackLocked(c *claim, n int64) {
	c.left -= n
	c.from.held -= n
	if c.counted {
		b.tokens--
	}
	if c.open--; c.open == 0 {
		c.turn.Leave()
		c.held.Leave()
		c.own.Leave()
		c.state = claimOver
	}
	b.serveLocked()
}

// endLocked ends a claim that waits; one that was granted meanwhile it leaves.
func (b *ledger) endLocked(c *claim, err error) {
	if c.state != claimWaiting {
		return
	}
	c.turn.Leave()
	c.short.Leave()
	c.state, c.err = claimOver, err
	b.stats.Cancelled++
	if c.parker != nil {
		c.parker.Unpark()
	}
	b.serveLocked()
}

// serveLocked grants what has become free: bulk bytes strictly in the order of the queue, so that
// the first gets its bytes whatever comes behind it.
func (b *ledger) serveLocked() {
	if b.closed != nil {
		return
	}
	for c := b.smalls.First(); c != nil && b.small.fits(c.bytes); c = b.smalls.First() {
		if c != b.queue.First() {
			b.stats.Passed++
		}
		b.grantLocked(c, &b.small)
	}
	for c := b.queue.First(); c != nil; c = b.queue.First() {
		if c.place {
			if !b.offers.serve(b) {
				break
			}
			continue
		}
		if !b.fitsLocked(c.bytes, c.messages) {
			break
		}
		b.grantLocked(c, &b.bulk)
	}
	for c := b.nested.First(); c != nil && b.reserve.fits(c.bytes); c = b.nested.First() {
		b.stats.FromReserve++
		b.grantLocked(c, &b.reserve)
	}
}

// await waits until a claim is granted. An error of the wait ends the claim.
func (b *Budget) await(ctx context.Context, c *claim) error {
	var ended error // ctx
	for {
		b.mu.Lock()
		switch {
		case c.state == claimGranted || c.state == claimOver && c.err == nil:
			b.mu.Unlock()
			return nil
		case c.state == claimOver:
			b.mu.Unlock()
			return c.err
		case ended != nil:
			b.endLocked(c, b.stallLocked(c, ended)) // and round again, to return that
		default:
			b.mu.Unlock()
			ended = c.parker.Park(ctx)
			continue
		}
		b.unlock()
	}
}

// mayWaitLocked decides on a wait of an owner that holds sets that it posted before. Without a
// reserve it is refused, also when its bytes are granted: their data may be what another makes,
// with the bytes that the owner holds. With one, the reserve serves bytes that are not granted, or
// are to be placed. No holder of bulk or reserved bytes waits for bytes, but for the reserve, and
// then has nothing of it: so all come back as soon as their holders have used them. Sets posted
// after c, granted and without a place yet, hold up none that c depends on: these were posted
// before c, and so granted before.
func (b *ledger) mayWaitLocked(c *claim) error {
	o := c.owner
	holds, reserved := o.before(c, c.state == claimWaiting)
	serves := c.bytes <= b.reserve.size && reserved == 0
	switch granted := c.state == claimGranted; {
	case holds == 0:
		return nil
	case serves && granted && c.placed && !c.pending.starting && b.closed == nil:
		b.ungrantLocked(c)
		fallthrough
	case serves && c.state == claimWaiting:
		c.short.Leave()
		b.nested.Add(&c.turn, c)
		b.serveLocked()
		return nil
	case granted && b.reserve.size > 0:
		return nil
	}
	return b.heldLocked(c, holds, reserved)
}

func (b *ledger) heldLocked(c *claim, holds, reserved int64) error {
	b.stats.HeldAndWait++
	return &HoldAndWaitError{Owner: c.owner.name, Need: c.bytes, Holds: holds, Reserve: reserved}
}

// ungrantLocked takes back what a set was granted that has not begun.
func (b *ledger) ungrantLocked(c *claim) {
	c.pending.unmakeLocked(-c.bytes)
	c.from.held -= c.left
	if c.counted {
		b.tokens -= c.open
	}
	c.held.Leave()
	c.own.Leave()
	c.left, c.open, c.counted, c.since, c.state = 0, 0, false, b.cfg.Now(), claimWaiting
}
