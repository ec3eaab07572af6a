package am

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestPollingBeforeASleepGrowsWhileSleepsAreShorterThanItCouldBe(t *testing.T) {
	const first = 75 * time.Microsecond
	p := newPatience(first)
	after := func(slept time.Duration, times int) time.Duration {
		for range times {
			p.slept(slept)
		}
		return p.now
	}
	if d := after(100*time.Microsecond, 1); d != 2*first {
		t.Errorf("after one short sleep: %v", d)
	}
	if d := after(100*time.Microsecond, 20); d != spinMost*first {
		t.Errorf("after many short sleeps: %v", d)
	}
	if d := after(spinMost*first, 1); d != spinMost*first/2 {
		t.Errorf("after a sleep that polling would not have met the end of: %v", d)
	}
	if d := after(time.Second, 20); d != first {
		t.Errorf("after many long sleeps: %v", d)
	}
	p = newPatience(0)
	for range 2 * fewTrials {
		p.waited(time.Millisecond, time.Millisecond, 1)
	}
	if d := after(time.Microsecond, 20); d != 0 {
		t.Errorf("who is not to poll does for %v", d)
	}
}

// sleeper waits for messages in a time that only messages and waking up take.
type sleeper struct {
	patience
	now    time.Duration
	polled time.Duration
	wakes  func() time.Duration // what waking up takes
}

// meet waits for a message that comes at a time.
func (s *sleeper) meet(at time.Duration) { s.take([]time.Duration{at}) }

// take waits for the first of some messages, and returns how many it finds.
func (s *sleeper) take(at []time.Duration) (n int) {
	began, slept := s.now, time.Duration(0)
	if at[0] > began {
		s.now, slept = at[0], s.wait(at[0]-began)
		if slept > 0 {
			d := s.wakes()
			s.now, slept = s.now+d, slept+d
			s.slept(slept)
		}
	}
	for n < len(at) && n < eventsPerPoll && at[n] <= s.now {
		n++
	}
	s.waited(s.now-began, slept, n)
	return n
}

// wait polls, and returns for how long it would have to sleep.
func (s *sleeper) wait(d time.Duration) time.Duration {
	polls := min(d, s.patience.now)
	s.polled += polls
	return d - polls
}

// vain waits for messages that do not come.
func (s *sleeper) vain(d time.Duration) {
	slept := s.wait(d)
	if s.now += d; slept > 0 {
		s.slept(slept)
	}
	s.waited(d, slept, 0)
}

// about draws from half to one and a half of d.
func about(r *rand.Rand, d time.Duration) time.Duration {
	return d/2 + time.Duration(r.Int64N(int64(d)))
}

func TestRanksThatAnswerEachOtherPollWhereWakingUpTakesLong(t *testing.T) {
	const wire = 50 * time.Microsecond
	for _, wake := range []time.Duration{700 * time.Microsecond, 2 * time.Millisecond, 4 * time.Millisecond, 8 * time.Millisecond} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%v/%d", wake, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 0))
				var ranks [2]*sleeper
				for i := range ranks {
					ranks[i] = &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return about(r, wake) }}
				}
				trips := func(n int) time.Duration {
					began := ranks[0].now
					for range n {
						ranks[1].meet(ranks[0].now + wire)
						ranks[0].meet(ranks[1].now + wire)
					}
					return (ranks[0].now - began) / time.Duration(n)
				}
				if d := trips(fewTrials / 2); d < wake {
					t.Fatalf("at first a round trip took %v, and nobody slept", d)
				}
				trips(1000)
				if d := trips(1000); d > 4*wire {
					t.Errorf("at last a round trip takes %v", d)
				}
				// The program does something else, and nothing comes.
				for range 10 {
					for _, s := range ranks {
						s.meet(s.now + time.Second)
					}
				}
				for i, s := range ranks {
					if s.patience.now != s.base || s.before != 0 {
						t.Errorf("rank %d goes on polling for %v", i, s.patience.now)
					}
				}
			})
		}
	}
}

