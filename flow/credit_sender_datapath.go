package flow

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

// Ample reports whether there are so many credits that neither Take nor Fill looks at the time.
func (s *Sender) Ample() bool { return (s.Balance()-1)*softShare > int(s.window) }

// empty notes that somebody wanted to send, which is what asks are made of.
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

// Unsaid is for the header that Fill has just written, if the message was not sent after all: what it told is to be told
// again.
func (s *Sender) Unsaid(h *Header) {
	if s.epoch == 0 || h.Epoch != uint16(s.epoch) {
		return
	}
	s.want, s.asked, s.answer = s.unsaid.want, s.unsaid.asked, s.answer || s.unsaid.answer
}

// Fill writes this end's wish into the header of a message to the peer, after Take.
func (s *Sender) Fill(h *Header, now time.Duration) {
	s.unsaid = wish{s.want, s.asked, s.answer}
	s.fillAnswer(h)
	balance, window := int(s.granted-s.taken-s.returned), int(s.window)
	if balance*softShare > window {
		return
	}
	h.Want = s.want
	if balance*hardShare <= window && !s.asked {
		// Nothing came back on the peer's messages: a larger window means fewer answers.
		s.want = s.wider()
		h.Want, h.Answer = s.want, true
		s.asked, s.askedAt = true, now
	}
}
