package fabrictest

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/shm"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/segment"
)

func TestMain(m *testing.M) {
	// The planted faults are meant to be found, not to be minimised or kept.
	flag.Parse()
	flag.Set("rapid.nofailfile", "true")
	flag.Set("rapid.shrinktime", "1ns")
	handletest.VerifyTestMain(m)
}

// recorder is a T whose failures are the result and not the test's.
type recorder struct {
	t        *testing.T
	ctx      context.Context
	mu       sync.Mutex
	log      strings.Builder
	failed   bool
	cleanups []func()
}

// record runs one check and says whether it failed.
func record(t *testing.T, c check, o Options) (failed bool, log string) {
	return recordFunc(t, func(r *recorder) { c.run(r, o) })
}

func recordFunc(t *testing.T, f func(r *recorder)) (failed bool, log string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &recorder{t: t, ctx: ctx}
	done := make(chan struct{})
	go func() { // FailNow ends the goroutine
		defer close(done)
		defer r.cleanUp()
		f(r)
	}()
	<-done
	return r.failed, r.log.String()
}

func (r *recorder) cleanUp() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}

func (r *recorder) write(fail bool, s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fail
	r.log.WriteString(s + "\n")
}

func (r *recorder) Helper()                   {}
func (r *recorder) Name() string              { return r.t.Name() }
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Context() context.Context  { return r.ctx }
func (r *recorder) Logf(f string, a ...any)   { r.write(false, fmt.Sprintf(f, a...)) }
func (r *recorder) Log(a ...any)              { r.write(false, fmt.Sprint(a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.write(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(a ...any)            { r.write(true, fmt.Sprint(a...)) }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) Fatal(a ...any)            { r.Error(a...); runtime.Goexit() }
func (r *recorder) FailNow()                  { r.write(true, ""); runtime.Goexit() }
func (r *recorder) Fail()                     { r.write(true, "") }
func (r *recorder) Failed() bool              { r.mu.Lock(); defer r.mu.Unlock(); return r.failed }
func (r *recorder) Skipf(f string, a ...any)  { r.Fatalf("skipped: "+f, a...) }
func (r *recorder) Skip(a ...any)             { r.Fatal(a...) }
func (r *recorder) SkipNow()                  { r.FailNow() }

// makeRanks is a factory of ranks whose lanes have a fault.
func makeRanks(wrap func(fabric.Network) fabric.Network) func(t T, n, size int) []Rank {
	return func(t T, n, size int) []Rank {
		ranks, nets := make([]Rank, n), make([]fabric.Network, n)
		for r := range n {
			m, err := segment.Map(segment.Config{Size: int64(size), Shared: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			nets[r], err = shm.New(shm.Config{Rank: r, Size: n, Segment: m, Job: t.Name()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nets[r].Close() })
			ranks[r] = Rank{Net: wrap(nets[r]), Segment: m.Bytes()}
		}
		if err := Connect(t.Context(), nets); err != nil {
			t.Fatal(err)
		}
		return ranks
	}
}

func smallOptions(wrap func(fabric.Network) fabric.Network) Options {
	return Options{New: makeRanks(wrap), SegmentSize: 1 << 20, Checks: 50, Rounds: 200}
}

func TestSoundNetworkPasses(t *testing.T) {
	o := smallOptions(func(n fabric.Network) fabric.Network { return n })
	for _, c := range cases {
		if failed, log := record(t, c, o); failed {
			t.Errorf("%s failed:\n%s", c.name, log)
		}
	}
}

// Each fault must be caught by the check that names what it breaks.
func TestPlantedFaultsAreCaught(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			o := smallOptions(func(n fabric.Network) fabric.Network { return &faultyNet{Network: n, fault: f} })
			o.Timeout = 2 * time.Second // some faults show as waits without end
			for _, want := range f.caught {
				c, ok := find(want)
				if !ok {
					t.Fatalf("there is no check %q", want)
				}
				if failed, log := record(t, c, o); !failed {
					t.Errorf("%s passed:\n%s", want, log)
				}
			}
		})
	}
}

// A check that no planted fault can fail proves nothing.
func TestEveryCheckCatchesAFault(t *testing.T) {
	catches := map[string]bool{}
	for _, f := range faults {
		for _, c := range f.caught {
			catches[c] = true
		}
	}
	for _, c := range cases {
		if !catches[c.name] {
			t.Errorf("no planted fault is caught by %s", c.name)
		}
	}
}

func find(name string) (check, bool) {
	for _, c := range cases {
		if c.name == name {
			return c, true
		}
	}
	return check{}, false
}
