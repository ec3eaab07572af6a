package credit

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestGrantWithItsRecallLetsASenderSend(t *testing.T) {
	e := connect(t, PoolConfig{Peers: 3, Credits: 1, Config: Config{Initial: -1, RecallAfter: 10}})
	must(t, e.pool.Open(2, 1, 0))
	e.sender.Take(0)
	e.fromSender(0)
	must(t, e.pool.Apply(2, &Header{Epoch: 1, Want: 1}, 0)) // another one waits
	e.pool.Tick(50)                                         // the grant is still on its way, which took 50
	h := e.fromPool(50)
	if h.Granted != 1 || h.Recall != 1 {
		t.Fatalf("header %+v, want grant and recall in one", h)
	}
	if e.sender.Balance() != 1 {
		t.Fatal("given back before its use: with such a network no message is ever sent")
	}
	e.fromSender(50)
	// It was not used.
	e.pool.Tick(100)
	e.fromPool(100)
	if e.sender.Balance() != 0 {
		t.Error("kept for ever")
	}
	e.fromSender(100)
	holds(t, e.pool, 2, 1)
}

func TestUnusedCreditsAreRecalledForTheStarved(t *testing.T) {
	p := openPool(t, PoolConfig{Peers: 4, Credits: 4, Config: Config{Initial: -1, RecallAfter: 10, Retry: 20}})
	must(t, p.Apply(1, &Header{Epoch: 1, Want: 4}, 0))
	must(t, p.Apply(2, &Header{Epoch: 1, Want: 1}, 3))
	if _, ok := p.NextControl(); ok {
		t.Error("something is due before its time")
	}
	if at, ok := p.Due(); !ok || at != 10 {
		t.Errorf("due at %v (%v), want 10", at, ok)
	}
	p.Tick(10)
	peer, ok := p.NextControl()
	var h Header
	p.Fill(peer, &h, 10)
	if !ok || peer != 1 || h.Recall != 4 || !h.Extended || !h.Answer {
		t.Fatalf("told peer %d (%v): %+v, want a recall of 4 from peer 1", peer, ok, h)
	}
	if at, ok := p.Due(); !ok || at != 30 {
		t.Errorf("due at %v (%v), want the repetition at 30", at, ok)
	}
	p.Tick(30)
	if peer, ok := p.NextControl(); !ok || peer != 1 {
		t.Error("the recall was not repeated")
	}
	// It used 1 meanwhile and gives 3 back.
	must(t, p.Apply(1, &Header{Epoch: 1, Extended: true, Returned: 3, Seen: 4}, 31))
	holds(t, p, 1, 1)
	holds(t, p, 2, 1)
}

func TestBusyPeerIsAskedForItsExcess(t *testing.T) {
	p := openPool(t, PoolConfig{Peers: 4, Credits: 8, Config: Config{Initial: -1, RecallAfter: time.Hour}})
	must(t, p.Apply(1, &Header{Epoch: 1, Want: 8}, 0))
	p.free, p.bare = 0, p.free // the rest is in messages that are being posted again
	must(t, p.Apply(2, &Header{Epoch: 1, Want: 1}, 0))
	held := p.account(1).held()
	must(t, p.Arrived(1, 1, 1))
	a := p.account(1)
	if want := held - 1 - 8/2; !a.recalling() || int(a.counted) != want {
		t.Errorf("of %d credits %d are asked back, want %d", held-1, a.counted, want)
	}
}

func TestStarvedPeersComeBeforeWantingOnes(t *testing.T) {
	p := openPool(t, PoolConfig{Peers: 4, Credits: 4, Config: Config{Initial: -1, Window: 4}})
	must(t, p.Apply(1, &Header{Epoch: 1, Want: 3}, 0))
	must(t, p.Apply(2, &Header{Epoch: 1, Want: 1}, 0))
	must(t, p.Apply(1, &Header{Epoch: 1, Want: 4}, 1)) // wants more
	must(t, p.Apply(3, &Header{Epoch: 1, Want: 1}, 2)) // has none
	must(t, p.Arrived(1, 1, 3))
	must(t, p.Reposted(1, 3))
	holds(t, p, 1, 2)
	holds(t, p, 3, 1)
}