func TestMessagesThatComeWhenTheyComeAreNotPolledFor(t *testing.T) {
	const pauses = 4000 // seven trials
	random := func(r *rand.Rand, mean time.Duration) time.Duration {
		return time.Duration(r.ExpFloat64() * float64(mean))
	}
	for _, c := range []struct {
		name string
		size int     // messages for each pause, about
		more float64 // part of the time that trials may poll
		next func(r *rand.Rand, i int) time.Duration
	}{
		{"at random, every 2 ms", 1, 0.1, func(r *rand.Rand, _ int) time.Duration { return random(r, 2*time.Millisecond) }},
		{"at random, every 5 ms", 1, 0.1, func(r *rand.Rand, _ int) time.Duration { return random(r, 5*time.Millisecond) }},
		{"every 3 ms", 1, 0.1, func(*rand.Rand, int) time.Duration { return 3 * time.Millisecond }},
		{"about every 10 ms", 1, 0.1, func(r *rand.Rand, _ int) time.Duration { return about(r, 10*time.Millisecond) }},
		{"ten at once", 10, 0.1, func(_ *rand.Rand, i int) time.Duration {
			if i%10 == 0 {
				return 5 * time.Millisecond
			}
			return 0
		}},
		{"three one after another", 3, 0.1, func(_ *rand.Rand, i int) time.Duration {
			if i%3 == 0 {
				return 2 * time.Millisecond
			}
			return 30 * time.Microsecond
		}},
		{"two one after another", 2, 0.1, func(r *rand.Rand, i int) time.Duration {
			if i%2 == 0 {
				return about(r, 5*time.Millisecond)
			}
			return 20 * time.Microsecond
		}},
		{"a hundred at once", 100, 0.1, func(_ *rand.Rand, i int) time.Duration {
			if i%100 == 0 {
				return 5 * time.Millisecond
			}
			return 0
		}},
		{"a hundred one after another", 100, 0.1, func(r *rand.Rand, i int) time.Duration {
			if i%100 == 0 {
				return about(r, 10*time.Millisecond)
			}
			return 10 * time.Microsecond
		}},
		{"some at once", 10, 0.1, func(r *rand.Rand, _ int) time.Duration {
			if r.IntN(10) == 0 {
				return about(r, 10*time.Millisecond)
			}
			return 0
		}},
		{"rarer and rarer", 1, 0.1, func(_ *rand.Rand, i int) time.Duration {
			if i < 40 {
				return 12 * time.Millisecond
			}
			return 40 * time.Millisecond
		}},
		{"suddenly more often", 5, 0.2, func(_ *rand.Rand, i int) time.Duration {
			if i < 40 {
				return 12 * time.Millisecond
			}
			return 5 * time.Millisecond
		}},
		{"often and rarely in turns", 5, 0.2, func(r *rand.Rand, i int) time.Duration {
			if i%2000 < 1000 {
				return random(r, 8*time.Millisecond)
			}
			return random(r, 2*time.Millisecond)
		}},
	} {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("%s/%d", c.name, seed), func(t *testing.T) {
				polled := func(every int) float64 {
					r := rand.New(rand.NewPCG(seed, 1))
					s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 200 * time.Microsecond }}
					s.every = every
					at := make([]time.Duration, pauses*c.size)
					for i := range at {
						at[i] = at[max(i-1, 0)] + c.next(r, i)
					}
					for len(at) > 0 {
						at = at[s.take(at):]
					}
					return float64(s.polled) / float64(s.now)
				}
				never, sometimes := polled(1<<30), polled(fewTrials)
				if sometimes > never+c.more {
					t.Errorf("%.3f of the time polled, %.3f without trials", sometimes, never)
				}
				if sometimes == never {
					t.Error("there was no trial")
				}
			})
		}
	}
}

