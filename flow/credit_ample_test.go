package flow

import (
	"testing"
	"time"
)

// A user with ample credits passes no time: the account must not depend on it.
func TestAmpleCreditsDoNotNeedTheTime(t *testing.T) {
	const window = 16
	ample := 0
	for granted := range uint32(window + 1) {
		for taken := range granted + 1 {
			s := Sender{cfg: &Config{Window: window}, epoch: 1, granted: granted, taken: taken, window: uint16(granted), want: 4}
			if !s.Ample() {
				continue
			}
			ample++
			early, late := s, s
			early.sendAt(0)
			late.sendAt(time.Hour)
			if early != late {
				t.Errorf("with %d credits of %d: %+v at one time, %+v at another", s.Balance(), granted, early, late)
			}
		}
	}
	if ample == 0 {
		t.Error("credits are never ample")
	}
}

// sendAt fills the header of a request, or of a reply if there is no credit.
func (s *Sender) sendAt(now time.Duration) (h Header) {
	_, _ = s.Take(now)
	s.Fill(&h, now)
	return h
}
