//go:build !race && !debug && !biglock

package cache_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// planted is a mistake in the cache, and the litmus tests that must find it.
type planted struct {
	name   string
	edits  []faulttest.Edit
	litmus []int
	tags   string
}

func in(file, old, wrong string) faulttest.Edit {
	return faulttest.Edit{File: "cache/" + file, Old: old, New: wrong}
}

func edits(e ...faulttest.Edit) []faulttest.Edit { return e }

// litmusFaults name for each litmus test a mistake under which it fails.
var litmusFaults = []planted{
	{name: "an acquire makes nothing old", litmus: []int{1, 2, 3, 5, 6, 8, 21, 23, 24, 25, 37, 45, 46},
		edits: edits(in("fence.go", "if p.epoch++; p.epoch == always {", "if false {"), in("fence.go", "\tp.n.Acquires++\n\tp.reads.len = 0\n", "\tp.n.Acquires++\n"))},
	{name: "a fetch in flight outlives an acquire", litmus: []int{4},
		edits: edits(in("flights_datapath.go", "if err == nil && e.epoch >= p.epoch {", "if err == nil {"),
			in("pages.go", "\tif e.wanted&lines != 0 {\n\t\tc.cancel(e)\n\t}\n", ""))},
	{name: "a release waits for nothing", litmus: []int{7, 10, 12, 42},
		edits: edits(in("fence.go", "\tfor c.net.puts > 0 {\n\t\tif err := c.net.awaitAny(ctx, opPut)", "\tfor false {\n\t\tif err := c.net.awaitAny(ctx, opPut)"))},
	{name: "a fetch overwrites what was put", litmus: []int{11, 13, 14, 26, 27, 28, 30, 31, 43},
		edits: edits(in("flights_datapath.go", "\t\tif e.mask == none {\n\t\t\tcopy(page[low", "\t\tif true {\n\t\t\tcopy(page[low"))},
	{name: "a page changes while it is written", litmus: []int{9, 16, 33},
		edits: edits(in("put_datapath.go", "\t\tcase e.op != none:\n\t\t\tif err := c.net.await(", "\t\tcase false:\n\t\t\tif err := c.net.await("))},
	{name: "a direct operation is before what was put", litmus: []int{19, 20},
		edits: edits(in("fence.go", "if p.work = dirty; len(dirty) > 0 {", "if p.work = dirty; false {"))},
	{name: "a direct write leaves copies", litmus: []int{17, 18, 20, 44},
		edits: edits(in("fence.go", "err != nil || !write {\n\t\treturn err", "true {\n\t\treturn err"))},
	{name: "bytes beside a write are written", litmus: []int{22, 23, 24},
		edits: edits(in("put_datapath.go", "from, n := nextRun(m, true, at, p.pageMask+1)\n", "from, n := nextRun(m, true, at, p.pageMask+1)\n\t\tif n > 0 {\n\t\t\tn = min(n+1, p.pageMask+1-from)\n\t\t}\n"))},
	{name: "the table forgets what was pushed on", litmus: []int{35, 36, 49},
		edits: edits(in("entries_datapath.go", "if home := d.table.home(d.keyOf(j)); (next-home)&mask >= (next-free)&mask {", "if false {"))},
	{name: "epochs begin anew without the entries", litmus: []int{38},
		edits: edits(in("fence.go", "\tfor i := range c.entries {\n\t\tif e := &c.entries[i];", "\tfor i := range c.entries[:0] {\n\t\tif e := &c.entries[i];"))},
	{name: "a write that fails is forgotten", litmus: []int{39, 40}, edits: edits(in("flights_datapath.go", "\tc.lost.Add(failure(err, \"put\", rank))\n", ""))},
	{name: "misses count as hits", litmus: []int{48}, edits: edits(in("get_datapath.go", "\t\tmissed = true\n", ""))},
	{name: "a page leaves with what was put", litmus: []int{15, 33},
		edits: edits(in("put_datapath.go", "return e.mask == none && e.wanted == 0 &&", "return e.wanted == 0 &&"))},
	{name: "a fetch from before a write ends behind it", litmus: []int{14, 34},
		edits: edits(in("flights_datapath.go", "\t\tif e.wanted != 0 { // it may have been read before the write arrived\n\t\t\tp.cancel(e)\n\t\t}\n", ""))},
	{name: "no bytes are refused", litmus: []int{29},
		edits: edits(in("get_datapath.go", "\tcase n == 0:\n\t\tp.n.GetHits++\n\t\treturn nil\n", "\tcase n == 0:\n\t\treturn errNothing\n"))},
	{name: "a promise of the program is forgotten", litmus: []int{47}, edits: edits(in("hint.go", "e.keep = c.survives(e.key); e.keep {", "e.keep = false; e.keep {"))},
	{name: "two goroutines may be inside", litmus: []int{41}, tags: "debug", edits: edits(in("get_datapath.go", "dst []byte) error {\n\tp := c.pages\n\tif owner.Checked {", "dst []byte) error {\n\tp := c.pages\n\tif owner.Checked && false {"))},
	{name: "a closed cache goes on", litmus: []int{32}, edits: edits(in("pages.go", "\tcase c.closed:\n", "\tcase false:\n"))},
}

