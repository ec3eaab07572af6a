package ibv

import "time"

// Every figure of the data path, in one place.
const (
	defaultLanes = 2
	defaultDepth = 128

	defaultEager       = 64  // a job of so many ranks needs nothing but what it makes at start
	defaultConnections = 512 // of a lane, beyond those
	maxDepth           = 1 << 15

	inlineWish  = 128             // bytes of a put that travel in the work request
	copyMax     = 2 << 10         // bytes of a put that are always copied: a copy costs less than its user's care
	maxPiece    = 1 << 20         // bytes of one work request: what a lost packet may cost to send again
	signalEvery = 16              // of implicit operations, one completion for this many
	chainSlots  = 128             // work requests of one doorbell: as many as go to one peer by default
	maxEntries  = 4096            // of a lane's completion queue, if the device gives as many
	drainFor    = 2 * time.Second // a new lane waits for requests that the one before left; a healthy device needs less

	// From these sizes on the program's own memory is registered rather than copied: where
	// registrations are kept, and where each operation makes its own. Measured by
	// BenchmarkCrossover on Soft-RoCE in a VM: a kept registration wins at every size, by 20 % at
	// 16 KiB; one that is made costs 0.3 ms, which four such uses bring in. One for a single
	// operation wins from 256 to 512 KiB on.
	zeroCopyMin       = 16 << 10
	zeroCopyMinSingle = 512 << 10

	smallBlock = 256     // slab: words, small values
	bigBlock   = 8 << 10 // slab: pieces of memory that is not registered
	bigBlocks  = 32      // 256 KiB in flight, enough for 100 Gb/s at 20 us
)

// How waits go about it.
const (
	// pollBudget is one stay in C: short enough for the scheduler and the collector.
	pollBudget = 20 * time.Microsecond
	// pollAt is from how many work requests out on a post also polls.
	pollAt = 2 * signalEvery
	// firstBudget is the stay in C of the call that posts a blocking operation:
	// as long as most take, even over Soft-RoCE. The scheduler hands the
	// processor of a goroutine in C to others when there are any.
	firstBudget = 100 * time.Microsecond
	// yieldEvery is how often runtime.Gosched is called between operations that never wait. A
	// goroutine that is not seen to schedule for 10 ms has its processor taken by the runtime's
	// monitor, which then looks again every 20 us (sysmon and retake in runtime/proc.go): its
	// wake-ups cost a Soft-RoCE VM half a core. Oftener is no better: each Gosched wakes an idle
	// thread that looks for work. Timers run then too: a program that only looks at ctx.Err between
	// operations sees a deadline that late.
	yieldEvery = 4 * time.Millisecond
	// ringsPerClock is how many calls into C go by between looks at the clock for it.
	ringsPerClock = 16
	// spinFor is how long a wait polls before it parks.
	spinFor = 400 * time.Microsecond
	// parkFor bounds one parking, after which the wait looks around.
	parkFor = 10 * time.Millisecond
	// backoffMin is the longest pause of a loop of compare-swaps after the first attempt that failed
	// against an up to date guess. It doubles with each further one up to backoffMax, which leaves
	// room for some hundred ranks with attempts of microseconds.
	backoffMin = 2 * time.Microsecond
	backoffMax = time.Millisecond
	// wordPolls is how many rounds of waiting for a word go by between polls
	// for completions: polling costs more than it brings.
	wordPolls = 64
)

// Figures of the endpoints.
const (
	defaultEndpoints      = 1
	defaultConnectTimeout = 60 * time.Second
	defaultKeepalive      = 5 * time.Second

	listenEntries = 256 // of an endpoint's completion queue until it is opened and says what it needs
	dgramRecvs    = 128 // datagrams that may arrive between two polls
	dgramSends    = 64  // and be in flight
	handlesMax    = 256 // address handles kept: one for each peer device, not for each rank

	endpointQueue  = 64  // messages to one peer that are not complete
	endpointDepth  = 160 // work requests to one peer that are not complete: two for a message, and some for probes
	endpointSignal = 8   // of messages without an event, one completion for this many

	// Where messages share requests, fewer than this squared are unsignaled in a row: else a full
	// queue might not drain.
	_ uint = endpointQueue - endpointSignal*endpointSignal

	// A message without a slot is a mistake of the protocol above. It shows in EndpointStats.RNR,
	// in a delay that is not overlooked, and is not fatal: code 22 is 20.48 ms (IBTA 1.4 vol. 1
	// table 45).
	endpointRNRTimer = 22

	askFirst = time.Millisecond       // until a datagram of connection making is repeated; doubles
	askMost  = 128 * time.Millisecond // at most
	// restAfterStay is for how long a connection is not closed after its peer said that it is in
	// use.
	restAfterStay = 5 * time.Millisecond
	// timersEvery is how many polls with events go by between looks at the clock for the timers.
	timersEvery = 16
)
