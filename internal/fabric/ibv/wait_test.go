//go:build linux && cgo

package ibv

import (
	"math"
	"testing"
	"time"
)

// "For ever" is written as the longest time there is; the next try would else be due all the time.
func TestTheLongestKeepaliveIsNeverDue(t *testing.T) {
	c := MessageConfig{Keepalive: math.MaxInt64}
	c.fill()
	if now := 1000 * time.Hour; now+c.Keepalive < now {
		t.Errorf("%v after %v is %v", c.Keepalive, now, now+c.Keepalive)
	}
}
