package credit

import (
	"errors"
	"math"
	"testing"
)

func TestHostilePeersAreNamedAndChangeNothing(t *testing.T) {
	e := connect(t, PoolConfig{Credits: 16, Config: Config{Initial: 4, Window: 8}})
	e.fromPool(0)
	for _, h := range []Header{
		{Epoch: 1, Extended: true, Returned: 5},
		{Epoch: 1, Extended: true, Returned: 1<<31 - 1},
		{Epoch: 1, Want: 8, Extended: true, Returned: 5},
	} {
		violates(t, e.pool.Apply(1, &h, 0), 1, "returned credits it never had")
	}
	violates(t, e.pool.Apply(1, &Header{Epoch: 1, Extended: true, Seen: 1}, 0), 1, "never made")
	if e.pool.account(1).held() != 4 || e.pool.account(1).target != 4 {
		t.Error("the pool's account has changed")
	}
	violates(t, e.sender.Apply(&Header{Epoch: 1, Granted: 9}, 0), 0, "granted beyond the window")
	violates(t, e.sender.Apply(&Header{Epoch: 1, Granted: 1<<31 - 1}, 0), 0, "granted beyond the window")
	violates(t, e.sender.Apply(&Header{Epoch: 1, Granted: 4, Extended: true, Recall: 9}, 0), 0, "asked back more")
	if e.sender.Balance() != 4 {
		t.Error("the balance has changed")
	}
	// Wants beyond the window are cut.
	must(t, e.pool.Apply(1, &Header{Epoch: 1, Want: MaxWindow}, 0))
	holds(t, e.pool, 1, 8)
	for _, peer := range []int{-1, 2, math.MaxInt} {
		if err := e.pool.Arrived(peer, 1, 0); !errors.Is(err, ErrStale) {
			t.Errorf("message of peer %d: %v", peer, err)
		}
		must(t, e.pool.Apply(peer, &Header{Epoch: 1, Want: 3}, 0))
		must(t, e.pool.Reposted(1, 0))
		if e.pool.Open(peer, 1, 0) == nil {
			t.Errorf("opened peer %d", peer)
		}
	}
}

// A message without a credit took a buffer that another one was promised. Until another is
// posted, no credit may be granted in its place.
func TestBufferWithoutCreditIsReplacedFirst(t *testing.T) {
	p := openPool(t, PoolConfig{Peers: 3, Credits: 2, Config: Config{Initial: -1}})
	must(t, p.Apply(2, &Header{Epoch: 1, Want: 1}, 0))
	violates(t, p.Arrived(1, 1, 0), 1, "without a credit")
	must(t, p.Apply(1, &Header{Epoch: 1, Want: 1}, 0))
	holds(t, p, 1, 0)
	must(t, p.Reposted(1, 0))
	if held := p.account(1).held(); held != 1 || p.Posted() != 2 {
		t.Errorf("%d granted after it was replaced, %d posted", held, p.Posted())
	}
}

// Others get what it does not, and its questions are answered: it must not take this end for dead.
func TestBarredPeerGetsNothingButAnAnswer(t *testing.T) {
	p := openPool(t, PoolConfig{Peers: 3, Credits: 8, Config: Config{Initial: 1, Window: 4}})
	p.Bar(1, true, 0)
	must(t, errors.Join(p.Arrived(1, 1, 0), p.Reposted(1, 0)))
	must(t, p.Apply(1, &Header{Epoch: 1, Want: 4, Answer: true}, 0))
	must(t, p.Apply(2, &Header{Epoch: 1, Want: 4}, 0))
	holds(t, p, 1, 0)
	holds(t, p, 2, 4)
	if peer, ok := p.NextControl(); peer != 1 || !ok {
		t.Error("its question has no answer")
	}
	must(t, p.Check())
	p.Bar(1, false, 0)
	holds(t, p, 1, 4)
	must(t, p.Check())
}
