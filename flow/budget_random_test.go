package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ibconduit/conduit/internal/parttest"
)

// budgetSteps is how many steps random schedules of budgets take.
func budgetSteps() int { return cmp.Or(*steps, parttest.Of(1_000_000)) }

// budgetWorlds are configurations in which everything is scarce.
var budgetWorlds = []budgetConfig{
	{BudgetConfig: BudgetConfig{Limit: 100, Small: -1}},
	{BudgetConfig{Limit: 400, Small: 40, SmallMax: 10, Unscheduled: 32}, Surroundings{Peers: worldRanks}},
	{BudgetConfig: BudgetConfig{Limit: 300, Small: 30, SmallMax: 30, Reserve: -1}},
	{BudgetConfig: BudgetConfig{Limit: 300, Small: 30, SmallMax: 10, Messages: 4, Reserve: 100}},
	{BudgetConfig{Limit: 64, Small: 8, SmallMax: 2, Unscheduled: 16, Reserve: 20}, Surroundings{Peers: 4}},
}

const (
	worldOwners = 4
	worldRanks  = 4
)

var errTransfer = errors.New("the transfer failed")

// budgetWorld is a budget, all that uses it, and what must be true of it.
type budgetWorld struct {
	rng     *rand.Rand
	clock   clock
	b       *Budget
	owners  []*Owner // the last is none
	ended   context.Context
	waits   []*Pending // posted; no lease yet
	order   []*Pending // those that are not small, and not granted yet, as posted
	leases  []*Lease
	fakes   []*memory // started, not ended
	offers  []*Offer
	granted map[*Offer]bool
	asked   map[int][]*Offer // of each rank, not small, not granted, as offered
	plain   int64
	unasked [worldRanks]int64
	senders [worldRanks]*UnaskedSender
	used    int64 // memory that fetches have
	before  int64 // bulk bytes held before the step
	most    int64 // the highest limit so far
	counts  struct{ posted, tooLarge, granted, leases, failed, nested, refused, offers, resized, downs, unasked int }
}

// memory is a fetch that counts the memory it has.
type memory struct {
	fake
	w *budgetWorld
}

func (f *memory) Start(ended func(error)) {
	f.w.used += f.bytes
	f.w.fakes = append(f.w.fakes, f)
	f.fake.Start(ended)
}

func (f *memory) Free() {
	f.w.used -= f.bytes
	f.fake.Free()
}

func newBudgetWorld(seed uint64, cfg budgetConfig) (*budgetWorld, error) {
	w := &budgetWorld{rng: rand.New(rand.NewPCG(seed, uint64(cfg.Limit))), granted: map[*Offer]bool{}, asked: map[int][]*Offer{}}
	cfg.Now = w.clock.read
	var err error
	if w.b, err = NewBudget(cfg.BudgetConfig, cfg.Surroundings); err != nil {
		return nil, err
	}
	for i := range worldOwners {
		w.owners = append(w.owners, w.b.NewOwner(fmt.Sprintf("owner %d", i), nil))
	}
	w.owners = append(w.owners, nil)
	for i := range w.senders {
		w.senders[i] = NewUnaskedSender(w.b.Allowance())
	}
	var cancel context.CancelFunc
	w.ended, cancel = context.WithCancel(context.Background())
	cancel()
	return w, nil
}

// pick is a random element's index.
func pick[T any](w *budgetWorld, of []T) int { return w.rng.IntN(len(of)) }

func remove[T any](of *[]T, i int) (v T) {
	v = (*of)[i]
	*of = slices.Delete(*of, i, i+1)
	return v
}

// size is mostly small, sometimes as much as fits, seldom more.
func (w *budgetWorld) size() int64 {
	most := w.b.Largest()
	switch w.rng.IntN(12) {
	case 0:
		return most
	case 1:
		return w.rng.Int64N(most + most/8 + 2)
	case 2:
		return 0
	}
	return w.rng.Int64N(most/4 + 1)
}

