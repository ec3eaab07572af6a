package credit

import (
	"math"
	"testing"
	"time"
)

// "For ever" is written as the longest time there is; the sums must not wrap around.
func TestTheLongestTimesAreNeverDue(t *testing.T) {
	const now = 1000 * time.Hour
	c := Config{RecallAfter: math.MaxInt64, Retry: math.MaxInt64}
	cfg, err := NewSenderConfig(c, 4)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSender(1, cfg)
	if err := s.Open(1); err != nil {
		t.Fatal(err)
	}
	_, _ = s.Take(now)
	for range 2 * maxBackoff { // whatever it asks, it does not ask again
		s.FillControl(&Header{}, now)
		if s.Asks(now + time.Hour) {
			t.Error("it asks again after an hour")
		}
		s.asks++
	}
	p, err := NewPool(PoolConfig{Config: c, Peers: 2, Credits: 4})
	if err != nil {
		t.Fatal(err)
	}
	for peer := range 2 {
		if err := p.Open(peer, 1, now); err != nil {
			t.Fatal(err)
		}
		if err := p.Apply(peer, &Header{Epoch: 1, Want: 4, Answer: true}, now); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		if err := p.Arrived(0, 1, now); err != nil {
			break
		}
	}
	if at, ok := p.Due(); ok && at < now+time.Hour {
		t.Errorf("a recall is due at %v, it is %v", at, now)
	}
}
