package main

import (
	"testing"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/exampletest"
)

func TestNoFenceIsMissing(t *testing.T) {
	exampletest.Checked(t, 3, conduit.Config{SegmentSize: 4 << 20, HeapSize: 2 << 20}, tally)
}