// step does one random thing.
func (w *budgetWorld) step() error {
	w.clock.now++
	w.before = w.b.Stats().Bulk
	limit := w.b.Stats().Limit
	switch k := w.rng.IntN(22); {
	case k < 5 && len(w.waits) < 24:
		if err := w.post(); err != nil {
			return err
		}
	case k < 8 && len(w.waits) > 0:
		if err := w.test(pick(w, w.waits)); err != nil {
			return err
		}
	case k < 11 && len(w.fakes) > 0:
		w.end(pick(w, w.fakes))
	case k < 13 && len(w.leases) > 0:
		w.release()
	case k == 13 && len(w.waits) > 0:
		w.giveUp(pick(w, w.waits))
	case k < 16 && len(w.offers) < 16:
		if err := w.offer(); err != nil {
			return err
		}
	case k < 18 && len(w.offers) > 0:
		o := remove(&w.offers, pick(w, w.offers))
		o.Release()
		o.Release()
		w.asked[o.Rank()] = slices.DeleteFunc(w.asked[o.Rank()], func(x *Offer) bool { return x == o })
	case k == 18:
		if err := w.acquire(); err != nil {
			return err
		}
	case k == 19 && w.rng.IntN(8) == 0:
		w.counts.resized++
		floor := w.b.cfg.Limit
		if err := w.b.SetLimit(floor + w.rng.Int64N(floor)); err != nil {
			return err
		}
		limit = w.b.Stats().Limit
	case k == 20 && w.rng.IntN(8) == 0:
		w.down(w.rng.IntN(worldRanks))
	case k == 21:
		if err := w.unask(w.rng.IntN(worldRanks)); err != nil {
			return err
		}
	}
	return w.check(limit)
}

func (w *budgetWorld) post() error {
	o := w.owners[pick(w, w.owners)]
	s := w.b.NewFetchSet()
	if o != nil {
		s = o.NewFetchSet()
	}
	if w.rng.IntN(3) == 0 {
		s.Placed()
	}
	for range 1 + w.rng.IntN(3) {
		s.Fetch(&memory{fake{rank: w.rng.IntN(worldRanks), bytes: w.size() / int64(1+w.rng.IntN(3))}, w})
	}
	p, err := s.Post()
	if large := s.Bytes() > w.b.Largest(); large != errors.Is(err, ErrSetTooLarge) || err != nil && !large {
		return fmt.Errorf("a set of %d bytes: %v", s.Bytes(), err)
	}
	if err != nil {
		w.counts.tooLarge++
		return nil
	}
	w.counts.posted++
	w.waits = append(w.waits, p)
	if !p.Granted() && !w.b.isSmall(p.bytes) {
		w.order = append(w.order, p)
	}
	return nil
}

// test goes on with a set, as a goroutine does that waits.
func (w *budgetWorld) test(i int) error {
	p, b := w.waits[i], w.b
	b.mu.Lock()
	others, reserve := p.owner.before(&p.claim, p.state == claimWaiting)
	reserved := reserve == 0 && p.bytes <= b.reserve.size
	waits := p.state == claimWaiting && p.turn.In() != &b.nested || p.state == claimGranted && p.placed && !p.starting && reserved
	b.mu.Unlock()
	if waits && others > 0 {
		err := p.mayWait()
		if reserved {
			w.counts.nested++
		} else {
			w.counts.refused++
		}
		if reserved != (err == nil) {
			return fmt.Errorf("an owner with %d bytes waits for %d: %v", others, p.bytes, err)
		}
		w.order = slices.DeleteFunc(w.order, func(x *Pending) bool { return x == p })
	}
	l, err := p.Test()
	switch {
	case err != nil:
		w.counts.failed++
		w.gone(i)
	case l != nil:
		w.counts.leases++
		w.gone(i)
		w.leases = append(w.leases, l)
	case p.placed && p.starting:
		p.WaitsForPlace(w.rng.IntN(2) == 0)
	}
	return nil
}

// gone takes a set from those that wait.
func (w *budgetWorld) gone(i int) {
	p := remove(&w.waits, i)
	w.order = slices.DeleteFunc(w.order, func(x *Pending) bool { return x == p })
}

