package shm

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/owner"
)

// sleeper is what a port needs to sleep and to be woken.
//
// No wake-up is lost: who sleeps sets a flag (asleep for this process, armed in the
// ring for the peers) and then looks once more; who brings something brings it and then
// looks at the flag. All four are sequentially consistent.
type sleeper struct {
	bell       chan struct{} // holds one ring
	asleep     atomic.Bool
	timer      *time.Timer
	alarms     []time.Duration // sorted; with port.mu
	sendWakeTo func(fd uintptr) bool
}

const (
	// napMax bounds how long a port sleeps before it looks by itself: a peer may be
	// stopped, or killed, between its message and the wake-up.
	napMax = 250 * time.Millisecond
	// napStuck is the time between two tries of a message that met no slot.
	napStuck = time.Millisecond
)

// napLimit is napMax, but for the test that no wake-up is lost.
var napLimit = napMax

func (s *sleeper) open() {
	s.bell = make(chan struct{}, 1)
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
}

// Wait sleeps until something happens that a sleeper is told.
func (p *port) Wait(ctx context.Context) error {
	if owner.Checked {
		if err := p.guard.Enter(); err != nil {
			return fmt.Errorf("shm: wait: port %w", err)
		}
		defer p.guard.Exit()
	}
	for {
		if !p.alive.Load() {
			return p.usable("wait")
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.arm(true)
		if p.ready() {
			p.arm(false)
			return p.usable("wait")
		}
		nap, last := p.nap()
		p.timer.Reset(nap)
		var err error
		select {
		case <-p.bell:
			last = true
		case <-p.timer.C:
		case <-ctx.Done():
			err, last = context.Cause(ctx), true
		}
		p.timer.Stop()
		p.arm(false)
		if err == nil && !p.alive.Load() {
			err = p.usable("wait")
		}
		if last || err != nil {
			return err
		}
	}
}

// arm says to the others whether this port sleeps.
func (p *port) arm(on bool) {
	p.asleep.Store(on)
	p.polling.Lock()
	defer p.polling.Unlock()
	if p.alive.Load() {
		flag := uint32(0)
		if on {
			flag = 1
		}
		atomic.StoreUint32(&p.box.head.armed, flag)
		p.mend()
	}
}

// ready reports whether Wait should end.
func (p *port) ready() bool {
	select {
	case <-p.bell:
		return true
	default:
	}
	return p.attention.Load() > 0 || p.alarmed() || p.arrived()
}

// arrived reports whether Poll would find something in the mailbox.
func (p *port) arrived() bool {
	p.polling.Lock()
	defer p.polling.Unlock()
	if !p.alive.Load() {
		return true
	}
	for _, r := range []*receiver{&p.receive, &p.noted} {
		r.mu.Lock()
		found := r.head != r.next && p.judge(atomic.LoadUint64(&r.cell(r.head).word), r.head) != cellEmpty
		r.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}

// alarmed takes the alarms that are due.
func (p *port) alarmed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, now := 0, p.Now()
	for k < len(p.alarms) && p.alarms[k] <= now {
		k++
	}
	p.alarms = slices.Delete(p.alarms, 0, k)
	return k > 0
}

// nap is how long to sleep at most, and whether Wait ends then.
func (p *port) nap() (d time.Duration, last bool) {
	d = napLimit
	if p.stuck.Load() > 0 {
		d, last = napStuck, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.alarms) > 0 {
		d = min(d, max(0, p.alarms[0]-p.Now()))
	}
	return d, last
}

// nudge ends a Wait that sleeps.
func (p *port) nudge() {
	if p.asleep.Load() {
		p.Wake()
	}
}

// Wake ends a Wait.
func (p *port) Wake() {
	select {
	case p.bell <- struct{}{}:
	default:
	}
}

// After has Wait end at a time.
func (p *port) After(at time.Duration) {
	p.mu.Lock()
	for now := p.Now(); len(p.alarms) > 1 && p.alarms[1] <= now; { // one that is due is enough
		p.alarms = slices.Delete(p.alarms, 0, 1)
	}
	if i, found := slices.BinarySearch(p.alarms, at); !found && p.alive.Load() {
		p.alarms = slices.Insert(p.alarms, i, at)
	}
	p.mu.Unlock()
	p.nudge() // Wait sets its timer anew
}

// wakePacket is what sendWake sends.
func wakePacket(port int) func(fd uintptr) bool {
	b := packet{kind: kindWake, port: uint32(port)}.encode()
	return func(fd uintptr) bool {
		_ = unix.Send(int(fd), b[:], unix.MSG_DONTWAIT)
		return true
	}
}