// One and a half events for each sleep are one and a half: judged by one for each, a third less time would seem to be enough.
func TestPartsOfAnEventForEachSleepCount(t *testing.T) {
	for _, gap := range []time.Duration{1100, 1300, 1450, 1700, 2100, 2500, 3500} {
		gap *= time.Microsecond
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("%v/%d", gap, seed), func(t *testing.T) {
				polled := func(every int) float64 {
					r := rand.New(rand.NewPCG(seed, 2))
					s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return about(r, 2*time.Millisecond) }}
					s.every = every
					at := make([]time.Duration, 100_000)
					for i := range at {
						at[i] = time.Duration(i) * gap
					}
					for len(at) > 0 {
						at = at[s.take(at):]
					}
					return float64(s.polled) / float64(s.now)
				}
				never, sometimes := polled(1<<30), polled(fewTrials)
				if sometimes > never+0.1 {
					t.Errorf("%.3f of the time polled, %.3f without trials", sometimes, never)
				}
				if sometimes == never {
					t.Error("there was no trial")
				}
			})
		}
	}
}

// A trial that begins in the quieter part seems to pay in the other: one life for each cycle.
func TestATrialThatOnlySeemsToPayEndsWithItsLife(t *testing.T) {
	polled := func(every int) float64 {
		s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 200 * time.Microsecond }}
		s.every = every
		for range 8 {
			for range 1000 {
				s.meet(s.now + 16*time.Millisecond)
			}
			for range 5000 {
				s.meet(s.now + 5*time.Millisecond)
			}
		}
		return float64(s.polled) / float64(s.now)
	}
	if never, sometimes := polled(1<<30), polled(fewTrials); sometimes > never+0.2 || sometimes == never {
		t.Errorf("%.3f of the time polled, %.3f without trials", sometimes, never)
	}
}

// A part of the program in which nobody sleeps says nothing of the sleeps after it.
func TestTrialsAreNoLongerForWhatWasBeforeTheSleeps(t *testing.T) {
	s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 200 * time.Microsecond }}
	for s.now < time.Minute {
		s.meet(s.now + 60*time.Microsecond)
	}
	busy := s.polled
	for s.now < 3*time.Minute {
		s.meet(s.now + 3*time.Millisecond)
	}
	if d := s.polled - busy; d > 15*time.Second || s.every == fewTrials {
		t.Errorf("polled for %v of two minutes, the next trial after %d sleeps", d, s.every)
	}
}

func TestForRareMessagesNothingIsTried(t *testing.T) {
	s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 60 * time.Microsecond }}
	for range 10 * fewTrials {
		if s.meet(s.now + time.Second); s.before != 0 {
			t.Fatalf("it polls for %v", s.patience.now)
		}
	}
}

func TestWaitsInVainAreNoReasonToPoll(t *testing.T) {
	polled := func(every int) float64 {
		s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 60 * time.Microsecond }}
		s.every = every
		for range 20 {
			for range 1000 {
				s.meet(s.now + 3*time.Millisecond)
			}
			for range 100 {
				s.vain(10 * time.Millisecond)
			}
		}
		return float64(s.polled) / float64(s.now)
	}
	if never, sometimes := polled(1<<30), polled(fewTrials); sometimes > never+0.05 || sometimes == never {
		t.Errorf("%.3f of the time polled, %.3f without trials", sometimes, never)
	}
}

func TestRanksThatAnswerBurstsPollWhereWakingUpTakesLong(t *testing.T) {
	const wire, wake, burst = 50 * time.Microsecond, 2 * time.Millisecond, 100
	var ranks [2]*sleeper
	for i := range ranks {
		ranks[i] = &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return wake }}
	}
	ranks[1].every *= 2 // their trials begin apart
	send := func(from, to *sleeper) {
		at := make([]time.Duration, burst)
		for i := range at {
			at[i] = from.now + wire + time.Duration(i)*10*time.Microsecond
		}
		for len(at) > 0 {
			at = at[to.take(at):]
		}
	}
	trips := func(n int) time.Duration {
		began := ranks[0].now
		for range n {
			send(ranks[0], ranks[1])
			send(ranks[1], ranks[0])
		}
		return (ranks[0].now - began) / time.Duration(n)
	}
	first := trips(fewTrials / 2)
	trips(1000)
	if last := trips(1000); first < 2*wake || last > 3*wake/2 {
		t.Errorf("a round trip takes %v, at first %v", last, first)
	}
}

