package cache_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/fencecheck"
	"github.com/ibconduit/conduit/internal/parttest"
)

// fenceCheck is what a trial tells a fence checker, and which fence it leaves out.
type fenceCheck struct {
	*fencecheck.Checker
	omit    site
	sites   map[site]bool // that there are
	workers []*fencecheck.Worker
	hosts   []*fencecheck.Worker // of handlers
}

// site is a fence: a line of a litmus test, and which part of what the line does.
type site struct {
	line       int
	text, part string
}

func newFenceCheck(ranks int) *fenceCheck {
	return &fenceCheck{Checker: fencecheck.New(ranks, nil), sites: map[site]bool{}, workers: make([]*fencecheck.Worker, ranks), hosts: make([]*fencecheck.Worker, ranks)}
}

// lineOf is the text of a line of a test.
func lineOf(file string, line int) string {
	text, err := os.ReadFile(filepath.Base(file))
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(strings.Split(string(text), "\n")[line-1])
}

// isRig reports whether a file is no litmus test, but what they are written with.
func isRig(file string) bool {
	return strings.HasSuffix(file, "_rig_test.go") || strings.HasSuffix(file, "_fences_test.go")
}

// omits reports whether the trial leaves out the fence that the worker comes to.
func (w *worker) omits(part string) bool {
	if w.check == nil {
		return false
	}
	var pcs [12]uintptr
	for frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])]); ; {
		f, more := frames.Next()
		if !isRig(f.File) {
			s := site{f.Line, lineOf(f.File, f.Line), part}
			w.check.sites[s] = true
			return s == w.check.omit
		}
		if !more {
			return false
		}
	}
}

func (w *worker) checker() *fencecheck.Worker {
	if w.check == nil || w.glances {
		return nil
	}
	return w.check.workers[w.me]
}

func (w *worker) checked() {
	if w.check != nil {
		w.check.workers[w.me] = w.check.Rank(w.me).NewWorker()
	}
}

func (w *worker) reads(l location) {
	if k := w.checker(); k != nil {
		k.Read(l.rank, l.off, l.n)
	}
}

func (w *worker) writes(l location) {
	if k := w.checker(); k != nil {
		k.Write(l.rank, l.off, l.n)
	}
}

func (w *worker) loads(l location) {
	if k := w.checker(); k != nil && l.off >= flags {
		k.Load(l.off, l.n)
	}
}

func (w *worker) stores(l location) {
	if k := w.checker(); k != nil && l.off >= flags {
		k.Store(l.off, l.n)
	}
}

func (w *worker) updates(l location, fetch bool) {
	if k := w.checker(); k != nil {
		if arrived := k.Update(l.rank, l.off, l.n, fetch); fetch {
			arrived()
		}
	}
}

func (w *worker) releases() {
	if k := w.checker(); k != nil {
		k.Release()
	}
}

func (w *worker) acquires() {
	if k := w.checker(); k != nil {
		k.Acquire()
	}
}

// signals is an atomic store of a flag, and hears a load of one.
func (w *worker) signals(l location) {
	if k := w.checker(); k != nil {
		k.Update(l.rank, l.off, l.n, true)()
	}
}

func (w *worker) hears(l location) {
	if k := w.checker(); k != nil {
		k.Hear(l.rank, l.off, l.n)
	}
}

// meets tells of a meeting of all workers.
func (w *worker) meets() (ended func()) {
	k := w.checker()
	if k == nil {
		return func() {}
	}
	var in []int
	for i, o := range w.ranks {
		if o.f != nil {
			in = append(in, i)
		}
	}
	w.meetings++
	return w.check.Rank(w.me).Meet(fencecheck.Meeting{Number: w.meetings}, slices.Index(in, w.me), len(in), fencecheck.FlowAll, 0)
}

// handles tells of a call that runs f.
func (w *worker) handles(rank int, f func()) {
	k := w.checker()
	if k == nil {
		f()
		return
	}
	r := w.check.Rank(rank)
	if w.check.hosts[rank] == nil {
		w.check.hosts[rank] = r.NewWorker()
	}
	r.Message(w.me)
	w.check.hosts[rank].Acquire()
	f()
	w.check.Rank(w.me).Message(rank)
}

// handlerLoads and handlerStores are what f does there.
func (w *worker) handlerLoads(l location) {
	if w.check != nil {
		w.check.hosts[l.rank].Load(l.off, l.n)
	}
}

func (w *worker) handlerStores(l location) {
	if w.check != nil {
		w.check.hosts[l.rank].Store(l.off, l.n)
	}
}

// glance is get where a race is intended.
func (w *worker) glance(l location) []byte {
	w.glances = true
	defer func() { w.glances = false }()
	return w.get(l)
}

// racy are the litmus tests in which ranks race on purpose.
var racy = []int{2, 6, 7, 8, 9, 37}

