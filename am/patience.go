package am

import "time"

// patience is for how long the leader polls before it sleeps. It doubles when a sleep was shorter
// than the most it may become: a little more polling would have met what ended the sleep, and to
// fall asleep and to wake up costs more than that. It halves when a sleep was long: the polling was
// in vain. KVM does the same (Linux, Documentation/virt/kvm/halt-polling.rst). It belongs to the
// leader.
type patience struct {
	least time.Duration // Config.SpinFor; 0: do not poll
	now   time.Duration
}

// spinMost is to how many times SpinFor the polling grows.
const spinMost = 8

func newPatience(least time.Duration) patience { return patience{least: least, now: least} }

// slept adapts to a sleep.
func (p *patience) slept(d time.Duration) {
	if d < spinMost*p.least {
		p.now = min(2*p.now, spinMost*p.least)
	} else {
		p.now = max(p.now/2, p.least)
	}
}
