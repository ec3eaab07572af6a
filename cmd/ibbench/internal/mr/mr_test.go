//go:build linux && cgo && (amd64 || arm64)

package mr

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func point(op string, regions int) plan.Point {
	return plan.Point{Kind: plan.MR, Op: op, Size: 4096, Regions: regions, Iters: 40, WarmupIters: 5, Depth: 1, Lanes: 1}
}

func measured(t *testing.T, pt plan.Point) *report.Series {
	t.Helper()
	var all []*report.Series
	err := Run(t.Context(), newFake("for a test"), Options{Points: []plan.Point{pt}, Pct: []float64{50, 99}, Seed: 1, Series: func(s *report.Series) error {
		all = append(all, s)
		return nil
	}})
	if err != nil || len(all) != 1 {
		t.Fatalf("%d series, %v", len(all), err)
	}
	s := all[0]
	if s.Result.Count != pt.Iters || s.Result.Mean <= 0 || s.Definition != plan.DefOp || s.Text("mr.registrar") != report.Fake || s.Env.Fabric != report.Fake || s.Env.ClockNS <= 0 {
		t.Errorf("%+v of %+v", s.Result, s.Env)
	}
	return s
}

func TestHitsAreHitsAndAllocateNothing(t *testing.T) {
	for _, regions := range []int{1, 300} {
		s := measured(t, point(plan.Hit, regions))
		// The measurement itself allocates a little, and only once.
		if s.Value("mr.hit.percent") != 100 || s.Value("mr.hit.allocs_per_op") > 1 && !owner.Checked || s.Result.Errors != 0 {
			t.Errorf("%d regions: %+v", regions, s.Metrics)
		}
	}
}

func TestTheOriginReachesTheCache(t *testing.T) {
	for _, o := range []regcache.Origin{regcache.Any, regcache.GoMapped, regcache.Malloc, regcache.Mapped} {
		pt := point(plan.Hit, 3)
		pt.Origin = o.String()
		s := measured(t, pt)
		if said := strings.Contains(strings.Join(s.Notes, "\n"), "of origin "+o.String()); said != (o != regcache.Mapped) || origin(pt) != o {
			t.Errorf("%v is measured as %v: %q", o, origin(pt), s.Notes)
		}
	}
}

func TestChurnFindsNoStaleRegistration(t *testing.T) {
	pt := point(plan.Churn, 20)
	pt.Cycles = 2000
	s := measured(t, pt)
	of := func(name string) float64 { return s.Value("mr.churn." + name) }
	if !s.Has("mr.churn.stale") || of("stale") != 0 || s.Result.Errors != 0 {
		t.Errorf("%v stale registrations", of("stale"))
	}
	if dead := of("dead_max"); dead < 1 || dead > float64(pt.Regions) {
		t.Errorf("%v dead registrations of %d regions", dead, pt.Regions)
	}
	over := s.Metrics["mr.churn.overhead_ns"]
	if of("raw.p50") <= 0 || of("cycle.p50") <= of("raw.p50") || of("raw_cycle.p50") <= of("raw.p50") || of("ratio") <= 0 || over.Low > over.High {
		t.Errorf("figures that cannot be: %+v", s.Metrics)
	}
}

func TestWithoutRegionsOnlyThePriceIsMeasured(t *testing.T) {
	pt := point(plan.Churn, 0)
	pt.Cycles = 100
	if s := measured(t, pt); s.Value("mr.churn.dead_max") != 0 || s.Value("mr.churn.raw.p50") <= 0 {
		t.Errorf("%+v", s.Metrics)
	}
}

// rig is the middle of a churn, for faults to be planted in.
func rig(t *testing.T, regions int) *churn {
	t.Helper()
	pt := point(plan.Churn, regions)
	s := &session{ctx: t.Context(), reg: newFake("for a test")}
	mem, err := mapRanges(regions, stride(pt))
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{Registrar: s.reg, pages: map[uint32]uint64{}}
	c, err := s.cache(pt, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), mem.close()); err != nil {
			t.Error(err)
		}
		if len(w.pages) != 0 {
			t.Errorf("%d registrations are left", len(w.pages))
		}
	})
	return &churn{s: s, pt: pt, mem: mem, w: w, c: c, out: new(report.Series)}
}

func TestAStaleRegistrationIsCounted(t *testing.T) {
	k := rig(t, 2)
	for i := range k.mem.at {
		if err := k.use(i); err != nil {
			t.Fatal(err)
		}
	}
	// As if range 1 had another page, unnoticed.
	*(*uint64)(k.mem.at[1]) = 1000
	for i := range k.mem.at {
		if err := k.use(i); err != nil {
			t.Fatal(err)
		}
	}
	if k.stale != 1 {
		t.Errorf("%d stale registrations, want 1", k.stale)
	}
}

func TestMemoryThatStaysIsResident(t *testing.T) {
	k := rig(t, 1)
	const kept = 300
	var grown int64
	for range 10 { // the kernel may take pages of the program's text meanwhile
		before, err := k.settle()
		if err != nil {
			t.Fatal(err)
		}
		leak, err := mapRanges(kept, page)
		if err != nil {
			t.Fatal(err)
		}
		after, err := resident()
		if err := errors.Join(err, leak.close()); err != nil {
			t.Fatal(err)
		}
		if grown = after - before; grown >= int64(kept*page) {
			return
		}
	}
	t.Errorf("%d bytes are there, %d more are resident", kept*page, grown)
}

