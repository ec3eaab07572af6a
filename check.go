package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/fencecheck"
	"github.com/ibconduit/conduit/internal/global"
)

// With Config.Cache.Check all accesses of a worker go through lanes that tell a fence checker
// (cache.Checks). It hears of all ranks in a job of one process; else the worker reads again now
// and then what its cache has, and compares.

// together is what the ranks of RunLocal share.
type together struct {
	once    sync.Once
	checker *fencecheck.Checker
}

// openChecker makes the job's fence checker, if it has one.
func openChecker(j *Job) {
	c := j.cfg.Cache
	if c == nil || !c.Check {
		return
	}
	found := c.Report
	if found == nil {
		found = func(r fencecheck.Report) { fmt.Fprintln(os.Stderr, r) }
	}
	if t := j.cfg.together; t != nil {
		t.once.Do(func() { t.checker = fencecheck.New(j.size, found) })
		j.checker = t.checker
	} else {
		j.checker = fencecheck.New(j.size, found)
	}
}

// knowsAll is this rank in a checker that hears of all ranks, or nil.
func knowsAll(j *Job) *fencecheck.Rank {
	if j.checker == nil || j.cfg.together == nil {
		return nil
	}
	return j.checker.Rank(j.rank)
}

// word is what the library's own messages tell a fence checker that knows all ranks: am.Fencer.
// They order what the program does as its own do, but no worker acquires because of them.
type word struct{ j *Job }

func (word) Request(context.Context, am.Via, int, uint64, int) error { return nil }

// Reply tells nothing of a call that failed here.
func (m word) Reply(_ am.Via, rank int, err error) {
	if err == nil || errors.As(err, new(*am.RemoteError)) {
		m.Handler(rank)
	}
}

func (m word) Handler(from int) {
	if r := knowsAll(m.j); r != nil {
		r.Message(from)
	}
}

// meeting tells the checker of a collective operation.
func meeting(r *fencecheck.Rank, o coll.Operation) (ended func()) {
	flow := fencecheck.FlowAll
	switch o.Kind {
	case coll.KindBroadcast, coll.KindScatter:
		flow = fencecheck.FlowFrom
	case coll.KindReduce, coll.KindGather:
		flow = fencecheck.FlowTo
	case coll.KindScan, coll.KindExScan:
		flow = fencecheck.FlowUp
	}
	m := fencecheck.Meeting{Slot: o.Slot, Generation: o.Generation, First: o.First, Number: o.Number}
	return r.Meet(m, o.Me, o.Size, flow, o.Root)
}

// NoteLoad tells the fence checker (cache.Config.Check) that this rank loads n elements of its own
// memory from p on, as memory ([Job.Segment], [Slice], [Array.Local]), at some time between the
// worker's fence before the call and the one behind it: the checker sees gets and puts only.
// Without a checker, or for another rank's memory, it does nothing.
func NoteLoad[T any](w *Worker, p Ptr[T], n int) {
	note(w, global.Node(p), p.Offset(), n*int(unsafe.Sizeof(*new(T))), (*fencecheck.Worker).Load)
}

// NoteStore is NoteLoad of memory that this rank stores to.
func NoteStore[T any](w *Worker, p Ptr[T], n int) {
	note(w, global.Node(p), p.Offset(), n*int(unsafe.Sizeof(*new(T))), (*fencecheck.Worker).Store)
}

func note(w *Worker, node uint32, off uint64, n int, tell func(*fencecheck.Worker, uint64, int)) {
	if size := uint64(len(w.job.seg.User())); w.kept.told == nil || int(node)-1 != w.job.rank || n < 0 || uint64(n) > size || off > size-uint64(n) {
		return
	}
	w.catchUp()
	tell(w.kept.told, off, n)
}
