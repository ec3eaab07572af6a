package conduit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fencecheck"
	"github.com/ibconduit/conduit/internal/global"
)

// With Config.Cache.Check all accesses of a worker take the way through fences, where they tell a
// fence checker. It knows all ranks in a job of one process; else the worker reads again now and
// then what its cache has, and compares.

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

// knowsAll is this rank in a checker that is told of all ranks, or nil.
func knowsAll(j *Job) *fencecheck.Rank {
	if j.checker == nil || j.cfg.together == nil {
		return nil
	}
	return j.checker.Rank(j.rank)
}

// checks are what a worker tells the fence checker. A nil one tells nothing.
type checks struct {
	f     *fences
	w     *fencecheck.Worker
	exact bool // the checker is told of all ranks
	turn  uint64
	again []byte
	begun func() // tells that what was begun last, and its owner waits for, is there; or nil
}

// openChecks has a worker's cache checked.
func (f *fences) openChecks() {
	if f.job.checker == nil || f.kept == nil {
		return
	}
	f.check = &checks{f: f, w: f.job.checker.Rank(f.job.rank).NewWorker(), exact: knowsAll(f.job) != nil}
	f.cache = nil // accesses come here first
}

// through returns the checks of an access that goes through the cache, or nil.
func (f *fences) through(node uint32, n int, flag fabric.Flag) *checks {
	if f == nil || f.check == nil || f.w.inChain || int(node)-1 == f.job.rank || flag != fabric.Blocking && n >= f.kept.DirectMin() {
		return nil
	}
	if rank := int(node) - 1; !f.job.cfg.Cache.Mapped && f.w.To(rank).Mapped(rank) != nil {
		return nil
	}
	f.catchUp()
	return f.check
}

// put and get go through the cache.
func (k *checks) put(ctx context.Context, rank int, off uint64, src []byte, f fabric.Flag) error {
	k.writes(rank, off, len(src), f)
	return k.f.kept.Put(ctx, rank, off, src)
}

func (k *checks) get(ctx context.Context, rank int, off uint64, dst []byte) error {
	ordered := k.reads(rank, off, len(dst))
	hits := k.f.kept.Stats().GetHits
	err := k.f.kept.Get(ctx, rank, off, dst)
	if err == nil && ordered && k.f.kept.Stats().GetHits != hits {
		return k.compare(rank, off, dst)
	}
	return err
}

// begin is get where the caller does not wait, if the cache has a place for it.
func (k *checks) begin(rank int, off uint64, dst []byte, f fabric.Flag) (h fabric.Handle, begun bool, err error) {
	if h, begun, err = k.f.gets.Begin(rank, off, dst, f&fabric.Implicit != 0); begun {
		k.reads(rank, off, len(dst))
	}
	return h, begun, err
}

// compareEvery is of how many hits one is read again, at random.
const compareEvery = 8

// compare reads again what the cache has had. Where it is another by now somebody has written it
// since the worker acquired, and so without an order; unless the worker has itself, by an atomic.
func (k *checks) compare(rank int, off uint64, had []byte) error {
	k.turn = k.turn*6364136223846793005 + 1442695040888963407 // Knuth, TAOCP vol. 2, 3.3.4
	if k.turn>>33%compareEvery != 0 || k.f.begun || k.f.kept.Own(rank, off, len(had)) {
		return nil
	}
	if len(k.again) < len(had) {
		k.again = make([]byte, max(len(had), scratchMin))
	}
	w, now := k.f.w, k.again[:len(had)]
	l := w.To(rank)
	h, err := l.Get(rank, w.begin+off, now, fabric.Blocking)
	if err == nil && h != fabric.Done {
		if _, err = l.Wait(w.ctx, h); err != nil {
			l.Abandon(h)
			k.again = nil
		}
	}
	if err == nil && !bytes.Equal(had, now) {
		k.w.Stale(rank, off, len(had))
	}
	return inRegion(err, w.begin)
}

