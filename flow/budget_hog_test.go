package flow

import (
	"testing"
	"time"
)

// swapping is a machine that swaps: what does not fit goes to swap space, which stalls tasks a
// third of the time, and comes back at 200 MiB/s when there is room, which stalls them a twentieth.
type swapping struct {
	*machine
	total, swapped int64
	leases         []*Lease
	waits          *Pending // the set that nothing is granted for
}

// pass is an interval in which the program takes what it is granted, and gives it back.
func (m *swapping) pass(t *testing.T) {
	t.Helper()
	if m.waits != nil {
		m.waits.Cancel()
	}
	for _, l := range m.leases {
		l.Release()
	}
	m.leases = m.leases[:0]
	for {
		p, err := set(m.b.NewFetchSet(), &at{fake{bytes: mib}}).Post()
		if err != nil {
			t.Fatal(err)
		}
		if m.waits = p; !p.Granted() {
			break
		}
		l, err := p.Test()
		if err != nil {
			t.Fatal(err)
		}
		m.leases = append(m.leases, l)
	}
	used := m.app + m.hog + m.b.Stats().Bulk - m.swapped
	switch {
	case used > m.total:
		m.swapped += used - m.total
		m.stalled += m.b.Interval() / 3
	case m.swapped > 0:
		m.swapped -= min(m.swapped, 20*mib, m.total-used)
		m.stalled += m.b.Interval() / 20
	}
	m.clock.now += m.b.Interval()
	r := m.reading()
	for i := range r.Bounds {
		r.Bounds[i].Used = m.app + m.hog + m.b.Stats().Bulk - m.swapped
	}
	m.b.Observe(r)
}

// A hog comes, and takes more than is free. The limit does not fall to less than half of what the
// hog leaves, while what was swapped out comes back. Five seconds later it is what the hog leaves,
// nothing is in swap space, and both stay so.
func TestALimitSettlesSoonAfterAHogCame(t *testing.T) {
	for _, hog := range []int64{60, 300, 500, 750, 790} {
		m := &swapping{machine: newMachine(t, AdaptConfig{Floor: 5 * mib}), total: 1024 * mib}
		for range 100 {
			m.pass(t)
		}
		m.hog = hog * mib
		left := m.total - m.app - m.hog - 24*mib
		for m.clock.now < 15*time.Second {
			if m.pass(t); m.limit() < left/2 {
				t.Errorf("hog of %d MiB, after %v: limit %s of %s", hog, m.clock.now-10*time.Second, bytesText(m.limit()), bytesText(left))
			}
		}
		for m.clock.now < 40*time.Second {
			if m.pass(t); m.limit() < left*9/10 || m.limit() > left || m.swapped > 0 {
				t.Fatalf("hog of %d MiB, after %v: limit %s of %s, %s swapped", hog, m.clock.now-10*time.Second, bytesText(m.limit()), bytesText(left), bytesText(m.swapped))
			}
		}
	}
}
