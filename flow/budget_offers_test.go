package flow

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// offered has a rank offer a payload, whose grant is appended to a list.
func offered(t testing.TB, b *Budget, rank int, n int64, granted *[]*Offer) *Offer {
	t.Helper()
	o, err := b.Offer(rank, n, func(o *Offer) { *granted = append(*granted, o) })
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func ranksOf(offers []*Offer) (ranks []int) {
	for _, o := range offers {
		ranks = append(ranks, o.Rank())
	}
	return ranks
}

func TestOffersOfRanksTakeTurns(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	var granted []*Offer
	for range 3 {
		offered(t, b, 1, 10, &granted)
	}
	for rank := 2; rank < 4; rank++ {
		for range 2 {
			offered(t, b, rank, 10, &granted)
		}
	}
	for i := 0; i < len(granted); i++ {
		if granted[i].Bytes() != 10 || held(b) != 10 {
			t.Fatalf("%d held", held(b))
		}
		granted[i].Release()
	}
	if got := fmt.Sprint(ranksOf(granted)); got != "[1 2 3 1 2 3 1]" {
		t.Errorf("granted to %s", got)
	}
}

// Three ranks always have offers, of very different sizes: in bytes they get the same.
func TestBytesAreSharedWhateverTheSizes(t *testing.T) {
	b := newBudget(t, bulkOnly(64), Surroundings{})
	sizes := []int64{1, 8, 64}
	var granted []*Offer
	for rank, n := range sizes {
		for range 4096 / n {
			offered(t, b, rank, n, &granted)
		}
	}
	got := make([]int64, len(sizes))
	var total int64
	for i := 0; total < 6000; i++ {
		o := granted[i]
		got[o.Rank()] += o.Bytes()
		total += o.Bytes()
		o.Release()
	}
	for _, n := range got {
		if most := got[0] + 2*64; n > most || n < got[0]-2*64 {
			t.Errorf("bytes of each rank: %v", got)
			break
		}
	}
	b.Close()
	for _, o := range granted {
		o.Release()
	}
}

func TestAnIdleRankSavesNothingUp(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	var granted []*Offer
	for range 50 {
		offered(t, b, 1, 10, &granted)
	}
	for i := range 20 {
		granted[i].Release()
	}
	for range 10 {
		offered(t, b, 2, 10, &granted)
	}
	first := len(granted)
	for i := first - 1; i < first+9; i++ {
		granted[i].Release()
	}
	if got := fmt.Sprint(ranksOf(granted[first : first+6])); got != "[2 1 2 1 2 1]" {
		t.Errorf("granted to %s", got)
	}
	b.Down(1, errors.New("gone"))
	b.Down(2, errors.New("gone"))
	for _, o := range granted {
		o.Release()
	}
}

func TestOffersAndSetsHaveOneOrder(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	if err := b.Acquire(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	var granted []*Offer
	var sets []*Pending
	for range 3 {
		offered(t, b, 1, 10, &granted)
		p, _ := post(t, b.NewFetchSet(), 10)
		sets = append(sets, p)
	}
	withdrawn := offered(t, b, 2, 10, &granted)
	withdrawn.Release()
	b.Release(10)
	for i := range 3 {
		if len(granted) != i+1 || sets[i].Granted() {
			t.Fatalf("turn %d: %d offers granted", i, len(granted))
		}
		granted[i].Release()
		if !sets[i].Granted() {
			t.Fatalf("turn %d: the set waits", i)
		}
		sets[i].Cancel()
	}
}

func TestASmallOfferPasses(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 110, Small: 10, SmallMax: 5}, Surroundings{})
	var granted []*Offer
	first := offered(t, b, 1, 100, &granted)
	waits := offered(t, b, 2, 100, &granted)
	small := offered(t, b, 3, 5, &granted)
	behind := offered(t, b, 2, 5, &granted) // its rank's earlier one waits
	if fmt.Sprint(ranksOf(granted)) != "[1 3]" || b.Stats().Passed != 1 {
		t.Errorf("granted to %v", ranksOf(granted))
	}
	for _, o := range []*Offer{first, waits, behind, small} {
		o.Release()
	}
	if len(granted) != 4 || held(b) != 0 {
		t.Errorf("granted to %v, %d held", ranksOf(granted), held(b))
	}
}

func TestAWithdrawnOfferIsNotGranted(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	var granted []*Offer
	first := offered(t, b, 1, 10, &granted)
	second := offered(t, b, 1, 10, &granted)
	third, err := b.Offer(2, 0, func(o *Offer) { granted = append(granted, o); o.Release() })
	if err != nil || len(granted) != 2 {
		t.Fatalf("no bytes need no wait: %v, %d granted", err, len(granted))
	}
	second.Release()
	second.Release()
	first.Release()
	first.Release()
	third.Release()
	if len(granted) != 2 || held(b) != 0 || b.Stats().Cancelled != 1 {
		t.Errorf("%d granted, %d held", len(granted), held(b))
	}
}