func (w *budgetWorld) end(i int) {
	f := remove(&w.fakes, i)
	var err error
	if w.rng.IntN(10) == 0 {
		err = errTransfer
	}
	f.ended(err)
}

func (w *budgetWorld) release() {
	i := pick(w, w.leases)
	switch l := w.leases[i]; w.rng.IntN(4) {
	case 0:
		l.ReleaseOne(w.rng.IntN(l.Len()))
	case 1:
		l.Handover(w.owners[pick(w, w.owners)])
	default:
		l.Release()
		if w.rng.IntN(8) > 0 { // else it is released again some time
			remove(&w.leases, i)
		}
	}
}

// giveUp ends a set by its caller, in one of the two ways.
func (w *budgetWorld) giveUp(i int) {
	if p := w.waits[i]; w.rng.IntN(2) == 0 {
		p.Cancel()
		p.Cancel()
	} else if l, _ := p.Wait(w.ended); l != nil {
		w.leases = append(w.leases, l)
	}
	w.gone(i)
}

func (w *budgetWorld) offer() error {
	rank, n := w.rng.IntN(worldRanks), w.size()
	o, err := w.b.Offer(rank, n, func(o *Offer) {
		if w.granted[o] {
			panic("granted twice")
		}
		w.granted[o] = true
		w.counts.offers++
		o.WaitsForPlace(w.rng.IntN(2) == 0)
	})
	if large := n > w.b.Largest(); large != (err != nil) {
		return fmt.Errorf("an offer of %d bytes: %v", n, err)
	}
	if err == nil {
		w.offers = append(w.offers, o)
		if !w.granted[o] {
			w.asked[rank] = append(w.asked[rank], o)
		}
	}
	return nil
}

func (w *budgetWorld) acquire() error {
	if w.plain > 0 && w.rng.IntN(2) == 0 {
		n := 1 + w.rng.Int64N(w.plain)
		w.plain -= n
		w.b.Release(n)
		return nil
	}
	n := w.size()
	err := w.b.Acquire(w.ended, n)
	var stall *MemoryStallError
	switch {
	case err == nil:
		w.plain += n
	case n > w.b.Largest() && errors.Is(err, ErrSetTooLarge), errors.As(err, &stall) && errors.Is(err, context.Canceled):
	default:
		return fmt.Errorf("acquire of %d: %w", n, err)
	}
	return nil
}

func (w *budgetWorld) down(rank int) {
	w.counts.downs++
	w.b.Down(rank, errTransfer)
	w.offers = slices.DeleteFunc(w.offers, func(o *Offer) bool {
		if o.Rank() == rank {
			o.Release() // as the transport tells of each
		}
		return o.Rank() == rank
	})
	w.asked[rank] = nil
	for i := len(w.fakes) - 1; i >= 0; i-- {
		if w.fakes[i].rank == rank {
			remove(&w.fakes, i).ended(errTransfer)
		}
	}
}

func (w *budgetWorld) unask(rank int) error {
	if has := w.unasked[rank]; has > 0 && w.rng.IntN(2) == 0 {
		n := 1 + w.rng.Int64N(has)
		w.unasked[rank] -= n
		return w.senders[rank].Consumed(rank, w.b.Consumed(rank, n))
	}
	if w.b.Allowance() == 0 {
		return nil
	}
	n := w.rng.Int64N(w.b.Allowance()) + 1
	if !w.senders[rank].Take(n) {
		if w.unasked[rank]+n <= w.b.Allowance() {
			return fmt.Errorf("a sender may not send %d of %d bytes, with %d there", n, w.b.Allowance(), w.unasked[rank])
		}
		return nil
	}
	w.counts.unasked++
	w.unasked[rank] += n
	return w.b.Unasked(rank, n)
}

