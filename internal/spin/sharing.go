package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Sharing is the knowledge that waits of a job have of the processes that share its processors:
// whether data awaited come from one that needs this very processor.
//
// It learns from the yields themselves. One that returns at once says that no other process needs
// this processor: waits yield late. One after which the awaited is there, soon, says that the peer
// ran meanwhile: from then on waits yield early. One that lasts as long as a slice of the
// scheduler says that a process has run that has nothing to do with the job: from then on waits
// yield late, and for a while sleep for some microseconds instead, since a thread that a timer
// wakes preempts such a process. Where several ranks share a processor they have work of their own,
// so it takes longer yields there, and a second one soon. No clock or counter of the kernel sets
// the two apart beforehand: beside a foreign busy process there are involuntary switches and slow
// peers too.
//
// The zero value yields late until it has learned. It may be used by many goroutines at once.
type Sharing struct {
	ranks     atomic.Int32 // that share a processor; 0 is 1
	inProcess atomic.Bool  // ranks are goroutines
	served    atomic.Bool  // the last yields brought what was awaited
	barred    atomic.Int64 // since start: until when there are no yields, or the end of the last long one
	yields    atomic.Uint64
	foreign   atomic.Uint64
	naps      atomic.Uint64
}

const (
	// early is how long a wait spins before it yields to a peer that needs this processor. A switch to
	// it and back takes some 2 us.
	early = time.Microsecond
	// foreignFrom is what a yield lasts at least that went to a process without a wait of its own,
	// for each rank of the processor, as ranks have work of their own. Most slices are longer (Linux,
	// kernel/sched/fair.c, sysctl_sched_base_slice times a factor of the processors). Kernel threads
	// of a software device, which serve this rank, take less: from 0.4 ms on they counted as foreign.
	foreignFrom = 1250 * time.Microsecond
	// barredFor is for how many times what a yield gave to a foreign process there are no others, up
	// to sliceMost: one that lasts longer is of a process that was stopped meanwhile.
	barredFor = 64
	sliceMost = 100 * time.Millisecond
	// nap is short of the kernel's timer slack (50 us, prctl(2)), which it takes in addition.
	nap = 20 * time.Microsecond
)

var start = time.Now()

// SetRanks says how many ranks of the job share a processor, and whether others of them are in this
// process.
func (s *Sharing) SetRanks(n int, inProcess bool) {
	s.ranks.Store(int32(n))
	s.inProcess.Store(inProcess)
}

// Crowded reports whether several ranks share a processor, so that spinning only takes time from
// what it waits for.
func (s *Sharing) Crowded() bool { return s.ranks.Load() > 1 }

// After is how long a wait spins before it yields.
func (s *Sharing) After() time.Duration {
	switch {
	case s.Crowded():
		return 0
	case s.served.Load():
		return early
	}
	return times.late
}

// Probe reports whether a wait that can sleep until it is woken should yield after it has waited
// for so long.
func (s *Sharing) Probe(waited time.Duration) bool { return waited >= s.After() && !s.isBarred() }

func (s *Sharing) isBarred() bool { return int64(time.Since(start)) < s.barred.Load() }

// Yield gives the processor to other processes (sched_yield(2)). It returns how long that took, for
// Learn; 0: it has slept.
//
// Other goroutines run at once only where ranks are goroutines: for each Gosched the runtime may
// wake a thread, which takes the processor from the process that is awaited.
func (s *Sharing) Yield(waited time.Duration) time.Duration {
	if waited >= times.late || s.inProcess.Load() {
		runtime.Gosched()
	}
	if s.isBarred() {
		s.naps.Add(1)
		sleepBriefly(nap)
		return 0
	}
	s.yields.Add(1)
	from := time.Now()
	yieldCore()
	return max(time.Since(from), 1)
}

// Learn takes whether the awaited data were there after a yield.
func (s *Sharing) Learn(took time.Duration, there bool) {
	served := s.served.Load()
	switch {
	case took < times.switchFrom:
		served = false
	case took >= time.Duration(max(s.ranks.Load(), 1))*foreignFrom:
		served = false
		s.foreign.Add(1)
		until, last := time.Since(start), time.Duration(s.barred.Load())
		if !s.Crowded() || last > 0 && until-last <= 2*took { // no more than took since the last one
			until += barredFor * min(took, sliceMost)
		}
		s.barred.Store(int64(until))
	default:
		served = served || there
	}
	if s.served.Load() != served {
		s.served.Store(served)
	}
}

// Stats are counts of events.
type Stats struct {
	Yields  uint64
	Foreign uint64 // yields that a foreign process used
	Naps    uint64 // sleeps in place of yields
}

// Stats returns the counts.
func (s *Sharing) Stats() Stats {
	return Stats{Yields: s.yields.Load(), Foreign: s.foreign.Load(), Naps: s.naps.Load()}
}
