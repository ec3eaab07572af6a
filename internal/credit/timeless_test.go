package credit

import (
	"testing"
	"time"
)

// A user passes no time where none is needed: the account must not depend on it.
func TestTimelessMessagesDoNotNeedTheTime(t *testing.T) {
	const window = 16
	seen := map[bool]int{}
	for granted := range uint32(window + 1) {
		for taken := range granted + 1 {
			for k := range 4 {
				s := Sender{cfg: &Config{Window: window}, epoch: 1, granted: granted, taken: taken, window: uint16(granted), want: 4, asked: k < 2}
				takes := k % 2
				early, late := s, s
				early.sendAt(0, takes)
				late.sendAt(time.Hour, takes)
				timeless := s.Timeless(takes)
				if seen[timeless]++; timeless != (early == late) {
					t.Errorf("with %d credits of %d, of which it takes %d: %+v at one time, %+v at another", s.Balance(), granted, takes, early, late)
				}
			}
		}
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("the time is needed: %v", seen)
	}
}

// sendAt fills the header of a request, or of a reply, which takes no credit.
func (s *Sender) sendAt(now time.Duration, takes int) (h Header) {
	if takes > 0 {
		_, _ = s.Take(now)
	}
	s.Fill(&h, now)
	return h
}