func TestTrialsThatAPauseEndsBecomeRareToo(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 200 * time.Microsecond }}
	for range 300 {
		for range 66 + r.IntN(8) {
			s.meet(s.now + about(r, 10*time.Millisecond))
		}
		// Timers end its sleeps, all of one wait for a message.
		began := s.now
		slept := s.wait(time.Second)
		for range 10 {
			s.now += 100 * time.Millisecond
			s.slept(100 * time.Millisecond)
		}
		s.waited(s.now-began, slept, 1)
	}
	if f := float64(s.polled) / float64(s.now); f > 0.06 {
		t.Errorf("%.3f of the time polled", f)
	}
}

// pingPong returns two ranks that answer each other, and a function for some round trips that returns what one takes.
func pingPong(wire, wake time.Duration) (ranks [2]*sleeper, trips func(n int) time.Duration) {
	for i := range ranks {
		ranks[i] = &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return wake }}
	}
	return ranks, func(n int) time.Duration {
		began := ranks[0].now
		for range n {
			ranks[1].meet(ranks[0].now + wire)
			ranks[0].meet(ranks[1].now + wire)
		}
		return (ranks[0].now - began) / time.Duration(n)
	}
}

// A rank computes between bursts of round trips, and both had come to the rarest trials by then.
func TestPausesDoNotEndPollingThatPays(t *testing.T) {
	for _, x := range []struct {
		wake   time.Duration
		trips  int
		sleeps int // of the other's wait during a pause
	}{
		{8 * time.Millisecond, 30, 1},
		{4 * time.Millisecond, 100, 1},
		{2 * time.Millisecond, 300, 1},
		{2 * time.Millisecond, 300, 10},
		{2 * time.Millisecond, 100, 10},
		{4 * time.Millisecond, 100, 10},
	} {
		ranks, trips := pingPong(50*time.Microsecond, x.wake)
		for _, s := range ranks {
			s.every = rareTrials
		}
		burst := func() time.Duration {
			const pause = 200 * time.Millisecond
			ranks[0].now += pause
			if x.sleeps > 1 {
				s := ranks[1]
				if slept := s.wait(pause); slept > 0 {
					for range x.sleeps {
						s.slept(slept / time.Duration(x.sleeps))
					}
					s.now += pause
					s.waited(pause, slept, 0)
				}
			}
			return trips(x.trips)
		}
		for ranks[0].now < 10*time.Minute {
			burst()
		}
		fast, n := 0, 0
		for ; ranks[0].now < 15*time.Minute; n++ {
			if burst() < x.wake/2 {
				fast++
			}
		}
		if 10*fast < 7*n {
			t.Errorf("wake-ups of %v, pauses of %d sleeps: %d of %d bursts of %d are fast", x.wake, x.sleeps, fast, n, x.trips)
		}
	}
}

func TestABusyPartDoesNotKeepWhatComesAfterItSlow(t *testing.T) {
	ranks, trips := pingPong(50*time.Microsecond, 4*time.Millisecond)
	for ranks[0].now < time.Minute {
		for _, s := range ranks {
			s.meet(s.now + 60*time.Microsecond)
		}
	}
	trips(1000)
	if d := trips(1000); d > time.Millisecond {
		t.Errorf("a round trip takes %v", d)
	}
}

// A wait that ends before its message has come, as with a deadline, has slept for it too.
func TestSleepsOfWaitsInVainCountForTheNextMessage(t *testing.T) {
	s := &sleeper{patience: newPatience(75 * time.Microsecond)}
	for i := range fewTrials {
		if s.before != 0 {
			t.Fatal("a trial after ", i)
		}
		s.waited(3*time.Millisecond, 3*time.Millisecond, 0)
		s.waited(0, 0, 1)
	}
	if s.before == 0 {
		t.Error("no trial")
	}
}

