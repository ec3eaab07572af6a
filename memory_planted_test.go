//go:build !race && !debug && !biglock

package conduit

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// The tests of transient memory find what loses bytes, has them twice, or waits for ever.
func TestMemoryTestsFindPlantedFaults(t *testing.T) {
	fault := func(name, file, old, wrong, found string) faulttest.Fault {
		return faulttest.Fault{Name: name, Edits: []faulttest.Edit{{File: file, Old: old, New: wrong}}, Found: found}
	}
	run := "^(TestAPayloadIsWithdrawn|TestHostileFetchesAndPayloads|TestAFetchIsAnsweredWhenItsDataAreReady)$"
	faulttest.Suite{Package: ".", Run: run, Timeout: 2 * time.Minute, Known: true}.Check(t,
		fault("a withdrawn offer stays", "payload.go", "\t\tp.offer.Release()\n\t}\n}\n\n// run", "\t}\n}\n\n// run", "offer is withdrawn"),
		fault("data of any rank", "fetch_message.go", "f.rank != a.From() || ", "", "error <nil>"),
		fault("data of any length", "fetch_message.go", " || a.Size() > f.n {", " {", "error <nil>"),
		fault("a fetch that is given up waits on", "fetch_message.go", "func (f *messageFetch) Cancel() { f.fail(flow.ErrWithdrawn) }", "func (f *messageFetch) Cancel() {}", "all bytes come back"))
}