// writes tells of a put.
func (k *checks) writes(rank int, off uint64, n int, f fabric.Flag) {
	if k == nil || !k.exact {
		return
	}
	k.begun = nil
	switch {
	case f == fabric.Blocking:
		k.w.Write(rank, off, n)
	case f&fabric.Implicit != 0:
		k.w.WriteLater(rank, off, n)
	default:
		k.begun = k.w.WriteLater(rank, off, n)
	}
}

// watch returns by which lane and handle to wait for what the checker was told of last.
func (f *fences) watch(old uint64, l fabric.Lane, h fabric.Handle, err error) (fabric.Lane, fabric.Handle) {
	if f == nil || f.check == nil || f.check.begun == nil || err != nil {
		return l, h
	}
	return &watched{l, h, old, f.check.begun}, ^fabric.Done
}

// watched is the lane of one operation, of which the checker hears when the program knows that it
// is there. It has a handle also where it is there at once.
type watched struct {
	fabric.Lane
	h       fabric.Handle
	old     uint64 // if h is Done
	arrived func()
}

func (l *watched) Wait(ctx context.Context, _ fabric.Handle) (old uint64, err error) {
	if old = l.old; l.h != fabric.Done {
		old, err = l.Lane.Wait(ctx, l.h)
	}
	if err == nil {
		l.arrived()
	}
	return old, err
}

func (l *watched) Test(_ fabric.Handle) (old uint64, done bool, err error) {
	if old, done = l.old, l.h == fabric.Done; !done {
		old, done, err = l.Lane.Test(l.h)
	}
	if done && err == nil {
		l.arrived()
	}
	return old, done, err
}

func (l *watched) Abandon(fabric.Handle) {
	if l.h != fabric.Done {
		l.Lane.Abandon(l.h)
	}
}

// reads tells of a get, and returns whether it is in order.
func (k *checks) reads(rank int, off uint64, n int) (ordered bool) {
	return k == nil || !k.exact || k.w.Read(rank, off, n)
}

// deposit tells of the payload of a message.
func (k *checks) deposit(rank int, off uint64, n int) {
	if k != nil && k.exact {
		k.w.Deposit(rank, off, n)
	}
}

// update tells of an atomic that begins.
func (k *checks) update(rank int, off uint64, n int, f fabric.Flag) {
	if k == nil || !k.exact {
		return
	}
	arrived := k.w.Update(rank, off, n, f&fabric.Implicit == 0)
	if k.begun = nil; f&fabric.Implicit == 0 {
		k.begun = func() {
			arrived()
			k.w.Hear(rank, off, n)
		}
	}
}

// heard tells of a word that the worker has waited for.
func (k *checks) heard(off uint64) {
	if k != nil && k.exact {
		k.w.Hear(k.f.job.rank, off, 8)
	}
}

func (k *checks) released() {
	if k != nil {
		k.w.Release()
	}
}

func (k *checks) delivered() {
	if k != nil {
		k.w.Deliver()
	}
}

func (k *checks) acquired() {
	if k != nil {
		k.w.Acquire()
	}
}

// updates is nil-safe in both.
func (f *fences) updates(rank int, off uint64, n int, flag fabric.Flag) {
	if f != nil {
		f.check.update(rank, off, n, flag)
	}
}

func (k *checks) close() {
	if k != nil {
		k.w.Close()
	}
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
	if f := w.fences; f != nil && f.check != nil {
		f.check.note(global.Node(p), p.Offset(), n*int(unsafe.Sizeof(*new(T))), (*fencecheck.Worker).Load)
	}
}

// NoteStore is NoteLoad of memory that this rank stores to.
func NoteStore[T any](w *Worker, p Ptr[T], n int) {
	if f := w.fences; f != nil && f.check != nil {
		f.check.note(global.Node(p), p.Offset(), n*int(unsafe.Sizeof(*new(T))), (*fencecheck.Worker).Store)
	}
}

func (k *checks) note(node uint32, off uint64, n int, tell func(*fencecheck.Worker, uint64, int)) {
	if size := uint64(len(k.f.job.seg.User())); !k.exact || int(node)-1 != k.f.job.rank || n < 0 || uint64(n) > size || off > size-uint64(n) {
		return
	}
	k.f.catchUp()
	tell(k.w, off, n)
}
