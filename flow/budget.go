package flow

import (
	"context"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/lockrank"
	"github.com/ibconduit/conduit/internal/queue"
)

// Budget bounds the transient memory of a rank's communication: the data of fetch sets, granted
// payloads, buffers of collectives. The package documentation says how. All methods may be called
// from any goroutine; only those with a context wait.
type Budget struct {
	mu lockrank.Mutex // of the ledger, and of claims, owners and offers
	ledger
	control *controller // nil: the limit does not adapt
}

// ledger is the accounts of a Budget: where the bytes are, and which claims wait. Its methods are
// called under the budget's lock.
type ledger struct {
	cfg budgetConfig // does not change

	limit       int64 // M_C
	bulk        pool  // of all claims
	small       pool  // of claims of at most SmallMax
	reserve     pool  // beyond the limit, of owners that hold and wait
	unscheduled pool  // of payloads that came unasked

	queue   queue.List[claim] // for bulk: the one order of all claims
	smalls  queue.List[claim] // the claims of the queue that may use small
	nested  queue.List[claim] // for the reserve; not in queue
	placing queue.List[claim] // granted, and waiting for a place in a region, in the order of asking
	holders queue.List[claim] // those granted, the oldest first
	offers  offers
	due     []*Offer // granted, to be reported when the lock is free
	plain   plain    // what Acquire took
	unasked map[int]*unasked
	posted  uint64 // claims
	tokens  int    // held, of BudgetConfig.Messages
	unmade  int64  // bytes of the limit that sets were granted, and have no memory yet

	closed error
	waited bool  // a claim had to wait since the last Observe
	recent int64 // the most bytes held at once since the last Observe
	stats  BudgetStats
}

// pool is a part of the memory. Less than nothing is free after its size fell below the bytes
// held; then claims wait until those have come back.
type pool struct{ size, held int64 }

func (p *pool) fits(n int64) bool { return n == 0 || n <= p.size-p.held }

// plain is the account of Acquire and Release, which name no claim.
type plain struct {
	bulk, small int64
}

// NewBudget makes a budget, or says with figures why its configuration makes no sense.
func NewBudget(c BudgetConfig, s Surroundings) (*Budget, error) {
	cfg, err := budgetConfig{c, s}.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Budget{ledger: ledger{cfg: cfg, unasked: map[int]*unasked{}}}
	b.mu.Init(lockrank.Limit, 0)
	b.small.size, b.unscheduled.size, b.reserve.size = cfg.Small, cfg.Unscheduled, cfg.Reserve
	b.offers.init()
	limit := cfg.Limit
	if cfg.Adapt != nil {
		b.control = newController(*cfg.Adapt)
		ceiling, _ := cfg.Adapt.first(cfg.Memory)
		limit = max(ceiling, cfg.Adapt.Floor)
	}
	b.setLimitLocked(limit)
	return b, nil
}

// Largest is the most bytes that one set, payload or Acquire may have. It does not change.
func (b *Budget) Largest() int64 { return b.cfg.largest() }

func (c *budgetConfig) largest() int64 { return c.floor() - c.Small - c.Unscheduled }

// floor is the least that the limit is.
func (c *budgetConfig) floor() int64 {
	if c.Adapt != nil {
		return c.Adapt.Floor
	}
	return c.Limit
}

// Least is how much memory the budget needs: its limit, of one that adapts the floor, and the
// reserve. It does not change.
func (b *Budget) Least() int64 { return b.cfg.floor() + b.cfg.Reserve }

// Room is how many bytes a set could have now without waiting; 0 while others wait, or without a
// token for a message. It is a hint for the pace of a collective.
func (b *Budget) Room() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queue.Len() > 0 || !b.fitsLocked(1, 1) {
		return 0
	}
	return max(b.bulk.size-b.bulk.held, 0)
}

// BufferLimit is how much memory the data of sets and granted payloads may have now, in bytes: the
// limit, and bytes held of the reserve, less those that Acquire and payloads that came unasked
// hold.
func (b *Budget) BufferLimit() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.limit+b.reserve.held-b.plain.bulk-b.plain.small-b.unscheduled.held, 0)
}

// Acquire waits until n bytes may be used: 0 to Largest. It takes its turn among the sets. An error
// is a *SetTooLargeError, ErrBudgetClosed, or a *MemoryStallError that wraps the cause of ctx.
//
// Its caller has no name here: whether it holds other bytes meanwhile is not checked. It must not.
func (b *Budget) Acquire(ctx context.Context, n int64) error {
	lockrank.MustHoldNone("flow: Budget.Acquire")
	b.mu.Lock()
	if err := b.refusalLocked(n, 1); err != nil {
		b.mu.Unlock()
		return err
	}
	if from := b.atOnceLocked(n, 0); from != nil {
		b.takeLocked(from, n)
		b.plain.add(&b.ledger, from, n)
		b.mu.Unlock()
		return nil
	}
	c := &claim{bytes: n, plain: true, parker: b.cfg.NewParker()}
	b.enqueueLocked(c)
	b.mu.Unlock()
	return b.await(ctx, c)
}

func (p *plain) add(b *ledger, from *pool, n int64) {
	if from == &b.small {
		p.small += n
	} else {
		p.bulk += n
	}
}

