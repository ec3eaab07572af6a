package conduit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/global"
	"github.com/ibconduit/conduit/internal/heap"
	"github.com/ibconduit/conduit/internal/spin"
)

// view is what the parts of a job see of it: env.Env.
type view struct{ j *Job }

var _ env.Env = view{}

func (v view) Rank() int { return v.j.rank }
func (v view) Size() int { return v.j.size }

func (v view) Region(name string) env.Region {
	b, off := v.j.seg.Region(name)
	if b == nil {
		panic(fmt.Sprintf("conduit: no part of the job asked for a region %q: it belongs into the table of parts", name))
	}
	return env.Region{Bytes: b, Off: off}
}

// NewLanes opens lanes that a part's needs counted.
func (v view) NewLanes() (env.Lanes, error) {
	all, err := v.j.networks.newLanes()
	if err != nil {
		return nil, fmt.Errorf("conduit: lanes of a part: %w", err)
	}
	l, s := &lanes{job: v.j, all: all}, &v.j.workers
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parts[l] = struct{}{}
	return l, nil
}

func (v view) Messages() am.Via          { return v.j.services() }
func (v view) Endpoints() []*am.Endpoint { return v.j.library.all }
func (v view) Learned()                  { v.j.learned() }

func (v view) CopyMax() int { return v.j.networks.copyMax }

func (v view) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	return fabric.WaitWord(ctx, &spin.Waiter{Sharing: &v.j.sharing}, word, c, value, stop)
}

func (v view) Crowded() bool { return v.j.sharing.Crowded() }

func (v view) Down(rank int) error           { return v.j.members.cause(rank) }
func (v view) SetDown(rank int, cause error) { v.j.members.die(rank, cause) }
func (v view) Context() context.Context      { return v.j.members.over }
func (v view) Host() env.Host                { return env.Goroutines{} }
func (v view) Logger() *slog.Logger          { return v.j.cfg.Logger }

func (v view) Budget() env.Budget {
	if b := v.j.memory.Budget(); b != nil {
		return b
	}
	return nil
}

// OnDown has the networks informed first: when a part learns of a death from the goroutine that
// found it, they have ended what went to that rank.
func (v view) OnDown(f func(rank int, cause error)) (stop func()) { return v.j.members.informs(f) }

// workerView is what a part sees of a worker: env.Worker.
type workerView struct{ w *Worker }

func (v workerView) Open(op string) error {
	if v.w.peers == nil {
		return errClosed(op, "worker")
	}
	return nil
}

func (v workerView) Enter(op string) error { return v.w.enter(op) }
func (v workerView) Exit()                 { v.w.exit() }

func (v workerView) Get(rank int, off uint64, dst []byte) (env.Get, error) {
	p := getSlice(v.w, dst, global.Of[byte](uint32(rank+1), off), 0)
	if p.lane == nil || p.err == nil && p.h == fabric.Done || errors.Is(p.err, ErrPeerDown) {
		return nil, p.err
	}
	return &partGet{p}, p.err
}

// partGet is a get of a part: env.Get.
type partGet struct{ p Pending }

func (g *partGet) Wait(ctx context.Context) (bool, error) {
	err := g.p.wait(ctx)
	return g.p.h == fabric.Done, err
}

func (g *partGet) Test() (bool, error) { return g.p.test() }

// arrayJob is what arrays see of a job: arrays.Job.
type arrayJob struct{ j *Job }

func (v arrayJob) Rank() int       { return v.j.rank }
func (v arrayJob) Size() int       { return v.j.size }
func (v arrayJob) Segment() []byte { return v.j.seg.User() }

func (v arrayJob) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	return heapTeam(v).AllGather(ctx, mine)
}

func (v arrayJob) AllAlloc(ctx context.Context, count, size uint64) (off uint64, ok bool, err error) {
	p, err := v.j.heaps.shared.AllAlloc(ctx, count, size, heap.LineAlign)
	if err != nil || p.IsNull() {
		return 0, false, err
	}
	return p.Offset() + v.j.heaps.base, true, nil
}

func (v arrayJob) AllFree(ctx context.Context, off uint64) (free bool, err error) {
	lost, err := freeBy(ctx, v.j, "close of an array", true, (*heap.Heap).AllFree, At[byte](0, off))
	return err == nil, withLost(lost, err)
}

// arrayWorker is what arrays see of a worker: arrays.Worker.
type arrayWorker struct{ w *Worker }

func (v arrayWorker) Check(op string, node uint32, off, n uint64) error {
	_, _, err := v.w.check(op, node, off, n)
	return err
}

func (v arrayWorker) Valid(node uint32, off, n uint64) bool {
	rt, _ := v.w.valid(node, off, n)
	return rt != nil
}

func (v arrayWorker) Copy(kind fabric.Kind, node uint32, off uint64, mem []byte) (bool, error) {
	if v.w.mapped(node, off, uint64(len(mem))) == nil {
		return false, nil
	}
	return true, v.begin(kind, node, off, mem, 0).finish()
}

func (v arrayWorker) Start(kind fabric.Kind, node uint32, off uint64, mem []byte, f fabric.Flag) (fabric.Lane, fabric.Handle, error) {
	p := v.begin(kind, node, off, mem, f)
	return p.lane, p.h, p.err
}

func (v arrayWorker) begin(kind fabric.Kind, node uint32, off uint64, mem []byte, f fabric.Flag) Pending {
	p := global.Of[byte](node, off)
	if kind == fabric.KindPut {
		return putSlice(v.w, p, mem, f)
	}
	return getSlice(v.w, mem, p, f)
}

func (v arrayWorker) Wait(l fabric.Lane, h fabric.Handle) error {
	_, err := v.w.await(l, h)
	return err
}

func (v arrayWorker) Chain(kind fabric.Kind, start func() error) error {
	if v.w.inChain || kind == fabric.KindPut && v.w.lines != nil { // the waits post, or the cache combines
		return start()
	}
	return v.w.Chain(start)
}

func (v arrayWorker) Gathers(node uint32, off uint64) bool {
	return v.w.lines != nil && !v.w.inChain && !v.w.lines.Bypasses(int(node)-1, off)
}

func (v arrayWorker) Remote(node uint32) bool { return v.w.lines.Keeps(int(node) - 1) }

func (v arrayWorker) Gather(places []cache.Place, n int, dst []byte) error {
	if err := v.w.enter("get"); err != nil {
		return err
	}
	defer v.w.exit()
	v.w.catchUp()
	return inRegion(v.w.lines.Gather(v.w.ctx, places, n, dst), v.w.begin)
}
