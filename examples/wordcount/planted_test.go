//go:build !race && !debug && !biglock

package main

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// Without the atomic that reads a bucket the fence checker names the two lines that it was between.
// The barriers are not missed: what counts words orders them by its atomics and calls in most
// schedules, and no access conflicts with memory that is freed.
func TestPlantedReadsAreFound(t *testing.T) {
	const get, swap = `"first, err = conduit\.FetchAdd\(w, bucket\(w, word\), 0\)"`, `"if old, err := conduit\.CompareSwap\(.*"`
	faulttest.Suite{Package: "examples/wordcount", Run: "^TestNoFenceIsMissing$", Timeout: time.Minute, Known: true}.Check(t, faulttest.Fault{
		Name: "a bucket is got", Found: get + `\n *` + swap + `|` + swap + `\n *` + get,
		Edits: []faulttest.Edit{{File: "examples/wordcount/main.go", Old: "conduit.FetchAdd(w, bucket(w, word), 0)", New: "conduit.Get(w, bucket(w, word))"}},
	})
}
