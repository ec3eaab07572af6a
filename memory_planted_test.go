//go:build !race && !debug && !biglock

package conduit

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// The tests of transient memory find what loses bytes, has them twice, or waits for ever.
func TestMemoryTestsFindPlantedFaults(t *testing.T) {
	edit := faulttest.In("internal/transient")
	run := "^(TestAPayloadIsWithdrawn|TestAFetchIsAnsweredWhenItsDataAreReady|TestAFlushEndsGetsThatWereGivenUp)$"
	faulttest.Suite{Package: ".", Run: run, Timeout: 2 * time.Minute, Known: true}.Check(t,
		faulttest.Fault{Name: "a withdrawn offer stays", Found: "offer is withdrawn",
			Edits: edit("payload.go", "\t\tp.offer.Release()\n\t}\n}\n\n// run", "\t}\n}\n\n// run")},
		faulttest.Fault{Name: "a fetch that is given up waits on", Found: "all bytes come back",
			Edits: edit("fetch_message.go", "func (f *messageFetch) Cancel() { f.fail(flow.ErrWithdrawn) }", "func (f *messageFetch) Cancel() {}")},
		faulttest.Fault{Name: "a get that failed never ends", Found: "all bytes come back",
			Edits: edit("fetch_get.go", "range f.lost {\n\t\tg.ended(g.err)", "range f.lost {\n\t\t_ = g")})
}
