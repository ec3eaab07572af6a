//go:build !race && !debug && !biglock

package coll_test

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// The tests of this package find mistakes in what it promises.
func TestPlantedFaults(t *testing.T) {
	edit := faulttest.In("coll")
	noNotice := edit("op.go", "if k != mine && k&which", "if k != mine && ^k&which")
	worlds := faulttest.Suite{Package: "coll", Run: "^TestRandomWorlds$", Args: []string{"-collectives=40000"}, Timeout: 2 * time.Minute, Known: true}
	worlds.Check(t,
		faulttest.Fault{Name: "a slot is taken twice",
			Edits: edit("slots.go", "	if s.taken {\n		return false\n	}\n", ""), Found: "slots|seed|bytes"},
		faulttest.Fault{Name: "no generation",
			Edits: edit("membership.go", "return uint64(t.generation)<<8 | message&0xff", "return 1<<8 | message&0xff"), Found: "seed"},
		faulttest.Fault{Name: "no generation in acknowledgements",
			Edits: edit("rails_datapath.go", "if uint32(v>>40) == t.generation {", "if v != 0 {"), Found: "seed"},
		faulttest.Fault{Name: "freed before all have come",
			Edits: edit("split.go", "		if err := o.rails.meet(); err != nil {\n			return err\n		}\n", ""), Found: "seed"},
		faulttest.Fault{Name: "the dead are not agreed on",
			Edits: edit("agreement.go", "if !a.final && h.unanimous(a) {", "if !a.final {"), Found: "seed"},
		faulttest.Fault{Name: "final is not kept",
			Edits: edit("agreement.go", "if set, ok := a.had[r&digests]; ok && r&final != 0 && !a.final {", "if set := a.out; false {"), Found: "seed"},
		faulttest.Fault{Name: "one report a rank",
			Edits: edit("membership.go", "uint64(t.generation%2)*", "0*"), Found: "seed"},
		faulttest.Fault{Name: "no credit is waited for",
			Edits: edit("rails_datapath.go", "	if r.sent-r.read >= depth {\n", "	if false {\n"), Found: "seed"},
		faulttest.Fault{Name: "a barrier says that its own messages were read",
			Edits: edit("rails_datapath.go", "r.read, r.acked = r.sent-1, r.got-1", "r.read, r.acked = r.sent+depth, r.got-1"), Found: "seed"},
		faulttest.Fault{Name: "the others are not told",
			Edits: edit("health.go", "	h.team.write(off, encodeBroken(h.team.generation, e))\n", "	_ = off\n"), Found: "seed"},
		faulttest.Fault{Name: "who leaves is waited for",
			Edits: edit("agreement.go", "case r&digests == gaveUp:", "case false:"), Found: "seed"},
		faulttest.Fault{Name: "a source is given back too soon",
			Edits: edit("team.go", "		err = o.settle(ctx)\n", "		o.flights = nil\n"), Found: "seed"},
		faulttest.Fault{Name: "places are granted twice",
			Edits: edit("pairs_datapath.go", "	p.busy |= 1 << place\n", ""), Found: "seed|wrong"},
		faulttest.Fault{Name: "data is used before it has come",
			Edits: edit("pairs_datapath.go", "if ahead := t.aheadOf(v, p.got[from]); ahead > 0 {", "if ahead := t.aheadOf(v, p.got[from]) + 1; ahead > 1 || v>>40 == uint64(t.generation) {"), Found: "seed|wrong"},
		faulttest.Fault{Name: "shares in the order of arrival",
			Edits: edit("shares_datapath.go", "err = o.fold(first, b)", "err = o.fold(acc, b)"), Found: "seed|wrong"},
		faulttest.Fault{Name: "the scratch is not waited for",
			Edits: edit("reduce_datapath.go", "		if err := o.settle(o.ctx); err != nil { // acc is used again\n			return err\n		}\n", ""), Found: "seed|wrong"},
		faulttest.Fault{Name: "a ring instead of a tree",
			Edits: edit("rounds_datapath.go", "more := min(has, o.step.t.n-has)", "more := min(has, o.step.t.n-has-1)"), Found: "seed"},
	)
	others := worlds
	others.Run = "^Test(ASplitThatFails|ADeathThatAPair|WhoIsTaken|MismatchedData)"
	others.Check(t,
		faulttest.Fault{Name: "a death is not heard of",
			Edits: edit("teams.go", "	m.ignore = e.OnDown(m.died)\n", "	m.ignore = func() {}\n"), Found: "seed"},
		faulttest.Fault{Name: "a death that a pair finds is not told",
			Edits: edit("health.go", " && !h.paired.Load()", ""), Found: "seed"},
		faulttest.Fault{Name: "who is taken for dead is not told",
			Edits: edit("health.go", "		h.dismiss(context.Background(), e.Rank, e.place())\n", ""), Found: "seed"},
		faulttest.Fault{Name: "a Split that failed is not told",
			Edits: edit("split.go", "				t.decline(o.ctx, p, err)\n", ""), Found: "seed"},
		faulttest.Fault{Name: "counts are not compared",
			Edits: edit("pairs_datapath.go", "return o.sign ^ mix(0, uint64(n))&0xffff", "return o.sign"), Found: "counts|expects|seed"},
		// Alone, a notice makes up for it, a little later.
		faulttest.Fault{Name: "neither grants nor notices are compared",
			Edits: append(noNotice, edit("pairs_datapath.go", "			(!o.step.numbers(v) || o.step.data == nil || v>>8&(1<<24-1) != o.step.signWith(i, o.step.data.out(i))>>8) {", "			false {")...), Found: "waits for a word|seed"},
	)
	others.Run = "^TestAnyMismatch"
	others.Check(t, faulttest.Fault{Name: "no notice", Edits: noNotice, Found: "kind"})
	budget := worlds
	budget.Run = "^Test(TwoTeamsShare|MemoryIsTaken|MemoryThatComes|ThePaceFollows)"
	budget.Check(t,
		faulttest.Fault{Name: "memory is taken before all have begun",
			Edits: edit("reduce_datapath.go", "	if err := o.rails.meet(); err != nil { // see collectWhole\n		return err\n	}\n", ""), Found: "all-reduce of"},
		faulttest.Fault{Name: "who sends holds memory",
			Edits: edit("reducer.go", "	if t.me != at {\n		if t.me >= members {", "	if b := t.shared.budget; b != nil && t.me != at {\n		if err := b.Acquire(o.ctx, 2*int64(d.size)); err != nil {\n			return err\n		}\n		defer b.Release(2 * int64(d.size))\n	}\n	if t.me != at {\n		if t.me >= members {"), Found: "seed"},
		faulttest.Fault{Name: "a broken team is not heard while memory is waited for",
			Edits: edit("reducer.go", "o.acquire(b, ", "b.Acquire(o.ctx, "), Found: "deadlock"},
		faulttest.Fault{Name: "memory that came too late is kept",
			Edits: edit("step.go", "	b.Release(n) // the memory was faster\n", ""), Found: "are outside"},
		faulttest.Fault{Name: "all places at any time",
			Edits: edit("pairs_datapath.go", "	width := t.width()\n", "	width := uint64(places)\n"), Found: "places were used"},
	)
}
