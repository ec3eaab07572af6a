package bench

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fencecheck"
)

// checkedRun is two runs of a kernel with a fence checker, of which one fence is left out.
type checkedRun struct {
	omit string                 // its line
	want func(a, b string) bool // lines of a report with which it may end
	stop context.CancelFunc

	mu     sync.Mutex
	fences []string // the lines that have one
	found  []fencecheck.Report
	done   bool
}

func (c *checkedRun) run(t *testing.T, k *Kernel, p Params) error {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	c.stop = stop
	cfg := conduit.Config{Fabric: conduit.FabricSHM, Cache: &cache.Config{Pages: 64, Mapped: true, Check: true, Report: c.report}}
	return onJobFor(ctx, t, k, p, 2, cfg, func(b *Bench) error {
		b.r.omits = c.omits
		return twice(b)
	})
}

func (c *checkedRun) omits() bool {
	_, file, line, _ := runtime.Caller(2)
	s := lineOf(file, line)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.fences, s) {
		c.fences = append(c.fences, s)
	}
	return s == c.omit
}

func (c *checkedRun) report(r fencecheck.Report) {
	a, b := kernelLine(r.First), kernelLine(r.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, r)
	if c.want != nil && (c.want(a, b) || c.want(b, a)) {
		c.done = true
		c.stop()
	}
}

// lineOf is the text of a line of the sources.
func lineOf(file string, line int) string {
	text, err := os.ReadFile(filepath.Base(file))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(strings.Split(string(text), "\n")[line-1])
}

// kernelLine is the kernel's line of an access, which may be by way of what kernels share.
func kernelLine(a fencecheck.Access) string {
	for _, p := range a.Stack {
		if filepath.Base(p.File) != "memory.go" {
			return lineOf(p.File, p.Line)
		}
	}
	return a.String()
}

// fewer are sizes for a checker, where tiny ones take seconds.
func fewer(k *Kernel, p Params) Params {
	if k.Name == "md" {
		p.Steps = 1
	}
	return p
}

func TestTheCheckerKnowsCorrectKernels(t *testing.T) {
	for _, k := range Kernels() {
		for _, p := range variants(k) {
			t.Run(k.Name+p.Variant, func(t *testing.T) {
				var c checkedRun
				if err := c.run(t, k, fewer(k, p)); err != nil {
					t.Error(err)
				}
				for _, r := range c.found {
					if a, b := kernelLine(r.First), kernelLine(r.Second); k.Name != "histogram" || a != histogramLooks && b != histogramLooks {
						t.Error(r)
					}
				}
			})
		}
	}
}

// Ranks add to words of histogram while others get them, on purpose.
const histogramLooks = "v, err := conduit.Get(r.w, at)"

const (
	prepared = "if err := b.r.barrier(); err != nil { // memory is prepared"
	flushed  = "if err := b.r.flush(); err != nil {"
	written  = "if err := b.r.barrier(); err != nil { // all is written"
)

// missing is a fence of a kernel by its line, and two lines that the checker names without it.
type missing struct{ fence, a, b string }