func TestReturnedCreditsAreSharedAndAnnounced(t *testing.T) {
	p := newPool(t, PoolConfig{Peers: 4, Credits: 8, Config: Config{Initial: -1, RecallAfter: time.Hour}})
	for peer := 1; peer < 4; peer++ {
		must(t, p.Open(peer, 1, 0))
		must(t, p.Apply(peer, &Header{Epoch: 1, Want: 8, Answer: true}, 0))
	}
	if peer, ok := p.NextControl(); !ok || peer != 1 {
		t.Fatalf("told peer %d (%v), want 1", peer, ok)
	}
	p.Fill(1, &Header{}, 0)
	if peer, ok := p.NextControl(); ok {
		t.Fatalf("peer %d is sent that there is nothing", peer)
	}
	p.Close(1, 0)
	holds(t, p, 2, 4)
	holds(t, p, 3, 4)
	for _, want := range []int{2, 3} {
		if peer, ok := p.NextControl(); !ok || peer != want {
			t.Errorf("told peer %d (%v), want %d", peer, ok, want)
		}
		p.Fill(want, &Header{}, 0)
	}
}

func TestUnansweredRecallLetsOthersBeAsked(t *testing.T) {
	p := newPool(t, PoolConfig{Peers: 4, Credits: 4, Config: Config{Initial: 2, RecallAfter: 10, Retry: 20}})
	must(t, errors.Join(p.Open(1, 1, 0), p.Open(2, 1, 1), p.Open(3, 1, 2)))
	must(t, p.Apply(2, &Header{Epoch: 1, Want: 2}, 2))
	must(t, p.Apply(3, &Header{Epoch: 1, Want: 1}, 2))
	p.Tick(20)
	if !p.account(1).recalling() || p.account(2).recalling() {
		t.Fatal("want a recall of peer 1 only")
	}
	p.Tick(40)
	if !p.account(2).recalling() {
		t.Error("peer 1 is waited for, for ever")
	}
}

func TestLostGrantIsRepeatedWhenAskedFor(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 2, Config: Config{Initial: -1}})
	e.sender.Take(0)
	e.fromSender(0)
	e.pool.Fill(1, &Header{}, 0) // lost
	if _, ok := e.pool.NextControl(); ok {
		t.Fatal("sent twice unasked")
	}
	now := e.sender.cfg.Retry * 2
	if !e.sender.Asks(now) {
		t.Fatal("does not ask again")
	}
	e.fromSender(now)
	if _, ok := e.pool.NextControl(); !ok {
		t.Fatal("no answer")
	}
	e.fromPool(now)
	if e.sender.Balance() == 0 {
		t.Error("still nothing")
	}
}

func TestLostAnswerToARecallIsRepeated(t *testing.T) {
	recalled := func() *ends {
		e := connect(t, PoolConfig{Credits: 4, Config: Config{Initial: 4}})
		e.fromPool(0)
		e.pool.recall(e.pool.account(1), 4, 0)
		e.fromPool(0)
		if !e.sender.Asks(0) {
			t.Fatal("no answer")
		}
		e.sender.FillControl(&Header{}, 0) // lost
		if e.sender.Asks(0) {
			t.Fatal("answers twice unasked")
		}
		return e
	}
	e := recalled()
	e.pool.repeatRecall(e.pool.account(1), 10)
	e.fromPool(10)
	if !e.sender.Asks(10) {
		t.Error("no answer to the repetition")
	}
	e.fromSender(10)
	holds(t, e.pool, 1, 0)
	// No other peer wants any, so the pool does not repeat. By its account the sender has
	// four; the sender has none and asks: that must set it right.
	e = recalled()
	e.sender.Take(10)
	e.fromSender(10)
	e.fromPool(10)
	if e.sender.Balance() == 0 {
		t.Error("the sender gets nothing, though all is free")
	}
}

