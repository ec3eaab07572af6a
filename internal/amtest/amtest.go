// Package amtest checks that active messages work over a network, as package fabrictest does for
// endpoints. Its checks follow the list of GASNet's tests of active messages (testcore1 to 5,
// testtoken, testalltoall, testimm, testcontend, testthreads, testlockcontend, testbarrier,
// testslice; testhsl is for the debug build, and in the tests of package am; testexit is of
// processes, and in the tests of package conduit) and add what package am promises beyond.
//
// Each check ends with the books: nothing is in flight, the counters' identities hold
// on every rank and across ranks, every buffer is back, and no message ever met a
// receiver without a buffer.
package amtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/fabrictest"
)

// Rank is one rank of a group in this process.
type Rank struct {
	Net     fabric.Messenger
	Segment []byte  // all bytes that the peers can reach
	Host    am.Host // nil: goroutines
}

// Options say how active messages are checked.
type Options struct {
	// New makes a group of n connected ranks with segments of size bytes. What it opens, it
	// closes in t.Cleanup; endpoints are closed before.
	New func(t fabrictest.T, n, size int) []Rank
	// Kill makes rank i of the last group die.
	Kill func(i int)

	Ranks  int             // default 4, at least 3
	Rounds int             // repetitions; default 100
	Limit  time.Duration   // bounds each check; default one minute
	Host   fabrictest.Host // nil: goroutines, in real time
}

// check is one clause of the contract.
type check struct {
	name string
	f    func(*group)
}

var checks = []check{
	{"Core1EveryPutAndGetByMessagesIsRight", (*group).core1},
	{"Core2PayloadsOfAllSizesFixedAndNegotiated", (*group).core2},
	{"Core3EveryCategoryEveryNumberOfArgumentsEveryReply", (*group).core3},
	{"Core4EveryFormOfEveryRequestTimesEveryReply", (*group).core4},
	{"TokenTellsWhoWhatAndWhere", (*group).token},
	{"AlltoallInThreePatterns", (*group).alltoall},
	{"ImmediateNeverWaitsAndLosesNothing", (*group).immediate},
	{"BarriersOfMessagesHoldUntilAllHaveCome", (*group).barrier},
	{"ContendManyGoroutinesOnOneEndpoint", (*group).contend},
	{"ThreadsDoEverythingAtOnce", (*group).threads},
	{"LocksAreSharedByHandlersAndGoroutines", (*group).locks},
	{"SliceRandomPartsOfSegments", (*group).slice},
	{"DeferredRepliesComeOnceOrExpire", (*group).deferred},
	{"PanicsAreErrorsOfTheCaller", (*group).panics},
	{"CancelledCallsLeaveNothingBehind", (*group).cancelled},
	{"SelfIsARankLikeOthers", (*group).self},
	{"DeathEndsEveryCallOnce", (*group).death},
	{"LargePayloadsArriveInGrantedMemory", (*group).large},
	{"LargePayloadsThatWaitHoldNothing", (*group).largeHolds},
	{"DeathEndsLargePayloadsOnce", (*group).largeDeath},
}

// Run runs all checks.
func Run(t *testing.T, o Options) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) { c.run(t, o) })
	}
}

const segmentSize = 1 << 16

