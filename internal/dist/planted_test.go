//go:build !race && !debug && !biglock

package dist

import (
	"testing"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// Mistakes of other implementations, among them the original's comment that rank i has one block
// more if i <= blocks mod ranks, are found.
func TestSuiteFindsPlantedFaults(t *testing.T) {
	edit := func(old, wrong string) []faulttest.Edit {
		return []faulttest.Edit{{File: "internal/dist/dist.go", Old: old, New: wrong}}
	}
	faulttest.Suite{Package: "internal/dist", Known: true, Run: "^Test(Elements|Pointers|LocalParts|LocalRunsCover)"}.Check(t,
		faulttest.Fault{Name: "a block more at one rank too many", Found: "elements at rank",
			Edits: edit("	case t < last:\n		n += l.block\n	case t == last:", "	case t <= last:\n		n += l.block\n	case t == last+1:")},
		faulttest.Fault{Name: "divisions round to zero", Found: "FAIL: TestPointers",
			Edits: edit("	if mod < 0 {\n		mod += d\n		div--\n	}\n", "	if mod < 0 {\n		mod += d\n	}\n")},
		faulttest.Fault{Name: "the row is forgotten", Found: "FAIL: TestElements|FAIL: TestPointers",
			Edits: edit("Off: (row*l.block + phase) * l.size}", "Off: (row + phase) * l.size}")},
	)
}
