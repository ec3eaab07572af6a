//go:build !race && !debug && !biglock

package transient

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// The tests find what a hostile rank could get.
func TestHostileRanksFindPlantedFaults(t *testing.T) {
	const dir = "internal/transient"
	edit := faulttest.In(dir)
	faulttest.Suite{Package: dir, Run: "^TestHostileFetchesAndPayloads$", Timeout: 2 * time.Minute, Known: true}.Check(t,
		faulttest.Fault{Name: "data of any rank", Edits: edit("fetch_message.go", "f.rank != a.From() || ", ""), Found: "error <nil>"},
		faulttest.Fault{Name: "data of any length", Edits: edit("fetch_message.go", " || a.Size() > f.n {", " {"), Found: "error <nil>"})
}
