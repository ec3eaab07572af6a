//go:build !race && !debug && !biglock

package main

import (
	"regexp"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// Without either barrier the fence checker names the two lines that it was between.
func TestPlantedBarriersAreMissed(t *testing.T) {
	without := func(name, old, wrong, a, b string) faulttest.Fault {
		a, b = regexp.QuoteMeta(`"`+a+`"`), regexp.QuoteMeta(`"`+b+`"`)
		return faulttest.Fault{Name: name, Found: "(" + a + "\n *" + b + "|" + b + "\n *" + a + ")",
			Edits: []faulttest.Edit{{File: "examples/heat/main.go", Old: old, New: wrong}}}
	}
	faulttest.Suite{Package: "examples/heat", Run: "^TestNoFenceIsMissing$", Timeout: time.Minute, Known: true}.Check(t,
		without("a step", "if err := job.Barrier(ctx); err != nil { // all", "if err := ctx.Err(); err != nil { // all",
			"err := now.GetSlice(w, rows, from)", "conduit.NoteStore(w, next.At(first), len(mine))"),
		without("the end", "if err := job.Barrier(ctx); err != nil || job.Rank() > 0 {", "if err := ctx.Err(); err != nil || job.Rank() > 0 {",
			"if err := now.GetSlice(w, all, 0); err != nil || !slices.Equal(all, alone) {", "conduit.NoteStore(w, next.At(first), len(mine))"))
}
