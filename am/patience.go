package am

import "time"

// patience is for how long who leads polls before it sleeps. It belongs to who leads.
//
// It grows while sleeps are short: what a little more polling would have met is no reason to sleep, since to fall asleep
// and to be woken costs more. KVM does the same (Linux, Documentation/virt/kvm/halt-polling.rst).
//
// Where to be woken takes long itself that does not help, and long sleeps hide why they are long. On a virtual machine whose
// host has other work it takes milliseconds: two ranks that answer each other sleep at every message, although
// each would have the answer at once if only both polled. No clock tells the time that
// a message took from that in which its receiver woke up. So it is tried out: after some long sleeps it polls for
// twice as long as these took, and stays with that while it has to wait clearly less for each event. Where messages come when
// they come it has not, and the next trial comes after twice as many. What waits took before is measured again now and then.
type patience struct {
	base time.Duration // Config.SpinFor; 0: never poll
	now  time.Duration // for how long to poll
	most time.Duration // what it grows to

	waits  window        // since the last trial, or in the window of the one that is on
	asleep window        // those of waits with sleeps that an event ended; counted between trials
	before time.Duration // during a trial: what each event took before it; else 0
	spent  time.Duration // waits of the trial that is on
	every  int           // sleeps until the next trial
}

const (
	// spinMost is to how many times SpinFor the polling grows without a trial.
	spinMost = 8
	// longWait is the longest wait that may be one for who wakes up, and bounds the polling of trials. Longer ones count as long.
	longWait = 30 * time.Millisecond
	// A trial comes after fewTrials to rareTrials sleeps, so that what was before it has enough of the pauses between bursts.
	// It is judged over each trialWindow events, and lasts for trialLife times what one took before.
	fewTrials, rareTrials = 32, 2048
	trialWindow           = 64
	trialLife             = 512
)

// window adds up waits for events.
type window struct {
	n   int // events
	sum time.Duration
}

func (w *window) mean() time.Duration { return w.sum / time.Duration(max(1, w.n)) }

func newPatience(base time.Duration) patience {
	return patience{base: base, now: base, most: spinMost * base, every: fewTrials}
}

// slept is told of each sleep.
func (p *patience) slept(d time.Duration) {
	if d < p.most {
		p.now = min(2*p.now, p.most)
		return
	}
	p.now = max(p.now/2, p.base)
	if p.before != 0 && p.now == p.base {
		p.rest() // nothing comes any more: no fault of the trial's
	}
}

// waited is told of each wait: how long it was, how much of that were sleeps, and whether an event ended it. It reports
// whether a trial begins.
func (p *patience) waited(d, slept time.Duration, event bool) bool {
	if p.base == 0 {
		return false
	}
	d = min(d, longWait)
	p.waits.sum += d
	if event {
		p.waits.n++
	}
	if p.before != 0 {
		p.judge(d)
		return false
	}
	if slept > 0 && event {
		p.asleep.n++
		p.asleep.sum += d
	}
	return p.asleep.n >= p.every && p.consider()
}

// consider begins a trial where sleeps are long, but not longer than waking up takes anywhere.
func (p *patience) consider() bool {
	long := p.asleep.mean()
	worth := long > spinMost*p.base && 4*long < 3*longWait
	if worth {
		p.before, p.most = min(max(1, p.waits.mean()), longWait), min(2*long, longWait)
		p.now = p.most
	}
	p.waits, p.asleep = window{}, window{}
	return worth
}

// judge ends a trial as soon as it is known that it does not pay. Where two ranks sleep in turn, one of them that polls saves half.
func (p *patience) judge(d time.Duration) {
	p.spent += d
	switch {
	case 4*p.waits.sum > 3*trialWindow*p.before:
		p.every = min(2*p.every, rareTrials)
		p.rest()
	case p.spent > trialLife*p.before:
		p.every = fewTrials / 2
		p.rest()
	case p.waits.n >= trialWindow:
		p.waits = window{}
	}
}

// rest goes back to short polling.
func (p *patience) rest() {
	p.now, p.most, p.before, p.spent = p.base, spinMost*p.base, 0, 0
	p.waits, p.asleep = window{}, window{}
}
