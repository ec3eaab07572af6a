//go:build !race && !debug && !biglock

package main

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// Without the barrier the fence checker names the two lines that it was between.
func TestPlantedBarriersAreMissed(t *testing.T) {
	faulttest.Suite{Package: "examples/hello", Run: "^TestNoFenceIsMissing$", Timeout: time.Minute, Known: true}.Check(t, faulttest.Fault{
		Name: "the barrier", Found: `conduit.Put\(w, conduit.At\[int64\]\(right, 8\)(?s:.*)"left, err := conduit.Get|"left, err := conduit.Get(?s:.*)conduit.Put\(w, conduit.At\[int64\]\(right, 8\)`,
		Edits: []faulttest.Edit{{File: "examples/hello/main.go", Old: "countErr, job.Barrier(ctx))", New: "countErr)"}},
	})
}