// check looks at the accounts from outside and inside.
func (w *budgetWorld) check(limit int64) error {
	if err := w.b.Check(); err != nil {
		return err
	}
	s := w.b.Stats()
	// The parts that are set apart keep their size; below a limit that was lowered no bulk is granted.
	if bulk := limit - w.b.cfg.Small - w.b.cfg.Unscheduled; s.Bulk > w.before && s.Bulk > bulk {
		return fmt.Errorf("granted up to %d bytes of a bulk of %d", s.Bulk, bulk)
	}
	if w.most = max(w.most, limit); s.Peak > w.most {
		return fmt.Errorf("%d bytes were held, and the limit was never above %d", s.Peak, w.most)
	}
	if s.Acquired != w.plain || w.used > s.Leased || s.Acquired+s.Leased+s.Offered != s.Bulk+s.Small+s.Reserve {
		return fmt.Errorf("acquired %d, fetches have %d: %+v", w.plain, w.used, s)
	}
	// First in, first out: those that are granted were posted before those that are not.
	w.order = slices.DeleteFunc(w.order, func(p *Pending) bool { return p.state == claimOver })
	first := 0
	for first < len(w.order) && w.order[first].Granted() {
		first++
	}
	for _, p := range w.order[first:] {
		if p.Granted() {
			return errors.New("a set was granted before one that was posted earlier: order")
		}
	}
	w.counts.granted += first
	w.order = w.order[first:]
	for rank, offers := range w.asked {
		first := 0
		for first < len(offers) && w.granted[offers[first]] {
			first++
		}
		for _, o := range offers[first:] {
			if w.granted[o] {
				return fmt.Errorf("an offer of rank %d was granted before its earlier one: order", rank)
			}
		}
		w.asked[rank] = offers[first:]
	}
	return nil
}

// drain has all that holds bytes end. Everything that waits must then get its turn.
func (w *budgetWorld) drain() error {
	for round := 0; len(w.waits)+len(w.offers)+len(w.fakes)+len(w.leases) > 0; round++ {
		if round > 1000 {
			return fmt.Errorf("starved: %d sets and %d offers wait for ever: %v", len(w.waits), len(w.offers), w.b.Holders(nil))
		}
		for len(w.fakes) > 0 {
			remove(&w.fakes, 0).ended(nil)
		}
		for len(w.leases) > 0 {
			remove(&w.leases, 0).Release()
		}
		w.b.Release(w.plain)
		w.plain = 0
		for i := len(w.offers) - 1; i >= 0; i-- {
			if w.granted[w.offers[i]] {
				remove(&w.offers, i).Release()
			}
		}
		for i := len(w.waits) - 1; i >= 0; i-- {
			if err := w.test(i); err != nil {
				return err
			}
		}
	}
	clear(w.granted)
	clear(w.asked)
	if s := w.b.Stats(); held(w.b) != 0 || w.used != 0 || s.Waiting != 0 {
		return fmt.Errorf("at the end %d bytes are held, fetches have %d: %+v", held(w.b), w.used, s)
	}
	return w.b.Check()
}

func TestRandomBudgetsKeepTheAccounts(t *testing.T) {
	n := budgetSteps() / len(budgetWorlds)
	for i, cfg := range budgetWorlds {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			w, err := newBudgetWorld(*seed, cfg)
			if err != nil {
				t.Fatal(err)
			}
			for step := range n {
				if err = w.step(); err == nil && step%997 == 0 {
					err = w.drain()
				}
				if err != nil {
					t.Fatalf("seed %d, step %d: %v", *seed, step, err)
				}
			}
			if err := w.drain(); err != nil {
				t.Fatalf("seed %d: %v", *seed, err)
			}
			c, s := w.counts, w.b.Stats()
			t.Logf("%+v; %d queued, %d passed, %d from the reserve, peak %d", c, s.Queued, s.Passed, s.FromReserve, s.Peak)
			if c.tooLarge == 0 || c.granted == 0 || c.leases == 0 || c.failed == 0 || c.refused == 0 || c.offers == 0 || c.resized == 0 || c.downs == 0 {
				t.Error("something never happened")
			}
			if cfg.Reserve != 0 && (c.nested == 0 || s.FromReserve == 0) || cfg.Peers > 0 && c.unasked == 0 || cfg.Small > 0 && s.Passed == 0 {
				t.Error("something never happened in this world")
			}
		})
	}
}
