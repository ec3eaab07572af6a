//go:build !race && !debug && !biglock

package flow

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// The random tests of budgets find mistakes, and the wait graphs those that let a job stand still.
func TestBudgetTestsFindPlantedFaults(t *testing.T) {
	fault := func(name, file, old, wrong, found string) faulttest.Fault {
		return faulttest.Fault{Name: name, Edits: []faulttest.Edit{{File: "flow/" + file, Old: old, New: wrong}}, Found: found}
	}
	const queue, set = "budget_queue.go", "budget_set.go"
	const passes = `
			for d := c.turn.Next(); d != nil; {
				next := d.turn.Next()
				if !d.place && b.fitsLocked(d.bytes, d.messages) {
					b.grantLocked(d, &b.bulk)
				}
				d = next
			}
			break
		}
		b.grantLocked(c, &b.bulk)
`
	run := "^(TestRandomBudgetsKeepTheAccounts|TestWaitGraphs.*|TestBytesAreShared.*|TestGrantedBytesWithoutMemory.*|TestADecreaseCounts.*)$"
	faulttest.Suite{Package: "flow", Run: run, Args: []string{"-steps=200000"}, Timeout: time.Minute, Known: true, All: true}.Check(t,
		fault("last in, first out", queue, "\tb.queue.Add(&c.turn, c)\n\tif", "\tdefer b.serveLocked()\n\tb.queue.AddFirst(&c.turn, c)\n\tif", "(?s)deadlock after.*earlier: order"),
		fault("what fits passes", queue, "\t\t\tbreak\n\t\t}\n\t\tb.grantLocked(c, &b.bulk)\n", passes, "deadlock after"),
		fault("hold and wait is not seen", queue, "case holds == 0:", "case true:", "deadlock after"),
		fault("bytes come back twice", set, "\t\tt.state = partOver\n", "", "freed twice|sum of"),
		fault("a cancelled set keeps its bytes", set, "\tfor i := range p.parts {\n\t\tp.free(i)\n\t}\n\tfor _, f := range cancel", "\tfor _, f := range cancel", "bytes are held|wait for ever"),
		fault("what comes back serves nobody", queue, "\t\tc.state = claimOver\n\t}\n\tb.serveLocked()\n", "\t\tc.state = claimOver\n\t}\n", "the first in the queue waits"),
		fault("small claims take the head's bytes", queue, "b.smalls.Len() == 0 && b.small.fits(n):", "b.smalls.Len() == 0:", "small held in its size"),
		fault("an offer passes its rank's earlier one", "budget_offers.go", "r.waiting.Add(&o.link, o)", "r.waiting.AddFirst(&o.link, o)", "earlier one: order"),
		fault("offers share by number", "budget_offers.go", "+ max(o.claim.bytes, 1)", "+ 1", "bytes of each rank"),
		fault("granted bytes count as used", "budget_adapt.go", "max(s.made, r.Made)", "max(s.held, r.Made)", "FAIL: TestGrantedBytesWithoutMemory"),
		fault("a decrease from an idle limit", "budget_adapt.go", "min(s.limit, max(s.peak, c.cfg.Floor))/2", "s.limit/2", "FAIL: TestADecreaseCounts"),
	)
}
