//go:build linux && cgo && (amd64 || arm64) && !race && !debug && !biglock

package regcache

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// Tests of this package notice faults of package memevents.
func TestPlantedFaultsAreNoticed_24(t *testing.T) {
	needCached(t, newCache(t, newFake()), Any)
	edit := faulttest.In("memevents")
	for _, x := range []struct {
		name, test string
		edits      []faulttest.Edit
	}{
		{"lookups skip the gate", "TestTheGateHoldsBackLookups_14", edit("entry_datapath.go", "gate.Load()&1 != 0 || ", "")},
		{"registrations skip the windows", "TestNothingIsCachedBetweenNoticeAndChange_08",
			edit("ibc_mem_table.c", "from == 1 || (from && from < hi && load(m->window[i].hi) > lo)", "from == 2")},
		// Not in the self-test, which notices it and leaves the work to userfaultfd; and a new place is
		// reported afterwards else.
		{"mremap's fixed destination is forgotten", "TestModelOfCallsThroughTheLibc_24",
			append(edit("ibc_mem_plan.c", "take(p, huge_rounded(m, c->u.mremap.to, new_len));", "if (load(m->test_tid)) take(p, huge_rounded(m, c->u.mremap.to, new_len));"),
				edit("ibc_mem_hooks.c", "if (fresh(p, r))", "if (0 && fresh(p, r))")...)},
	} {
		faulttest.Suite{Package: "regcache", Run: "^" + x.test + "$", Timeout: 5 * time.Minute, Known: true}.Check(t,
			faulttest.Fault{Name: x.name, Edits: x.edits, Found: "stale"})
	}
}
