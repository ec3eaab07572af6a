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
// twice as long as these took, and stays with that while it has to wait clearly less for each message, through pauses of four to eight long sleeps too.
// Where messages come when they come it has not, as a rule, and the next trial comes after twice as many. What waits took before is measured again now and then.
type patience struct {
	base time.Duration // Config.SpinFor; 0: never poll
	now  time.Duration // for how long to poll
	most time.Duration // what it grows to

	waits  window        // since the last trial, or in the window of the one that is on
	asleep window        // those of waits with sleeps, each as one; counted between trials
	vain   time.Duration // waits since the last event; counted between trials
	dozed  bool          // vain has sleeps
	before time.Duration // during a trial: what was waited for each event before it; else 0
	each   time.Duration // and for each wait with sleeps, those without before it included
	enough int           // events in a window: as many as came with trialWindow of these
	spent  time.Duration // waits of the trial that is on
	met    int           // events of it
	every  int           // sleeps until the next trial
}

const (
	// spinMost is to how many times SpinFor the polling grows without a trial.
	spinMost = 8
	// longWait is the longest wait that may be one for who wakes up, and bounds the polling of trials. Longer ones count as long.
	longWait = 30 * time.Millisecond
	// A trial comes after fewTrials to rareTrials waits with sleeps, or half of fewTrials after a whole life. It is judged over trialWindow times the events for which there was
	// one sleep before, so that pauses between bursts count, and lasts for trialLife times what these took.
	// A long life keeps trials rare that seem to pay because the program came to a part with more messages: they fail in the next. Where
	// parts last for seconds and take turns, each change to one with more messages may cost one life. Of such programs drawn at random a tenth of the time
	// went to that on the average, a quarter and more in one of nine; where parts are always of the same length, and as long as a life, nearly all of it.
	fewTrials, rareTrials = 32, 2048
	trialWindow           = 64
	trialLife             = 512
)

// window adds up waits for events.
type window struct {
	n   int // events: one poll may bring several
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
		// Nothing comes any more. Where bursts and quiet parts of some sleeps take turns, what was before is measured over enough of them not to begin and
		// end with a quiet part: it would be more than it is on the average, and each trial seem to pay. Over more than that it is measured no better, and
		// bursts that polling makes shorter are slow for longer.
		if 4*(p.spent+longWait) > 3*time.Duration(p.met+1)*p.before {
			p.every = min(2*p.every, rareTrials)
		} else {
			p.every = max(p.every/2, fewTrials)
		}
		p.rest()
	}
}

// waited is told of each wait: how long it was, how much of that were sleeps, and how many events it brought. It reports
// whether a trial begins.
func (p *patience) waited(d, slept time.Duration, events int) bool {
	if p.base == 0 {
		return false
	}
	if p.before != 0 {
		d = min(d, longWait)
		p.waits.n += events
		p.met += events
		p.waits.sum += d
		if events > 0 && slept == 0 { // a pause's sleep is forgotten
			p.now = p.most
		}
		p.judge(d)
		return false
	}
	p.vain = min(p.vain+min(d, longWait), longWait)
	p.dozed = p.dozed || slept > 0
	if events == 0 {
		return false
	}
	p.waits.n += events
	p.waits.sum += p.vain
	if p.dozed {
		p.asleep.n++
		p.asleep.sum += p.vain
	}
	p.vain, p.dozed = 0, false
	return p.asleep.n >= p.every && p.consider()
}

// consider begins a trial where sleeps are long, but not longer than waking up takes anywhere. There is none where the waits for each sleep,
// those without one included, add up to 3/4 of longWait: a trial takes a multiple of that.
func (p *patience) consider() bool {
	long, each := p.asleep.mean(), p.waits.sum/time.Duration(p.asleep.n)
	worth := long > spinMost*p.base && 4*each < 3*longWait
	if worth {
		p.before, p.each, p.enough = max(1, p.waits.mean()), each, trialWindow*p.waits.n/p.asleep.n
		p.most = min(2*long, longWait)
		p.now = p.most
	}
	p.waits, p.asleep = window{}, window{}
	return worth
}

// judge ends a trial as soon as it is known that it does not pay. Where two ranks sleep in turn, one of them that polls may save half.
func (p *patience) judge(d time.Duration) {
	p.spent += d
	switch {
	case 4*p.waits.sum > 3*trialWindow*p.each:
		p.every = min(2*p.every, rareTrials)
		p.rest()
	case p.spent > trialLife*p.each:
		p.every = fewTrials / 2
		p.rest()
	case p.waits.n >= p.enough:
		p.waits = window{}
	}
}

// rest goes back to short polling.
func (p *patience) rest() {
	p.now, p.most, p.before, p.spent, p.met, p.vain, p.dozed = p.base, spinMost*p.base, 0, 0, 0, 0, false
	p.waits, p.asleep = window{}, window{}
}
