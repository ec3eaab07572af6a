package credit

import (
	"fmt"
	"time"
)

// Sender is one end's account for messages to one peer: its balance is the credits that the
// peer granted and no message has taken. See the package comment.
//
// Its owner serialises all calls; different peers' Senders are independent.
type Sender struct {
	cfg *Config

	// Totals of the connection; balance = granted - taken - returned.
	granted  uint32 // of what has arrived here
	taken    uint32
	returned uint32
	seen     uint32 // the peer's Recall that was acted upon

	epoch uint32 // 0: no connection
	last  uint32 // the number of the last connection
	peer  int32

	window uint16 // the balance after the last change by the peer: the thresholds are shares of it
	want   uint16 // how many credits this end would like to hold
	asks   uint8  // questions since the last grant

	dry    bool // Take has failed since the last grant
	keep   bool // the last grant came when credits were wanted, and none was taken yet
	asked  bool // an answer to a message or a question is due
	answer bool // the peer waits for ours

	before filled // the last Fill

	dryAt   time.Duration // of the first failure
	grantAt time.Duration // when the last grant arrived
	askedAt time.Duration // of the last question

	stats SenderStats
}

// filled is what Fill changes, for a message that is not sent after all.
type filled struct {
	want          uint16
	asked, answer bool
}

// SenderStats count over all connections.
type SenderStats struct {
	Taken    uint64 // credits that messages took, less those cancelled
	Dry      uint64 // how often the balance was found to be 0, once a grant
	Asks     uint64 // control messages with questions
	Returned uint64 // credits given back on a recall
	Lost     uint64 // unused credits that ended with their connection
	Stale    uint64 // headers of other connections, ignored
}

// NewSenderConfig checks the configuration and fills in the defaults, for any
// number of NewSender. Credits is the size of the peers' pools.
func NewSenderConfig(c Config, credits int) (*Config, error) {
	c, err := c.withDefaults(credits)
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// NewSender returns the account for messages to a peer, without a connection.
func NewSender(peer int, cfg *Config) *Sender { return &Sender{cfg: cfg, peer: int32(peer)} }

// Open begins a connection: no credit yet. Credits of an earlier one are lost.
// Its number is the one that the peer's Pool has, greater than all before; the first is 1.
func (s *Sender) Open(epoch uint32) error { return s.openAt(epoch, 0) }

// openAt starts the totals somewhere else than at 0, which tests of their wrap-around use.
func (s *Sender) openAt(epoch, origin uint32) error {
	if epoch == 0 || ahead(epoch, s.last) <= 0 {
		return fmt.Errorf("credit: open connection %d to peer %d after connection %d: numbers grow from 1",
			epoch, s.peer, s.last)
	}
	s.Close()
	*s = Sender{cfg: s.cfg, peer: s.peer, epoch: epoch, last: epoch, stats: s.stats}
	s.granted, s.returned, s.seen = origin, origin, origin
	s.want = uint16(min(firstWant, s.cfg.Window))
	return nil
}

// Close ends the connection, also at the peer's death, and returns how many unused
// credits ended with it. A second Close returns 0. The peer's Pool has its own account:
// there all credits of the connection come back with its Close.
func (s *Sender) Close() int {
	if s.epoch == 0 {
		return 0
	}
	lost := s.Balance()
	s.epoch, s.granted, s.taken, s.returned = 0, 0, 0, 0
	s.dry, s.keep, s.asked, s.answer = false, false, false, false
	s.stats.Lost += uint64(lost)
	return lost
}

// Epoch is the connection's number, 0 without one.
func (s *Sender) Epoch() uint32 { return s.epoch }

// Balance is how many messages may be sent now.
func (s *Sender) Balance() int { return int(s.granted - s.taken - s.returned) }

// Stats are the counters.
func (s *Sender) Stats() SenderStats { return s.stats }

// recall gives back the recalled credits that are unused. Credits that messages took
// come back to the peer's pool with them. One credit stays for a while if a message
// waits for it here: where messages travel for longer than RecallAfter, a grant and
// its recall arrive together, and no message would ever be sent: 40 senders with 3 credits
// sent none in 2000 rounds.
func (s *Sender) recall(h *Header, now time.Duration) {
	if d := ahead(h.Recall, s.seen); d > 0 {
		back := min(d, s.Balance())
		if s.keep && now-s.grantAt < s.cfg.RecallAfter {
			back = min(d, s.Balance()-1)
		}
		s.returned += uint32(back)
		s.seen = h.Recall
		s.window = uint16(s.Balance())
		s.want = max(1, s.want/2)
		s.stats.Returned += uint64(back)
		s.answer = true
	} else if d == 0 && h.Answer {
		s.answer = true // the last answer did not arrive
	}
}

// Asks reports whether a control message to the peer is due: an answer that it awaits,
// or a question because credits ran out. Make it with FillControl.
func (s *Sender) Asks(now time.Duration) bool {
	if s.answer {
		return true
	}
	at, ok := s.Due()
	return ok && now >= at
}

// ControlPending reports whether a control message is due now or will be by the passing of time.
func (s *Sender) ControlPending() bool { return s.answer || s.dry && s.epoch != 0 }

// Due is when the passing of time next makes a control message due, if ever.
func (s *Sender) Due() (at time.Duration, ok bool) {
	switch {
	case s.epoch == 0 || !s.dry:
		return 0, false
	case !s.asked:
		return s.dryAt, true
	}
	return s.askedAt + s.cfg.Retry<<min(s.asks, maxBackoff), true
}

// FillControl is Fill for a control message, which carries everything: returned credits
// may be awaited by the peer.
func (s *Sender) FillControl(h *Header, now time.Duration) {
	at, due := s.Due()
	s.fillReturned(h)
	h.Extended = true
	if s.dry {
		h.Want = s.want
	}
	if due && now >= at { // not in every one, or two ends would answer one another for ever
		h.Answer = true
		s.asked, s.askedAt = true, now
		s.asks = min(s.asks+1, 250)
		s.stats.Asks++
	}
}

// fillReturned writes the total given back; in the long form when the peer waits for it.
func (s *Sender) fillReturned(h *Header) {
	h.Epoch, h.Returned, h.Seen = uint16(s.epoch), s.returned, s.seen
	h.Extended = h.Extended || s.answer
	s.answer = false
}

// Explain is why Take fails, in detail.
func (s *Sender) Explain(now time.Duration) error {
	if s.epoch == 0 {
		return fmt.Errorf("peer %d: %w", s.peer, ErrNotOpen)
	}
	e := &NoCreditError{Peer: int(s.peer), Epoch: s.epoch, Granted: s.granted, Used: s.taken, Back: s.returned,
		Asked: -1, Asks: int(s.asks)}
	if s.dry {
		e.For = now - s.dryAt
	}
	if s.asked {
		e.Asked = now - s.askedAt
	}
	return e
}
