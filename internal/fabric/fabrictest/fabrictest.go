// Package fabrictest checks that a network keeps the contract of package
// fabric.
//
// A network's test hands [Run] a function that makes connected ranks in this
// process; Run checks each clause of the contract as a subtest. What the
// contract leaves open (which operations complete at once, how many lanes
// there are) the suite takes from the network's own Limits and handles.
//
// The suite asserts no timing. Waits that only a broken network would not end
// are given up after [Options.Timeout].
package fabrictest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ibconduit/conduit/internal/fabric"
)

// T is what a check needs of a *testing.T. It is an interface so that the
// suite's own test can see a check fail.
type T interface {
	rapid.TB
	Cleanup(func())
	Context() context.Context
}

// Rank is one rank of a group in this process.
type Rank struct {
	Net fabric.Network

	// Segment is all bytes that the peers can reach. It lies outside the Go heap,
	// as segments do: the suite looks at it while peers write, which the race
	// detector would report for Go memory.
	Segment []byte
}

// Options are what to check and how much of it.
type Options struct {
	// New makes n ranks with segments of size bytes or more each, and connects
	// them, perhaps with Connect. It closes them with t.Cleanup, where Close may
	// find them closed already.
	New func(t T, n int, size int) []Rank

	// Ranks in a group; default 3, at least 2.
	Ranks int

	// SegmentSize in bytes; default 4 MiB. The large transfers take half of it.
	SegmentSize int

	// Checks is the number of random sequences; default is rapid's flag
	// -rapid.checks, 100.
	Checks int

	// Rounds is the number of repetitions in the checks of order and atomicity;
	// default 500. With a slow device, 50 find most of what 500 find.
	Rounds int

	// Timeout bounds each wait; default one minute.
	Timeout time.Duration

	// LargeAllocates leaves out that large transfers of the program's own memory allocate nothing:
	// for a build whose checks of registrations do.
	LargeAllocates bool

	// Host runs the checks; default goroutines, in real time.
	Host Host
}

// Run checks the whole contract.
func Run(t *testing.T, o Options) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, o) })
	}
}

// check is one clause of the contract.
type check struct {
	name string
	f    func(*group)
}

var cases = []check{
	{"RandomOperationsMatchAModel", (*group).randomOperations},
	{"EveryAlignmentAndShortLengthIsExact", (*group).alignments},
	{"LargeTransfersAreExact", (*group).largeTransfers},
	{"ZeroLengthsAreFine", (*group).zeroLengths},
	{"MappedIsTheSegment", (*group).mapped},

	{"RangesOutsideTheSegmentAreRefused", (*group).bounds},
	{"MisalignedAndUnknownAtomicsAreRefused", (*group).badAtomics},
	{"RanksOutsideTheJobAreRefused", (*group).badRanks},
	{"HostileAddressesAreRefused", (*group).hostileAddresses},

	{"HandlesAreCollectedOnceInAnyOrder", (*group).handles},
	{"ImplicitOperationsCompleteAtFlush", (*group).implicit},
	{"BlockingOperationsAreExact", (*group).blocking},
	{"BatchesMayBeLargerThanDepth", (*group).largeBatches},
	{"GathersAndScattersAreExact", (*group).gather},
	{"BatchesOfTwoPartsDoNotMix", (*group).twoParts},
	{"BadBatchesPostNothing", (*group).badBatches},
	{"MemoryInUseStaysRegistered", (*group).memoryLife},
	{"AwaitEndsWithItsContext", (*group).awaits},
	{"SourceMayBeReusedWhenPromised", (*group).sourceReuse},
	{"WaitEndsWithItsContext", (*group).waitContext},
	{"AbandonedOperationsAreDoneByFlush", (*group).abandoned},
	{"WaitWordHonoursConditionContextAndStop", (*group).waitWord},

	{"EveryAtomicOfEveryTypeIsExact", (*group).atomicTable},
	{"ImplicitAtomicsCompleteAtFlush", (*group).implicitAtomics},
	{"AtomicsOfManyLanesAddUp", (*group).concurrentAtomics},
	{"AtomicsOnHalvesOfAWordAreExact", (*group).concurrentHalves},
	{"SwapsOfManyLanesLoseNothing", (*group).concurrentSwaps},
	{"DataIsThereWhenTheFlagIs", (*group).messagePassing},
	{"FlushOrdersPutsBeforeGets", (*group).flushOrders},
	{"FlushNamesWhatADeadPeerLost", (*group).flushNames},
	{"QuietLanesHaveNothingInFlight", (*group).quiet},

	{"EveryRankReachesEveryRankAtOnce", (*group).crowd},

	{"CountersAddUp", (*group).countersAddUp},
	{"OperationsAllocateNothing", (*group).allocations},

	{"DownPeerFailsAndOthersDoNot", (*group).peerDown},
	{"PeerDownEndsWhatIsInFlight", (*group).peerDownInFlight},
	{"PeerDownFailsItsGroupsAlone", (*group).deathInBatches},
	{"LanesAreLimitedAndReusable", (*group).laneLimit},
	{"CloseIsIdempotentAndRefusesWithLanes", (*group).closing},
}