// TestLitmusTestsFindPlantedFaults has each litmus test fail once. Without faults they pass in
// TestLitmus.
func TestLitmusTestsFindPlantedFaults(t *testing.T) {
	for _, f := range litmusFaults {
		var names, fails []string
		slices.Sort(f.litmus)
		for _, n := range f.litmus {
			names, fails = append(names, fmt.Sprintf("%02d", n)), append(fails, fmt.Sprintf(`--- FAIL: TestLitmus/%02d `, n))
		}
		faulttest.Suite{Package: "cache", Run: "^TestLitmus$/^(" + strings.Join(names, "|") + ")$", Tags: f.tags, Args: []string{"-seeds=32"}, Timeout: 2 * time.Minute, Known: f.tags == "", All: true}.Check(t,
			faulttest.Fault{Name: f.name, Edits: f.edits, Found: "(?s)" + strings.Join(fails, ".*")})
	}
}

func TestEachLitmusTestHasAPlantedFault(t *testing.T) {
	for _, l := range litmusTests {
		if !slices.ContainsFunc(litmusFaults, func(f planted) bool { return slices.Contains(f.litmus, l.number) }) {
			t.Errorf("litmus %d (%s) fails under no planted fault", l.number, l.name)
		}
	}
}

// modelFaults are those of litmusFaults that the model must find too, and others.
var modelFaults = append(named("an acquire makes nothing old", "a fetch in flight outlives an acquire", "a fetch overwrites what was put",
	"a page changes while it is written", "a direct operation is before what was put", "a direct write leaves copies",
	"bytes beside a write are written", "the table forgets what was pushed on", "a fetch from before a write ends behind it"),
	planted{name: "lines are valid before they are there", edits: edits(in("flights_datapath.go", "\te.wanted |= f.lines\n", "\te.valid |= f.lines\n"))},
	planted{name: "a key without the rank", edits: edits(in("pages.go", "return uint64(rank+1)<<rankShift | off", "return uint64(1)<<rankShift | off"))},
	planted{name: "the last line is missed", edits: edits(in("pages.go", "(o+n-1)>>(c.lineShift&63)-first+1)", "max((o+n-1)>>(c.lineShift&63)-first, 1))"))},
	planted{name: "a release forgets a page", edits: edits(in("fence.go", "\tif err := c.writer.write(bound, &p.n.FlushRelease)", "\tp.work = p.work[:max(0, len(p.work)-1)]\n\tif err := c.writer.write(bound, &p.n.FlushRelease)"))},
	planted{name: "an atomic leaves what was put behind", edits: edits(in("fence.go", "{ return c.release(ctx, false) }", "{ return nil }"))},
	planted{name: "what passed by is forgotten in flight", edits: edits(in("exposed.go", "if !l.Quiet(rank) {", "if !l.Quiet(rank) && false {"))},
	planted{name: "puts that passed by are not exposed", edits: edits(in("fence.go", "\tif write {\n\t\tc.net.expose", "\tif false {\n\t\tc.net.expose"))},
)

func named(names ...string) (all []planted) {
	for _, f := range litmusFaults {
		if slices.Contains(names, f.name) {
			all = append(all, f)
		}
	}
	return all
}

// TestTheModelFindsPlantedFaults has each mistake found within a minute.
func TestTheModelFindsPlantedFaults(t *testing.T) {
	var faults []faulttest.Fault
	for _, f := range modelFaults {
		faults = append(faults, faulttest.Fault{Name: f.name, Edits: f.edits, Found: "oracle|verify:|panic:"})
	}
	faulttest.Suite{Package: "cache", Run: "^TestModel$", Args: []string{"-operations=300000"}, Timeout: time.Minute}.Check(t, faults...)
}
