//go:build !race && !debug && !biglock

package am_test

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// The model of the acquirer finds what would make a job stand still.
func TestTheModelFindsPlantedFaults(t *testing.T) {
	edit := func(old, wrong string) []faulttest.Edit {
		return []faulttest.Edit{{File: "am/acquire.go", Old: old, New: wrong}}
	}
	faulttest.Suite{Package: "am", Run: "^TestEveryOrderOfAcquisitionEndsWell$", Timeout: 3 * time.Minute, Known: true}.Check(t,
		faulttest.Fault{
			Name: "credit before reply buffer",
			Edits: append(edit("stageReply                // the receive buffer for the reply\n", "stageCredit                // the receive buffer for the reply\n"),
				edit("stageCredit               // the right to use", "stageReply               // the right to use")...),
			Found: "nothing can happen any more",
		},
		faulttest.Fault{Name: "a commit waits with its buffer", Edits: edit("\tkeep()\n\ta.cancel(b)\n", "\tkeep()\n"), Found: "send buffers of"},
		faulttest.Fault{
			Name: "a reply takes a credit", Found: "credits of|nothing can happen any more",
			Edits: edit("reply(*peer) bool { return true }", "reply(p *peer) bool { return a.from.takeCredit(p) }"),
		},
		faulttest.Fault{
			Name: "a release serves no waiter", Found: "which is there",
			Edits: edit("\tp.calls--\n\ta.serve(&p.place)\n", "\tp.calls--\n"),
		},
		faulttest.Fault{
			Name: "a complete claim is not woken", Found: "was not woken",
			Edits: edit("\tif a.acquire(c) {\n\t\tc.w.unpark()\n\t}\n", "\ta.acquire(c)\n"),
		},
	)
	faulttest.Suite{Package: "am", Run: "^TestEveryEndOfARequestLeavesTheRestToOthers$", Timeout: 3 * time.Minute, Known: true}.Check(t,
		faulttest.Fault{Name: "who gives up serves nobody", Edits: edit("\t\ta.serve(a.queueOf(c))\n", ""), Found: "which is there"},
		faulttest.Fault{
			Name: "a death wakes no one who waits for room", Found: "a dead peer, and was not woken",
			Edits: edit("queues[4], queues[5], queues[6] = &p.place, &p.credit, &p.room", "queues[4], queues[5] = &p.place, &p.credit"),
		},
		faulttest.Fault{
			Name: "a share outlives its connection", Found: "shares of",
			Edits: edit("if c.share == c.p.connection+1 && c.p.shares > 0 {", "if c.share != 0 {"),
		},
	)
}

// The tests of progress find lost wake-ups and waits that do not poll.
func TestTheSuiteFindsPlantedFaults(t *testing.T) {
	edit := faulttest.In("am")
	const asleep = "|polled [1-9][0-9]* times, rank 1 keeps 0 replies" // which a busy machine shows sooner
	crowd := faulttest.Suite{Package: "am", Run: "^(TestARankServesACrowd|TestTheLeadGoesToAParkedGoroutine)$", Timeout: time.Minute, Known: true}
	crowd.Check(t,
		faulttest.Fault{
			Name: "no poll", Found: "polled 0 times",
			Edits: append(edit("progress.go", "if g.tryLead() {\n\t\t\tif !counted", "if false {\n\t\t\tif !counted"),
				edit("progress.go", "!g.closing.Load() && g.lead.Load() {", "!g.closing.Load() {")...),
		},
		faulttest.Fault{
			Name: "no hand-over", Edits: edit("progress.go", "if g.waiting.Load() != 0 && !g.lead.Load() {", "if false {"),
			Found: `call "hold" to rank 1: context deadline exceeded` + asleep,
		},
		faulttest.Fault{
			Name: "a reply takes a credit", Edits: edit("acquire.go", "reply(*peer) bool { return true }", "reply(p *peer) bool { return a.from.takeCredit(p) }"),
			Found: "keeps [1-9][0-9]* replies",
		},
	)
	all := faulttest.Suite{Package: "am", Run: "^TestConformanceInSimulation$", Args: []string{"-test.short"}, Timeout: 2 * time.Minute, Known: true}
	all.Check(t,
		faulttest.Fault{
			Name: "handlers run before buffers are posted", Edits: edit("receive_datapath.go", "\terr := c.pool.Reposted(b.taken, now)\n", "\tvar err error\n"),
			Found: "handlers may not run",
		},
		faulttest.Fault{
			Name: "buffers stay bare without spares", Edits: edit("receive_datapath.go", " && x.lent+len(x.bare) <= x.cfg.Spares", ""),
			Found: "receive buffers are posted and",
		},
		faulttest.Fault{
			Name: "a death frees a call's entry twice", Found: "replies to no call",
			Edits: edit("death.go", "\tc.dropOwedLocked(p.rank)\n", "\tif f := c.calls.free; f != 0 {\n\t\tc.calls.e[f-1].next = f\n\t}\n\tc.dropOwedLocked(p.rank)\n"),
		},
	)
}

// The random worlds of large payloads find what loses memory or places.
func TestTheLargeWorldsFindPlantedFaults(t *testing.T) {
	edit := faulttest.In("am")
	faulttest.Suite{Package: "am", Run: "^TestLargePayloadsInRandomWorlds$", Timeout: 2 * time.Minute, Known: true}.Check(t,
		faulttest.Fault{
			Name: "a withdrawal is not answered", Found: "stopped at|context deadline exceeded",
			Edits: edit("large_step.go", "\tif !a.decided {\n", "\tif false {\n"),
		},
		faulttest.Fault{
			Name: "a place is free before the answer", Found: "answers a payload that is not announced|is down",
			Edits: edit("large.go", "if s.sent = true; s.answered {", "if s.sent = true; true {"),
		},
		faulttest.Fault{
			Name: "a death forgets what was granted", Found: "blocks are back|stopped at",
			Edits: edit("large_step.go", "\t\tt.ended(a, cause)\n", "\t\tt.forget(a)\n"),
		},
		faulttest.Fault{
			Name: "a withdrawal comes back twice", Found: "has ended twice",
			Edits: edit("large_step.go", "\tt.ended(a, ErrWithdrawn)\n", "\tt.ended(a, ErrWithdrawn)\n\tt.c.functions++\n\tt.c.cfg.Host.Go(\"receiver\", a.callEnded)\n"),
		},
	)
}