// run makes a group and checks one clause on it.
func (c check) run(t T, o Options) {
	o.Ranks = max(2, orDefault(o.Ranks, 3))
	o.SegmentSize = orDefault(o.SegmentSize, 4<<20)
	o.Rounds = orDefault(o.Rounds, 500)
	g := &group{o: o, ranks: o.New(t, o.Ranks, o.SegmentSize), rng: rand.New(rand.NewPCG(1, 2))}
	if len(g.ranks) != o.Ranks {
		t.Fatalf("the factory made %d ranks, want %d", len(g.ranks), o.Ranks)
	}
	g.run(t, o.Host, o.Timeout, func() { c.f(g) })
}

func orDefault[N int | time.Duration](v, d N) N {
	if v == 0 {
		return d
	}
	return v
}

// base is what both kinds of groups need.
type base struct {
	T
	host Host
	ctx  context.Context // bounds every wait
}

// run runs one check.
func (b *base) run(t T, h Host, timeout time.Duration, check func()) {
	if b.T, b.host = t, h; h == nil {
		b.host = Goroutines()
	}
	b.must("check", b.host.Main(func() {
		var cancel context.CancelFunc
		b.ctx, cancel = b.host.WithTimeout(t.Context(), orDefault(timeout, time.Minute))
		defer cancel()
		check()
	}))
}

// must ends the check when something that should succeed does not.
func (b *base) must(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

// each runs f once per index, all at the same time, and fails with their errors.
// The first error ends the others' waits.
func (b *base) each(n int, f func(ctx context.Context, i int) error) {
	b.Helper()
	b.must("concurrent operations", together(b.ctx, b.host, n, f))
}

// group is a job of connected ranks under one check.
type group struct {
	base
	o     Options
	ranks []Rank
	rng   *rand.Rand // same numbers in each run
}

// lane opens a lane of a rank that is closed when the check ends.
func (g *group) lane(rank int) fabric.Lane {
	g.Helper()
	l, err := g.ranks[rank].Net.NewLane()
	if err != nil {
		g.Fatalf("lane of rank %d: %v", rank, err)
	}
	g.Cleanup(func() { _ = l.Close() })
	return l
}

// finish waits for an operation that was just posted.
func (g *base) finish(l fabric.Lane, what string, h fabric.Handle, err error) (old uint64) {
	g.Helper()
	g.must(what, err)
	old, err = l.Wait(g.ctx, h)
	g.must("wait for "+what, err)
	return old
}

// put, get and amo do one operation to its end.

func (g *group) put(l fabric.Lane, peer int, off uint64, src []byte) {
	g.Helper()
	h, err := l.Put(peer, off, src, 0)
	g.finish(l, "put", h, err)
}

func (g *group) get(l fabric.Lane, peer int, off uint64, n int) []byte {
	g.Helper()
	dst := make([]byte, n)
	h, err := l.Get(peer, off, dst, 0)
	g.finish(l, "get", h, err)
	return dst
}

func (g *group) amo(l fabric.Lane, peer int, off uint64, a fabric.Atomic) uint64 {
	g.Helper()
	old, h, err := l.Atomic(peer, off, a, 0)
	if h == fabric.Done {
		g.must(a.Op.String(), err)
		return old
	}
	return g.finish(l, a.Op.String(), h, err)
}

// same ends the check when bytes are not as they should be.
func (g *base) same(what string, got, want []byte) {
	g.Helper()
	if err := differ(got, want); err != nil {
		g.Fatalf("%s: %v", what, err)
	}
}

func differ(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(got), got[i], want[i])
		}
	}
	return nil
}

// random fills n bytes.
func (g *group) random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.rng.Uint32())
	}
	return b
}

// many is a count well above what fits a lane at once, but bounded.
func (g *group) many() int { return min(3*g.ranks[0].Net.Limits().Depth+1, 1000) }

// property checks f for random inputs, as many as the options want.
func (g *group) property(f func(t *rapid.T)) {
	if g.o.Checks > 0 {
		const name = "rapid.checks"
		was := flag.Lookup(name).Value.String()
		flag.Set(name, strconv.Itoa(g.o.Checks))
		defer flag.Set(name, was)
	}
	rapid.Check(g.T, f)
}