// Release gives back n bytes of those acquired, in any portions. It panics if there are fewer:
// then something was released twice.
func (b *Budget) Release(n int64) {
	b.mu.Lock()
	if n < 0 || n > b.plain.bulk+b.plain.small {
		acquired := b.plain.bulk + b.plain.small
		b.mu.Unlock()
		panic(fmt.Sprintf("flow: Release of %d bytes, and %d are acquired", n, acquired))
	}
	// Bytes of the bulk first, whichever claim took them: the head of the queue waits for nothing
	// else.
	bulk := min(n, b.plain.bulk)
	b.plain.bulk -= bulk
	b.plain.small -= n - bulk
	b.bulk.held -= bulk
	b.small.held -= n - bulk
	b.serveLocked()
	b.unlock()
}

// SetLimit changes M_C. Bytes that are held stay so; while they exceed the limit nothing is
// granted. A limit below the floor, which for a budget that does not adapt is its first limit, is
// refused: a set that was admitted could wait for ever. So is one above the memory that there was
// at the start.
func (b *Budget) SetLimit(limit int64) error {
	floor := b.Largest() + b.cfg.Small + b.cfg.Unscheduled
	if limit < floor || limit > 1<<62 {
		asked, least := twoTexts(limit, floor)
		return fmt.Errorf("flow: a limit of %s: choose from %s, which sets may need at once, to 2^62 bytes", asked, least)
	}
	if err := b.cfg.exceeds(limit); err != nil {
		return err
	}
	b.mu.Lock()
	b.setLimitLocked(limit)
	b.unlock()
	return nil
}

func (b *ledger) setLimitLocked(limit int64) {
	b.limit = limit
	b.bulk.size = limit - b.small.size - b.unscheduled.size
	b.serveLocked()
}

// Close ends all waits with ErrBudgetClosed, also of sets for a place in a region, and refuses
// new ones. Bytes that are held can still be given back. A second Close does nothing.
func (b *Budget) Close() {
	b.mu.Lock()
	defer b.unlock()
	if b.closed != nil {
		return
	}
	b.closed = ErrBudgetClosed
	b.offers.drop(&b.ledger, b.closed)
	for _, l := range []*queue.List[claim]{&b.queue, &b.nested} {
		for c := l.First(); c != nil; c = l.First() {
			b.endLocked(c, b.closed)
		}
	}
	for c := b.placing.First(); c != nil; c = c.turn.Next() {
		if c.pending != nil {
			c.pending.parker.Unpark() // Test ends it
		}
	}
}

// unlock gives the lock back, and then reports the grants that were made under it.
func (b *Budget) unlock() {
	due := b.due
	b.due = nil
	b.mu.Unlock()
	for _, o := range due {
		o.report()
	}
}

// BudgetStats is where the bytes of a budget are, and what has happened. Counts are totals.
//
//	Bulk + Small + Unscheduled = held of the limit
//	Acquired + Leased + Offered = Bulk + Small + Reserve
type BudgetStats struct {
	Limit       int64 `metric:"memory_limit_bytes The budget of transient memory, M_C."`
	Bulk        int64 // held by claims, in bytes
	Small       int64 // held by small claims that passed the queue
	Unscheduled int64 `metric:"memory_held_bytes{by=unasked} Bytes of the budget that are held, those of the reserve too."`
	Reserve     int64 `metric:"memory_reserve_held_bytes Bytes held beyond the limit by owners that hold and wait."`
	Peak        int64 `metric:"memory_peak_bytes The most bytes of the limit that were held at once."`
	PeakReserve int64

	Messages int // fetches and payloads that hold bytes, if there is a limit of them

	Acquired int64 `metric:"memory_held_bytes{by=acquire}"`
	Leased   int64 `metric:"memory_held_bytes{by=sets}"`
	Offered  int64 `metric:"memory_held_bytes{by=payloads}"` // of granted ones

	Waiting      int           `metric:"memory_waiting Claims that wait for bytes, the reserve, or a place in a region."`
	WaitingBytes int64         `metric:"memory_waiting_bytes Bytes that fetch sets wait for."`
	HeadAge      time.Duration `metric:"memory_head_age_seconds For how long the first claim has waited."`

	Granted     uint64 `metric:"memory_claims_total Claims that were granted."`
	Queued      uint64 `metric:"memory_queued_total Claims that had to wait."`
	Passed      uint64 `metric:"memory_passed_total Small claims that were granted while larger ones waited."`
	Cancelled   uint64 `metric:"memory_cancelled_total Claims that ended before they were granted."`
	HeldAndWait uint64 `metric:"memory_hold_and_wait_total Waits that were refused as their owner held memory."`
	FromReserve uint64 `metric:"memory_from_reserve_total Claims that the reserve served."`
	TooLarge    uint64 `metric:"memory_too_large_total Claims that were refused as larger than the budget ever is."`
	Increases   uint64 `metric:"memory_increases_total Times that the limit was raised."`
	Decreases   uint64 `metric:"memory_decreases_total Times that the limit was lowered."`
}

// Stats is a consistent view.
func (b *Budget) Stats() BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Limit, s.Bulk, s.Small, s.Unscheduled, s.Reserve = b.limit, b.bulk.held, b.small.held,
		b.unscheduled.held, b.reserve.held
	s.Messages = b.tokens
	s.Acquired = b.plain.bulk + b.plain.small
	for c := b.holders.First(); c != nil; c = c.held.Next() {
		if c.offer != nil {
			s.Offered += c.left
		} else {
			s.Leased += c.left
		}
	}
	s.Waiting = b.waitingLocked()
	for c := b.queue.First(); c != nil; c = c.turn.Next() {
		s.WaitingBytes += c.bytes
	}
	if c := b.firstLocked(); c != nil {
		s.HeadAge = b.cfg.Now() - c.since
	}
	return s
}