// checkedRun runs a litmus test once with a fence checker, and without a fence.
func checkedRun(t *testing.T, l *litmus, s setup, seed uint64, omit site) *fenceCheck {
	x := newTrial(l, s, seed, false)
	x.check = newFenceCheck(len(x.ranks))
	x.check.omit = omit
	if err := x.onSim(); err != nil && omit == (site{}) {
		t.Fatalf("%v: %v", x, err)
	}
	return x.check
}

// TestTheCheckerKnowsCorrectLitmusTests has a fence checker watch all of them.
func TestTheCheckerKnowsCorrectLitmusTests(t *testing.T) {
	for i := range litmusTests {
		l := &litmusTests[i]
		t.Run(fmt.Sprintf("%02d", l.number), func(t *testing.T) {
			found := 0
			for k := range parttest.Of(max(1, 10/max(1, l.costs))) {
				c := checkedRun(t, l, setups[(l.number+3*k)%len(setups)], uint64(l.number+k), site{})
				found += len(c.Reports())
				if found > 0 && !slices.Contains(racy, l.number) {
					t.Fatalf("%s, seed %d: %v", setups[(l.number+3*k)%len(setups)].name, l.number+k, c.Reports())
				}
			}
			if found == 0 && slices.Contains(racy, l.number) {
				t.Error("its races are not found")
			}
		})
	}
}

// inLitmus is the line of a litmus test that an access comes from.
func inLitmus(a fencecheck.Access) string {
	for _, p := range a.Stack {
		if !isRig(p.File) {
			return lineOf(p.File, p.Line)
		}
	}
	return a.String()
}

// fences are those of litmus tests, in the order of their lines and with what they are parts of,
// and two lines that the checker names where one is taken out. Those without are not needed: behind
// the second barrier of test 45 nothing is read that was written before it.
var fences = map[int][]struct{ fence, first, second string }{
	1: {
		{"w.release()", "w.put(x.loc(0), 1)", "w.sees(x.loc(0), 1)"},
		{"w.acquire()", "w.put(x.loc(0), 1)", "w.sees(x.loc(0), 1)"},
	},
	5: {
		{"w.release()", "w.put(x.loc(0), 1)", "w.sees(x.loc(0), 1)"},
		{"w.acquire()", "w.put(x.loc(0), 1)", "w.sees(x.loc(0), 1)"}, // of who passes it on
		{"w.release()", "w.put(x.loc(1), 1)", "w.sees(x.loc(1), 1)"},
		{"w.acquire()", "w.put(x.loc(1), 1)", "w.sees(x.loc(1), 1)"},
	},
	21: {
		{"w.call(x.home, func(mem []byte) { acquire", "w.handlerStores(b)", "w.sees(b, 3)"},
		{"w.call(x.home, func(mem []byte) { release", "w.put(a, 1)", "w.handlerLoads(a)"},
	},
	45: {
		{"w.barrier() acquire", "w.put(x.loc(i), v)", "w.sees(x.loc(o), v)"},
		{"w.barrier()", "w.put(x.loc(i), v)", "w.sees(x.loc(o), v)"},
		{"w.barrier() release", "w.put(x.loc(i), v)", "w.sees(x.loc(o), v)"},
		{"w.barrier() acquire", "", ""},
		{"w.barrier()", "w.sees(x.loc(o), v)", "w.put(x.loc(i), v)"},
		{"w.barrier() release", "", ""},
	},
}

// Whichever fence is taken out, the checker names the two lines that it was between.
func TestTheCheckerFindsEachMissingFence(t *testing.T) {
	for number, want := range fences {
		l := &litmusTests[number-1]
		t.Run(fmt.Sprintf("%02d", number), func(t *testing.T) {
			all := map[site]bool{}
			for seed := range uint64(4) {
				maps.Copy(all, checkedRun(t, l, setups[1], seed, site{}).sites)
			}
			sites := slices.SortedFunc(maps.Keys(all), func(a, b site) int {
				return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.part, b.part))
			})
			if len(sites) != len(want) {
				t.Errorf("there are %d fences, the table has %d", len(sites), len(want))
			}
			for i, s := range sites {
				pairs := map[[2]string]bool{}
				for seed := range uint64(12) {
					for _, r := range checkedRun(t, l, setups[seed%uint64(len(setups))], seed, s).Reports() {
						pairs[[2]string{inLitmus(r.First), inLitmus(r.Second)}] = true
					}
				}
				name := s.text
				if name != "w."+s.part+"()" {
					name += " " + s.part
				}
				if i < len(want) && want[i].fence == name && (want[i].first == "" && len(pairs) == 0 || pairs[[2]string{want[i].first, want[i].second}]) {
					continue
				}
				t.Errorf("%d. %q is missing between %q", i, name, slices.Collect(maps.Keys(pairs)))
			}
		})
	}
}
