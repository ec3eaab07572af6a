package am

import "time"

// patience is for how long who leads polls before it sleeps. It belongs to who leads.
//
// It grows while sleeps are short: what a little more polling would have met is no reason to sleep, since to fall asleep
// and to be woken costs more. KVM does the same (Linux, Documentation/virt/kvm/halt-polling.rst).
//
// Where to be woken takes long itself that does not help, and long sleeps hide why they are long. On a virtual machine whose
// host has other work it takes milliseconds: two ranks that answer each other sleep at every message, although
// each would have the answer at once if only both polled (docs/performance.md). No clock tells the time that
// a message took from that in which its receiver woke up. So it is tried out: after a window of waits most of which is long sleeps, it polls for
// twice as long as these took, and stays with that while waits turn out clearly shorter. Where messages come when they come, they
// do not, and the next trial comes after twice as many waits.
type patience struct {
	base time.Duration // Config.SpinFor; 0: never poll
	now  time.Duration // for how long to poll
	most time.Duration // what it grows to

	waits  window        // since the last trial, or of the one that is on
	asleep window        // those of waits with sleeps; counted between trials
	before time.Duration // during a trial: what waits took before it; else 0
	passed int           // windows of the trial that is on
	every  int           // waits until the next trial
}

const (
	// spinMost is to how many times SpinFor the polling grows without a trial.
	spinMost = 8
	// longWait is the longest wait that may be one for who wakes up, and bounds the polling.
	longWait = 20 * time.Millisecond
	// A trial comes after fewTrials to rareTrials waits, and is judged over firstWindow of them, then over each nextWindow.
	fewTrials, rareTrials   = 32, 2048
	firstWindow, nextWindow = 16, 64
)

// window adds up waits.
type window struct {
	n   int
	sum time.Duration
}

func (w *window) add(d time.Duration) { w.n++; w.sum += d }

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

// waited is told of each wait that a message ended: for how long nothing came, and how much of that is sleeps. It reports
// whether a trial begins.
func (p *patience) waited(d, slept time.Duration) bool {
	switch {
	case p.base == 0 || d > longWait: // the program's own pause
	case p.before == 0:
		p.waits.add(d)
		if slept > 0 {
			p.asleep.add(d)
		}
		return p.waits.n >= p.every && p.consider()
	default:
		p.waits.add(d)
		p.judge()
	}
	return false
}

// consider begins a trial where long sleeps make up the waits.
func (p *patience) consider() bool {
	long := p.asleep.mean()
	worth := long > spinMost*p.base && 2*p.asleep.sum > p.waits.sum
	if worth {
		p.before, p.most = max(1, p.waits.mean()), min(2*long, longWait)
		p.now = p.most
	}
	p.waits, p.asleep = window{}, window{}
	return worth
}

// judge ends a trial as soon as it is known that it does not pay. Where two ranks sleep in turn, one of them that polls saves half.
func (p *patience) judge() {
	n := nextWindow
	if p.passed == 0 {
		n = firstWindow
	}
	switch {
	case 4*p.waits.sum > 3*time.Duration(n)*p.before:
		p.every = min(2*p.every, rareTrials)
		p.rest()
	case p.waits.n >= n:
		if p.passed++; p.passed > 1 { // the first may be chance
			p.every = fewTrials
		}
		p.waits = window{}
	}
}

// rest goes back to short polling.
func (p *patience) rest() {
	p.now, p.most, p.before, p.passed = p.base, spinMost*p.base, 0, 0
	p.waits, p.asleep = window{}, window{}
}
