package spin

import "time"

// pace are the times of waits that depend on what a system call takes.
type pace struct {
	// late is how long a wait spins before it yields, unless it knows that its peer needs this
	// processor. Data awaited from another processor mostly come within it.
	late time.Duration
	// switchFrom is what a yield lasts at least that lets another process run.
	switchFrom time.Duration
	// pollFor is how long a message is polled for before its waiter sleeps.
	pollFor time.Duration
}

// On a processor of its own a yield took 0.3 us, and 2.5 us with another process that yields at
// once. Under an emulator (QEMU without KVM) it took 1.7 us alone, and some 15 us more until the
// caller ran at its speed again, as a system call empties the processor's buffers of translations;
// to sleep and be woken took 300 us.
var (
	native   = pace{late: 20 * time.Microsecond, switchFrom: time.Microsecond, pollFor: 75 * time.Microsecond}
	emulated = pace{late: 500 * time.Microsecond, switchFrom: 8 * time.Microsecond, pollFor: 600 * time.Microsecond}
	times    = paceOf(leastCall())
)

// slowCall is what a system call takes at least on an emulated processor: getppid(2) took 0.16 us
// on a real one, and 0.75 us under QEMU.
const slowCall = 500 * time.Nanosecond

// paceOf is the pace where a system call takes so long.
func paceOf(call time.Duration) pace {
	if call >= slowCall {
		return emulated
	}
	return native
}

// leastCall is what a system call takes that does nothing, when nothing is in its way.
func leastCall() time.Duration {
	least := time.Hour
	for range 32 {
		from := time.Now()
		callNothing()
		least = min(least, time.Since(from))
	}
	return least
}

// PollFor is how long a waiter for a message polls before it sleeps, in real time.
func PollFor() time.Duration { return times.pollFor }
