//go:build !race && !debug && !biglock

package pagepool

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// The tests find runs that overlap, memory that a device has and the pool gives away, and the like.
func TestPlantedFaultsAreFound(t *testing.T) {
	fault := func(name, file, old, wrong, found string) faulttest.Fault {
		return faulttest.Fault{Name: name, Edits: []faulttest.Edit{{File: "internal/pagepool/" + file, Old: old, New: wrong}}, Found: found}
	}
	faulttest.Suite{Package: "internal/pagepool", Run: "^Test[^P]|^TestPinned", Timeout: time.Minute, Known: true}.Check(t,
		fault("pinned memory is given back", "area.go", "\tif a.pinned {\n\t\treturn 0\n\t}\n", "", "a device would write"),
		fault("warm pages stay", "pagepool.go", "\ts.fitLocked(most)\n\ts.stats", "\ts.stats", "have memory"),
		fault("runs are placed one by one", "pagepool.go", "\t\t\tfor k, off := range c.offs {\n\t\t\t\tr.a.paste(off/Size, c.sizes[k])\n\t\t\t}\n", "", "granted"),
		fault("a cancelled claim stops the queue", "pagepool.go", "\tif waited {\n\t\tc.r.serve()", "\tif false {\n\t\tc.r.serve()", "behind a claim that was cancelled"),
		fault("a hole is not made", "memory_linux.go", "unix.MADV_REMOVE)", "unix.MADV_DONTNEED)", "idle, and"),
	)
}