func TestAnOfferTooLargeIsRefused(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	_, err := b.Offer(1, 11, nil)
	var e *SetTooLargeError
	if !errors.As(err, &e) || e.Need != 11 || e.Limit != 10 {
		t.Errorf("got %v", err)
	}
	if _, err := b.Offer(1, -1, nil); !errors.Is(err, ErrSetTooLarge) { // from the wire
		t.Errorf("got %v", err)
	}
}

// A grant that is given back within the report of another is served, too.
func TestAGrantMayBeGivenBackAtOnce(t *testing.T) {
	b := newBudget(t, bulkOnly(10), Surroundings{})
	n := 0
	var first []*Offer
	offered(t, b, 1, 10, &first)
	for range 100 {
		if _, err := b.Offer(1, 10, func(o *Offer) { n++; o.Release() }); err != nil {
			t.Fatal(err)
		}
	}
	first[0].Release()
	if n != 100 || held(b) != 0 {
		t.Errorf("%d granted, %d held", n, held(b))
	}
}

// Eight ranks send to one whose memory holds two payloads. None starves, and the memory is in use
// for as long as anything waits.
func TestIncastSharesTheMemory(t *testing.T) {
	const ranks, rounds = 8, 2000
	b := newBudget(t, bulkOnly(200), Surroundings{})
	rng := rand.New(rand.NewPCG(*seed, 8))
	var flying []*Offer
	var bytes [ranks]int64
	send := func(rank int) {
		if _, err := b.Offer(rank, 50+rng.Int64N(51), func(o *Offer) { flying = append(flying, o) }); err != nil {
			t.Fatal(err)
		}
	}
	for rank := range ranks {
		send(rank)
		send(rank)
	}
	for range rounds {
		if s := b.Stats(); s.Waiting > 0 && s.Bulk <= 100 {
			t.Fatalf("%d of 200 bytes are in use, and %d offers wait", s.Bulk, s.Waiting)
		}
		i := rng.IntN(len(flying))
		o := flying[i]
		flying = append(flying[:i], flying[i+1:]...)
		bytes[o.Rank()] += o.Bytes()
		o.Release()
		send(o.Rank()) // its sender has the next one ready
	}
	least, most := bytes[0], bytes[0]
	for _, n := range bytes {
		least, most = min(least, n), max(most, n)
	}
	// Start-time fair queueing: backlogged ranks differ by at most two payloads, and as much is in
	// flight.
	if most-least > 4*100+200 {
		t.Errorf("bytes of each rank: %v", bytes)
	}
	b.Close()
	for _, o := range flying {
		o.Release()
	}
}

func TestUnaskedPayloadsStayInTheAllowance(t *testing.T) {
	b := newBudget(t, BudgetConfig{Limit: 1000, Small: -1, Unscheduled: 400}, Surroundings{Peers: 4})
	s := NewUnaskedSender(b.Allowance())
	if b.Allowance() != 100 || !s.Take(60) || s.Take(41) || !s.Take(40) || s.Take(1) || s.Take(-1) {
		t.Fatal("an allowance of 100 bytes is not kept")
	}
	if err := errors.Join(b.Unasked(2, 60), b.Unasked(2, 40), b.Unasked(3, 100)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{1, -1, 1 << 40} {
		var e *ViolationError
		if err := b.Unasked(2, n); !errors.As(err, &e) || e.Peer != 2 {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if st := b.Stats(); st.Unscheduled != 200 || st.Peak != 200 {
		t.Errorf("%+v", st)
	}
	early := b.Consumed(2, 60)
	late := b.Consumed(2, 10)
	if err := errors.Join(s.Consumed(0, late), s.Consumed(0, early)); err != nil { // the wire reorders
		t.Fatal(err)
	}
	if !s.Take(70) || s.Take(1) {
		t.Error("what is consumed may be sent again, once")
	}
	if err := s.Consumed(0, 171); err == nil {
		t.Error("more was consumed than sent")
	}
	b.Down(2, errors.New("gone"))
	if b.Consumed(2, 30) != 100 || b.Stats().Unscheduled != 100 {
		t.Errorf("%+v", b.Stats())
	}
	for rank := 10; rank < 12; rank++ {
		if err := b.Unasked(rank, 100); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Unasked(13, 1); err == nil {
		t.Error("more ranks send than there are")
	}
	defer func() { mentions(t, fmt.Errorf("%v", recover()), "1 bytes of rank 10", "it has 0") }()
	b.Consumed(10, 100)
	b.Consumed(10, 1)
}