func (c check) run(t fabrictest.T, o Options) {
	set(&o.Ranks, 4)
	set(&o.Rounds, 100)
	set(&o.Limit, time.Minute)
	if o.Host == nil {
		o.Host = fabrictest.Goroutines()
	}
	g := &group{T: t, o: o, table: am.NewTable(), rng: rand.New(rand.NewPCG(7, 8)), dead: make(map[int]bool)}
	g.ranks = o.New(t, max(3, o.Ranks), segmentSize)
	err := o.Host.Main(func() {
		var cancel context.CancelFunc
		g.ctx, cancel = o.Host.WithTimeout(t.Context(), o.Limit)
		defer cancel()
		defer g.close()
		c.f(g)
		g.settle()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func set[V int | time.Duration](v *V, d V) {
	if *v == 0 {
		*v = d
	}
}

// group is a job under one check.
type group struct {
	fabrictest.T
	o         Options
	ctx       context.Context
	rng       *rand.Rand
	ranks     []Rank
	table     *am.Table
	endpoints []*am.Endpoint
	dead      map[int]bool
}

// open opens an endpoint on every rank. Handlers are registered before.
func (g *group) open(cfg am.Config) {
	g.Helper()
	for i, r := range g.ranks {
		c := cfg
		c.Rank, c.Size, c.Table, c.Segment, c.Host = i, len(g.ranks), g.table, r.Segment, r.Host
		c.SilentAfter = g.o.Limit / 8
		c.StallAfter = g.o.Limit / 4 // says more than the end of the context
		l, err := am.Open(r.Net, 0, c)
		if err != nil {
			g.Fatal(err)
		}
		g.endpoints = append(g.endpoints, l)
	}
}

// each runs f for every rank at the same time.
func (g *group) each(f func(rank int, l *am.Endpoint) error) {
	g.Helper()
	g.several(1, func(rank, _ int, l *am.Endpoint) error { return f(rank, l) })
}

// several runs f for every rank n times at the same time.
func (g *group) several(n int, f func(rank, i int, l *am.Endpoint) error) {
	g.Helper()
	errs := make([]error, len(g.endpoints)*n)
	g.o.Host.Concurrently(len(errs), func(i int) {
		if err := f(i/n, i%n, g.endpoints[i/n]); err != nil {
			errs[i] = fmt.Errorf("rank %d: %w", i/n, err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		g.Fatal(err)
	}
}

// settle waits until nothing is in flight, and checks the books of all.
func (g *group) settle() {
	g.Helper()
	for i, l := range g.endpoints {
		if g.dead[i] {
			continue
		}
		if err := l.Quiesce(g.ctx); err != nil {
			g.Fatalf("rank %d: %v", i, err)
		}
	}
	var err error
	for err = g.books(); err != nil && g.ctx.Err() == nil; err = g.books() {
		g.o.Host.Sleep(time.Millisecond) // posts may be on their way
	}
	if err != nil {
		g.Fatal(err)
	}
}

// books compares what was sent with what arrived.
func (g *group) books() error {
	var sent, arrived uint64
	for i, l := range g.endpoints {
		if g.dead[i] {
			continue
		}
		s := l.Stats()
		if err := s.Check(); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
		if s.Lent+s.Handling+s.Prepared+s.Unsent+s.Owed > 0 || s.Broken > 0 || s.BadNotes > 0 {
			return fmt.Errorf("rank %d is not at rest: %+v", i, s)
		}
		if err := am.CheckAccounts(l); err != nil {
			return fmt.Errorf("rank %d: %w", i, err)
		}
		sent, arrived = sent+s.Calls+s.Posts, arrived+s.Requests
	}
	if sent != arrived && len(g.dead) == 0 {
		return fmt.Errorf("%d requests were sent and %d arrived", sent, arrived)
	}
	if len(g.dead) > 0 {
		return nil
	}
	return am.Reconcile(g.endpoints)
}

func (g *group) close() {
	for i, l := range g.endpoints {
		if err := l.Close(); err != nil && !g.dead[i] && !g.Failed() {
			g.Errorf("rank %d: %v", i, err)
		}
	}
}

// other is a rank that is not this one.
func (g *group) other(rank int, rng *rand.Rand) int {
	return (rank + 1 + rng.IntN(len(g.endpoints)-1)) % len(g.endpoints)
}

func source(rank, i int) *rand.Rand { return rand.New(rand.NewPCG(uint64(rank), uint64(i))) }

// fill writes bytes that follow from a seed.
func fill(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte(seed>>(8*(i%8))) ^ byte(i*7)
	}
}

// sum is a checksum that depends on the order.
func sum(b []byte) (s uint64) {
	s = 14695981039346656037
	for _, x := range b {
		s = (s ^ uint64(x)) * 1099511628211
	}
	return s
}