func TestTimedLoopsDoNotAllocate(t *testing.T) {
	k := rig(t, 4)
	h := &hits{cache: k.c, at: k.mem.at, size: 4096}
	into := &slab{mem: make([]byte, slabBytes)}
	src := unsafe.Slice((*byte)(k.mem.at[0]), 4096)
	for name, f := range map[string]func() error{
		"hits":         func() error { return h.run(10) },
		"registration": func() error { _, _, err := registration(plain{}, uintptr(k.mem.at[0]), 4096); return err },
		"copy":         func() error { into.copy(src); return nil },
		"prices":       func() error { memevents.TimeUnmap(1, true); return nil },
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 && !(owner.Checked && name == "hits") { // the debug build reads page frames at each hit
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// Last, since a range that was taken away is not hit again.
	if n := testing.AllocsPerRun(100, func() {
		if err := k.mem.churn(0); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("churn: %v allocations", n)
	}
}

// plain is a registrar, and a registration, of nothing.
type plain struct{}

func (p plain) Register(uintptr, uint64, regcache.Access) (regcache.MR, error) { return p, nil }
func (plain) LKey() uint32                                                     { return 0 }
func (plain) RKey() uint32                                                     { return 0 }
func (plain) Close() error                                                     { return nil }

func TestCopiesGoRoundTheSlab(t *testing.T) {
	into := &slab{mem: make([]byte, slabBytes)}
	src := make([]byte, slabBytes+3*slabPiece+5)
	for i := range src {
		src[i] = byte(i / slabPiece)
	}
	into.copy(src)
	for i, want := range map[int]byte{0: slabBytes / slabPiece, 3 * slabPiece: slabBytes/slabPiece + 3, 4 * slabPiece: 4, slabBytes - 1: slabBytes/slabPiece - 1} {
		if into.mem[i] != want {
			t.Errorf("byte %d is of piece %d, want %d", i, into.mem[i], want)
		}
	}
	if into.at != 4*slabPiece {
		t.Errorf("the next copy goes to %d, want behind the last piece", into.at)
	}
}

func TestCrossoverIsWhereCopyingStaysDearer(t *testing.T) {
	costs := func(copies ...float64) (all []cost) {
		for i, c := range copies {
			all = append(all, cost{size: 4096 << i, copy: c, registration: 100, hit: 10})
		}
		return all
	}
	for _, c := range []struct {
		copies    []float64
		reg, hits string
	}{
		{[]float64{1, 20, 200}, "registration for one operation from 16384 bytes on", "a hit from 8192 bytes on"},
		{[]float64{20, 30, 40}, "less than a registration for one operation at every size", "more than a hit at every size"},
		{[]float64{1, 150, 50, 200}, "registration for one operation from 32768 bytes on", "a hit from 8192 bytes on"},
	} {
		if got := crossover(costs(c.copies...)); !strings.Contains(got, c.reg) || !strings.Contains(got, c.hits) {
			t.Errorf("%v: %q, want %q and %q", c.copies, got, c.reg, c.hits)
		}
	}
}

func TestOneInterruptionDoesNotChangeACompare(t *testing.T) {
	var pairs [][2]float64
	for range 100 {
		pairs = append(pairs, [2]float64{110, 100})
	}
	pairs[50] = [2]float64{1e9, 1}
	got := overParts(pairs, func(h, r float64) float64 { return h - r })
	if got != (report.Spread{Median: 10, Min: 10, Max: 10}) {
		t.Errorf("%+v", got)
	}
}

func TestAnEndedContextEndsAMeasurement(t *testing.T) {
	for _, op := range []string{plan.Hit, plan.Churn} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		pt := point(op, 5)
		pt.Iters, pt.Duration, pt.Cycles = 0, time.Hour, 1<<30
		err := Run(ctx, newFake("for a test"), Options{Points: []plan.Point{pt}, Series: func(*report.Series) error { return nil }})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestWhatFailsIsSaidWithItsPlace(t *testing.T) {
	pt := point(plan.Hit, memevents.Slots+1)
	if err := Run(t.Context(), newFake("for a test"), Options{Points: []plan.Point{pt}}); err == nil || !strings.Contains(err.Error(), "a process can watch") {
		t.Errorf("%v", err)
	}
	pt = point(plan.Hit, 1<<10)
	pt.Size = 1 << 40
	if err := Run(t.Context(), newFake("for a test"), Options{Points: []plan.Point{pt}}); !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "1024 regions") {
		t.Errorf("%v", err)
	}
}

func TestWithoutADeviceOnlyRegNeedsOne(t *testing.T) {
	if _, err := Open("no_such_device", "auto", false, false); err == nil {
		t.Error("a device that was named and is not there was replaced")
	}
	r, err := Open("", "auto", true, false)
	if err != nil || r.Name() != report.Fake || !strings.Contains(r.Why, "registers nothing") {
		t.Errorf("%+v, %v", r, err)
	}
}
