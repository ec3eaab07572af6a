package shm

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
)

// sleeper is what an endpoint needs to sleep and to be woken.
//
// No wake-up is lost: the sleeper sets a flag (asleep for this process, armed in the
// region for the peers) and then looks once more; the waking side brings something and then
// looks at the flag. All four are sequentially consistent.
type sleeper struct {
	woken  chan struct{} // holds one wake-up
	asleep atomic.Bool
	timer  *time.Timer

	alarms fabric.Alarms

	sendWakeTo func(fd uintptr) bool
}

func (s *sleeper) open(endpoint int) {
	s.woken = make(chan struct{}, 1)
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	b := packet{kind: kindWake, endpoint: uint32(endpoint)}.encode()
	s.sendWakeTo = func(fd uintptr) bool {
		_ = unix.Send(int(fd), b[:], unix.MSG_DONTWAIT)
		return true
	}
}

// Wake ends a Wait.
func (s *sleeper) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// wakeIfAsleep ends a Wait that sleeps.
func (s *sleeper) wakeIfAsleep() {
	if s.asleep.Load() {
		s.Wake()
	}
}