// kernelFences are all fences of kernels. Those without two lines can be left out: the flush in
// front of a barrier, which releases; the barrier behind the last access of kernels that check what
// they have read; those where another one follows before any access to other ranks' memory (of
// centrality.begin, an all-gather); and the flush of handoff, as a wait releases.
var kernelFences = map[string][]missing{
	"seq": {
		{prepared, "s.words.stores(r, 0, n)", "v, err = conduit.Get(r.w, at.Add(i))"}, {fence: flushed}, {fence: written},
	},
	"chase": {
		{prepared, "s.words.stores(r, 0, n)", "v, err = conduit.Get(r.w, at.Add(int(v)))"}, {fence: flushed}, {fence: written},
	},
	"gups": {
		{prepared, "g.table.stores(r, 0, g.table.per)", "if err := g.table.put(r.w, i, old^v); err != nil {"},
		{fence: flushed},
		{written, "g.table.loads(r, 0, g.table.per)", "if err := g.table.put(r.w, i, old^v); err != nil {"},
	},
	"indexgatherwords": {
		{prepared, "g.table.stores(r, 0, g.table.per)", "if g.got[k], err = g.table.get(r.w, i); err != nil {"}, {fence: flushed}, {fence: written},
	},
	"histogram": {
		{prepared, "h.table.stores(r, 0, h.table.per)", "if err := conduit.Add(r.w, at, 1); err != nil {"},
		{fence: flushed},
		{written, "h.table.loads(r, 0, h.table.per)", "if err := conduit.Add(r.w, at, 1); err != nil {"},
	},
	"ptransnaive": {
		{prepared, "t.a.stores(r, 0, t.a.n)", "v, err := conduit.Get(r.w, at)"}, {fence: flushed}, {fence: written},
	},
	"ptransput": {
		{prepared, "t.c.stores(r, 0, t.c.n)", "if err := conduit.Put(r.w, at, in[k]); err != nil {"},
		{fence: flushed},
		{written, "t.c.loads(r, 0, t.c.n)", "if err := conduit.Put(r.w, at, in[k]); err != nil {"},
	},
	"ssca2-k1": {
		{prepared, "c.cursor.stores(r, 0, c.cursor.n)", "if err := conduit.Add(r.w, c.cursor.on(v/c.per).Add(v%c.per), 1); err != nil {"},
		{"if err := r.barrier(); err != nil { // degrees are known", "c.cursor.stores(r, 0, c.cursor.n)",
			"if err := conduit.Add(r.w, c.cursor.on(v/c.per).Add(v%c.per), 1); err != nil {"},
		{"if err := r.barrier(); err != nil { // cursors are set", "c.cursor.stores(r, 0, c.cursor.n)",
			"k, err := conduit.FetchAdd(r.w, c.cursor.on(owner).Add(v%c.per), 1)"},
		{"if err := r.barrier(); err != nil { // edges are there", "c.slots.stores(r, 0, c.slots.n)",
			"if err := conduit.Put(r.w, c.slots.on(owner).Add(int(k)), slot{uint64(e.to), uint64(e.weight)}); err != nil {"},
		{fence: flushed}, {fence: written},
	},
	"ssca2-k2": {
		{prepared, "a.row.stores(r, 0, a.row.n)", "edges, err := conduit.Get(r.w, row.Add(h.per))"}, {fence: flushed}, {fence: written},
	},
	"ssca2-k3": {
		{prepared, "s.marks.stores(r, 0, s.marks.n)", "old, err := conduit.CompareSwap(r.w, s.mark(r, int(v)), 0, uint64(1+depth))"},
		{fence: flushed},
		{written, "s.marks.loads(r, 0, s.marks.n)", "if err := conduit.Put(r.w, s.mark(r, v), 0); err != nil {"},
	},
	"ssca2-k4": {
		{fence: prepared},
		{fence: "return r.barrier()"},
		{"if err := r.barrier(); err != nil { // the next level is known", "c.tail.loads(r, 0, 1)", "k, err := conduit.FetchAdd(r.w, c.tail.on(owner), 1)"},
		{"if err := r.barrier(); err != nil { // the level's dependencies are", "c.delta.stores(r, u, 1)", "dependency, err := c.delta.get(r, owner, i)"},
		{fence: flushed}, {fence: written},
	},
	"stencil": {
		{prepared, "h.pos[d].stores(r, 0, hi-lo)", "v, err := h.pos[d].get(r.w, node)"},
		{"if err := r.barrier(); err != nil { // the forces are there", "h.force[d].stores(r, 8*lo-first, min(8*hi, end)-8*lo)", "v, err := h.force[d].get(r.w, 8*e+c)"},
		{"if err := r.barrier(); err != nil { // the nodes are there, and the forces read", "h.pos[d].stores(r, 0, hi-lo)", "v, err := h.pos[d].get(r.w, node)"},
		{fence: flushed}, {fence: written},
	},
	"md": {
		{fence: prepared},
		{"if err := r.barrier(); err != nil { // all are wrapped", "a.pos.stores(r, 0, len(mine))", "if err := conduit.GetSlice(r.w, a.all[lo:hi], a.pos.on(rank)); err != nil {"},
		{"if err := r.barrier(); err != nil { // positions are read", "a.pos.stores(r, 0, hi-lo)", "q, err := a.pos.get(r.w, int(j))"},
		{"if err := r.barrier(); err != nil { // they are there", "a.pos.stores(r, 0, hi-lo)", "q, err := a.pos.get(r.w, int(j))"},
		{fence: flushed}, {fence: written},
	},
	"handoff": {
		{prepared, "h.ready.stores(r, 0, 1)", "if err := conduit.Put(r.w, at, uint64(round)); err != nil {"},
		{fence: "return r.flush()"},
		{"if err := r.wait(h.ready, round); err != nil {", "h.block.stores(r, 0, handoffWords)", "v, err := conduit.Get(r.w, theirs.Add(i))"},
		{"if err := r.wait(h.taken, round); err != nil {", "h.block.stores(r, 0, handoffWords)", "v, err := conduit.Get(r.w, theirs.Add(i))"},
		{fence: flushed}, {fence: written},
	},
	"bulk": {
		{prepared, "b.blocks.stores(r, 0, b.blocks.n)", "if err := conduit.PutSlice(r.w, at.Add(k), b.out[k:k+blockWords]); err != nil {"},
		{fence: flushed},
		{written, "b.blocks.loads(r, 0, b.blocks.n)", "if err := conduit.PutSlice(r.w, at.Add(k), b.out[k:k+blockWords]); err != nil {"},
	},
}

// Whichever fence of a kernel is left out, the checker names the two lines that it was between.
func TestTheCheckerFindsEachMissingFence(t *testing.T) {
	for _, k := range Kernels() {
		for _, p := range variants(k) {
			if want := kernelFences[k.Name+p.Variant]; want != nil {
				t.Run(k.Name+p.Variant, func(t *testing.T) { findsMissing(t, k, fewer(k, p), want) })
			}
		}
	}
}

// tries bounds how often a kernel is run for one fence: a rank that learns by a later word what the
// fence would have told it has the accesses in order.
const tries = 20

func findsMissing(t *testing.T, k *Kernel, p Params, all []missing) {
	var whole checkedRun
	if err := whole.run(t, k, p); err != nil {
		t.Fatal(err)
	}
	if len(whole.fences) != len(all) {
		t.Errorf("there are %d fences, the table has %d: %q", len(whole.fences), len(all), whole.fences)
	}
	for i, m := range all {
		if i < len(whole.fences) && whole.fences[i] != m.fence {
			t.Errorf("fence %d is %q, in the table %q", i, whole.fences[i], m.fence)
			continue
		}
		c := checkedRun{omit: m.fence}
		if m.a == "" {
			err := c.run(t, k, p)
			for _, r := range c.found {
				if k.Name != "histogram" {
					t.Errorf("without %q: %v: %v", m.fence, r, err)
				}
			}
			continue
		}
		for n := 0; n < tries && !c.done; n++ {
			c = checkedRun{omit: m.fence, want: func(a, b string) bool { return a == m.a && b == m.b }}
			_ = c.run(t, k, p) // it may compute anything
		}
		if !c.done {
			t.Errorf("without %q nothing is found between %q and %q; found: %v", m.fence, m.a, m.b, c.found)
		}
	}
}
