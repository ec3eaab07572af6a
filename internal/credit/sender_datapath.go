package credit

import "time"

// Take takes the credit for one message and returns the connection's number, which
// Cancel wants. It fails with ErrNoCredit or ErrNotOpen and allocates nothing.
func (s *Sender) Take(now time.Duration) (epoch uint32, err error) {
	if s.granted-s.taken-s.returned == 0 {
		return 0, s.empty(now)
	}
	s.taken++
	s.keep = false
	s.stats.Taken++
	return s.epoch, nil
}

// Timeless reports whether neither Take nor Fill looks at the time, for a message that takes so
// many credits.
func (s *Sender) Timeless(takes int) bool {
	left := s.Balance() - takes
	return left >= 0 && (s.asked || left*hardShare > int(s.window))
}

// empty notes that a message waits for a credit: from then on a question is due.
func (s *Sender) empty(now time.Duration) error {
	if s.epoch == 0 {
		return ErrNotOpen
	}
	if !s.dry {
		s.dry, s.dryAt = true, now
		s.want = s.wider()
		s.stats.Dry++
	}
	return ErrNoCredit
}

func (s *Sender) wider() uint16 { return uint16(min(2*int(s.want), s.cfg.Window)) }

// Cancel puts back the credit of a message that was not sent after all. It reports
// false, and does nothing, if the connection is over: the credit ended with it.
func (s *Sender) Cancel(epoch uint32) bool {
	if epoch == 0 || epoch != s.epoch {
		return false
	}
	s.taken--
	s.stats.Taken--
	return true
}

// Unsaid undoes the last Fill, of h, if the message was not sent after all: the next header
// carries it again.
func (s *Sender) Unsaid(h *Header) {
	if s.epoch == 0 || h.Epoch != uint16(s.epoch) {
		return
	}
	s.want, s.asked, s.answer = s.before.want, s.before.asked, s.answer || s.before.answer
}

// Fill writes this end's part as a sender into the header of a message to the peer, after Take.
func (s *Sender) Fill(h *Header, now time.Duration) {
	s.before = filled{s.want, s.asked, s.answer}
	s.fillReturned(h)
	balance, window := int(s.granted-s.taken-s.returned), int(s.window)
	if balance*softShare > window {
		return
	}
	h.Want = s.want
	if balance*hardShare <= window && !s.asked {
		// The peer's messages brought no grant: a larger window means fewer answers.
		s.want = s.wider()
		h.Want, h.Answer = s.want, true
		s.asked, s.askedAt = true, now
	}
}

// Apply takes a header of the peer. It returns a *ViolationError, and takes nothing,
// if the peer grants more than the window or recalls more than it can have granted.
// Headers of other connections are counted and ignored.
func (s *Sender) Apply(h *Header, now time.Duration) error {
	if s.epoch == 0 || h.Epoch != uint16(s.epoch) {
		s.stats.Stale++
		return nil
	}
	if s.Knows(h) {
		return nil // as most messages have it
	}
	return s.apply(h, now)
}

// Knows reports whether a header of the connection says nothing new: Apply would change nothing.
func (s *Sender) Knows(h *Header) bool { return h.Granted == s.granted && !h.Extended }

// Known is the Word of a header of a connection that says nothing new, and wants nothing.
func (s *Sender) Known(epoch uint16) uint64 { return uint64(epoch)<<32 | uint64(s.granted) }

func (s *Sender) apply(h *Header, now time.Duration) error {
	more := ahead(h.Granted, s.granted)
	if room := s.cfg.Window - s.Balance(); more > 0 && more > room {
		return &ViolationError{int(s.peer), "granted beyond the window", uint32(more), uint32(room)}
	}
	if h.Extended {
		if d := ahead(h.Recall, s.seen); d > s.cfg.Window {
			return &ViolationError{int(s.peer), "asked back more than the window", uint32(d), uint32(s.cfg.Window)}
		}
	}
	if more > 0 {
		s.granted = h.Granted
		s.window = uint16(s.Balance())
		s.keep, s.grantAt = s.dry, now
		s.dry, s.asked, s.asks = false, false, 0
	}
	if h.Extended {
		s.recall(h, now)
	}
	return nil
}