func TestHowRareTrialsAre(t *testing.T) {
	s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 0 }}
	for range 20 * rareTrials {
		s.meet(s.now + 5*time.Millisecond) // whoever polls for it or not
	}
	if s.every != rareTrials {
		t.Errorf("after trials in vain the next comes after %d sleeps", s.every)
	}
	for s.before == 0 {
		s.meet(s.now + 5*time.Millisecond)
	}
	if s.patience.now != 10*time.Millisecond {
		t.Errorf("sleeps of 5 ms are a reason to poll for %v", s.patience.now)
	}
	for s.before != 0 {
		s.meet(s.now + time.Millisecond)
	}
	if s.every != fewTrials/2 {
		t.Errorf("after a trial that paid the next comes after %d sleeps", s.every)
	}
	for s.before == 0 {
		s.meet(s.now + 20*time.Millisecond)
	}
	if s.patience.now != longWait {
		t.Errorf("sleeps of 20 ms are a reason to poll for %v", s.patience.now)
	}
}

// trial returns who polls for 10 ms on trial, since messages came every 5 ms.
func trial() *sleeper {
	s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return 0 }}
	for s.before == 0 {
		s.meet(s.now + 5*time.Millisecond)
	}
	return s
}

func TestAMessageEndsWhatAPauseTookFromATrial(t *testing.T) {
	s := trial()
	polls := s.patience.now
	s.vain(time.Second)
	if s.patience.now != polls/2 {
		t.Fatalf("after a sleep it polls for %v, for %v before", s.patience.now, polls)
	}
	s.meet(s.now + time.Millisecond)
	if s.patience.now != polls {
		t.Errorf("after a message that polling met it polls for %v, for %v before the pause", s.patience.now, polls)
	}
}

// What the window says in which a pause came counts less than one that was better as a whole.
func TestATrialThatPaidIsNoneInVainBecauseOfAPause(t *testing.T) {
	s := trial()
	for range trialWindow + 1 {
		s.meet(s.now + time.Millisecond)
	}
	s.every = rareTrials
	for s.before != 0 {
		s.slept(time.Second)
	}
	if s.every != rareTrials/2 {
		t.Errorf("the next trial comes after %d sleeps", s.every)
	}
	for s.before == 0 {
		s.meet(s.now + 5*time.Millisecond)
	}
	for s.before != 0 { // nothing comes at all
		s.slept(time.Second)
	}
	if s.every != rareTrials {
		t.Errorf("after a trial in vain the next comes after %d sleeps", s.every)
	}
	s = trial()
	every := s.every
	for range trialWindow + 1 { // hardly better, and with the pause no better
		s.meet(s.now + 7*time.Millisecond/2)
	}
	for s.before != 0 {
		s.slept(time.Second)
	}
	if s.every != 2*every {
		t.Errorf("after a trial that hardly paid the next comes after %d sleeps", s.every)
	}
}

// The first windows of a trial in a burst are better than what was before, quiet parts too; the quiet part ends it.
func TestTrialsInBurstsBetweenQuietPartsAreNotSooner(t *testing.T) {
	for _, x := range []struct {
		wake, gap, quiet time.Duration
		burst, rest      int
	}{
		{62 * time.Microsecond, 843 * time.Microsecond, 28 * time.Millisecond, 104, 12},
		{2 * time.Millisecond, 1763 * time.Microsecond, 99 * time.Millisecond, 570, 9},
	} {
		polled := func(every int) float64 {
			s := &sleeper{patience: newPatience(75 * time.Microsecond), wakes: func() time.Duration { return x.wake }}
			s.every = every
			for due := time.Duration(0); s.now < 5*time.Minute; {
				for range x.burst {
					due += x.gap
					s.meet(due)
				}
				for range x.rest {
					due += x.quiet
					s.meet(due)
				}
			}
			return float64(s.polled) / float64(s.now)
		}
		if never, sometimes := polled(1<<30), polled(fewTrials); sometimes > never+0.2 || sometimes == never {
			t.Errorf("%+v: %.3f of the time polled, %.3f without trials", x, sometimes, never)
		}
	}
}

func TestWhereSleepsAreShortNothingIsTried(t *testing.T) {
	s := &sleeper{patience: newPatience(75 * time.Microsecond)}
	for range 10 * fewTrials {
		if s.waited(spinMost*s.base, spinMost*s.base, 1); s.before != 0 {
			t.Fatalf("it polls for %v", s.patience.now)
		}
	}
}