func TestHoldersNameThosePeersThatHold(t *testing.T) {
	p := openPool(t, PoolConfig{Peers: 20, Credits: 12, Replies: 1, Config: Config{Initial: -1, RecallAfter: 100}})
	must(t, p.Apply(3, &Header{Epoch: 1, Want: 12}, 10))
	for peer := 5; peer < 15; peer++ {
		must(t, p.Apply(peer, &Header{Epoch: 1, Want: 2}, 20))
	}
	_, err := p.ReserveReply(7)
	must(t, err)
	p.Tick(200)
	h := p.Holders(nil, 200)
	if len(h) != 11 || h[0] != (Holder{Peer: 3, Credits: 12, Idle: 190, Recalled: true}) ||
		h[1] != (Holder{Peer: 7, Replies: 1, Idle: 200, Wants: 2, Waiting: 180}) {
		t.Fatalf("holders %+v", h)
	}
	s := p.Describe(200)
	for _, want := range []string{"0 of 12 credits free", "peer 3 holds 12 credits and 0 replies, idle for 190ns, does not answer the recall", "peer 7 holds 0 credits and 1 replies", "and 3 more peers"} {
		if !strings.Contains(s, want) {
			t.Errorf("%q does not say %q", s, want)
		}
	}
}

// Peers wanted more than there is, and now want nothing: each gives back what it is asked for. With
// its old want kept, that would be granted to it again when the next one gives back, without end.
func TestIdlePeersAreNotGrantedAndRecalledInTurn(t *testing.T) {
	const peers, credits = 3, 2
	p := newPool(t, PoolConfig{Peers: peers + 1, Credits: credits, Config: Config{Initial: -1, RecallAfter: 10, Retry: 20}})
	for peer := 1; peer <= peers; peer++ {
		must(t, p.Open(peer, 1, 0))
		must(t, p.Apply(peer, &Header{Epoch: 1, Want: credits}, 0))
	}
	var last [peers + 1]Header // of each
	for now := time.Duration(1); now < 1000; now++ {
		if now == 100 { // one of them has something to send again
			h := last[1]
			h.Want = 1
			must(t, p.Apply(1, &h, now))
		}
		p.Tick(now)
		for peer, ok := p.NextControl(); ok; peer, ok = p.NextControl() {
			var h Header
			p.Fill(peer, &h, now)
			last[peer] = Header{Epoch: 1, Extended: true, Returned: h.Granted, Seen: h.Recall}
			must(t, p.Apply(peer, &last[peer], now))
		}
	}
	if s := p.Stats(); s.Recalls != 2 {
		t.Errorf("%d recalls among idle peers, want one for each want that was not met: 2", s.Recalls)
	}
	holds(t, p, 1, 1)
	if at, ok := p.Due(); ok {
		t.Errorf("something is still due at %v", at)
	}
}

func TestUnsentHeaderIsFilledAgain(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 2, Config: Config{Initial: -1}})
	e.sender.Take(0)
	e.fromSender(0)
	var h Header
	if !e.pool.Fill(1, &h, 0) {
		t.Fatal("the grant that was asked for is not due")
	}
	if e.pool.Unsaid(1, &h); !due(e.pool, 1) {
		t.Error("the grant is not sent again")
	}
	e.fromPool(0)

	account := e.pool.account(1)
	e.pool.recall(account, 1, 0)
	h = Header{}
	e.pool.Fill(1, &h, 0)
	if e.pool.Unsaid(1, &h); !due(e.pool, 1) || !account.answer {
		t.Error("the recall is not made again")
	}
	e.fromPool(0)

	h = Header{}
	e.sender.Fill(&h, 0)
	if !h.Extended || e.sender.Asks(0) {
		t.Fatal("the message does not answer the recall")
	}
	if e.sender.Unsaid(&h); !e.sender.Asks(0) {
		t.Error("the recall is not answered again")
	}
}

// A want in a message that the network refuses does not reach the peer, however often it is tried.
func TestRefusedMessagesDoNotRaiseTheWant(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 64, Config: Config{Window: 64, Initial: 4}})
	e.fromPool(0)
	for e.sender.Balance() > 2 {
		_, err := e.sender.Take(0)
		must(t, err)
	}
	before := *e.sender
	for range 8 {
		epoch, err := e.sender.Take(0)
		must(t, err)
		var h Header
		e.sender.Fill(&h, 0)
		e.sender.Unsaid(&h)
		e.sender.Cancel(epoch)
	}
	if e.sender.want != before.want || e.sender.asked != before.asked || e.sender.answer != before.answer {
		t.Errorf("it wants %d, asked %v, answers %v; before the attempts %d, %v, %v", e.sender.want, e.sender.asked, e.sender.answer, before.want, before.asked, before.answer)
	}
}

func due(p *Pool, peer int) bool {
	rank, ok := p.NextControl()
	return ok && rank == peer
}
