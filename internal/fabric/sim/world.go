package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/queue"
)

// World is a job of ranks, their network and its clock. It belongs to one
// goroutine, which while Run lasts belongs to the programs.
type World struct {
	cfg   Config
	id    uint64
	rng   generator
	hash  uint64
	text  []byte // of the trace's last line
	ranks []Rank

	now    int64 // ns
	serial uint64
	events uint64
	heap   heap

	runq    queue.Ring[*task]
	current *task
	tasks   queue.List[task] // all that have not ended, in the order of their starts
	live    int              // of them, those of ranks that live
	quiet   int              // looks of periodic timers since something else happened
	errs    []error
	fatal   error // ends the run
	ended   error // the error of parked tasks then

	foreign []*task // wait with contexts of the standard library
	adopted []*vctx // have parents of the standard library
	touched []*Rank // whose segments may have changed
	paths   paths
	links   map[link]uint32 // connections made so far
	tickets uint64          // of handshakes
	spare   []*datagram
	rnr     uint64
}

// Rank is one rank of a world, as its program sees it.
type Rank struct {
	w       *World
	id      int32
	dead    bool
	dirty   bool  // is in touched
	egress  int64 // when what it sent so far has left
	origin  int64 // of its clock
	slow    time.Duration
	ctx     *vctx
	rand    *rand.Rand
	words   []*task // in WaitWord
	net     Network
	segment []byte
}

// New makes a world in which nothing is open. Its ranks are connected by
// ConnectAll, or by each calling Connect.
func New(cfg Config) (*World, error) {
	if err := cfg.populate(); err != nil {
		return nil, err
	}
	w := &World{cfg: cfg, rng: generator(cfg.Seed), ranks: make([]Rank, cfg.Ranks), links: make(map[link]uint32)}
	w.paths.w = w
	w.hash, w.id = w.rng.next(), w.rng.next()
	for i := range w.ranks {
		r := &w.ranks[i]
		r.w, r.id = w, int32(i)
		r.origin = w.rng.below(int64(time.Hour))
		if cfg.Segment != nil {
			r.segment = cfg.Segment(i)
		} else if cfg.SegmentSize > 0 {
			r.segment = words(cfg.SegmentSize)
		}
		r.net.r = r
	}
	return w, nil
}

// Run runs a program on every rank that lives, until all its tasks have ended. It returns
// their errors, and why the run ended early if it did. A rank's context ends with its program.
//
// A panic of a program goes through to the caller, as does FailNow of a test.
func (w *World) Run(program func(ctx context.Context, r *Rank) error) error {
	for i := range w.ranks {
		r := &w.ranks[i]
		if r.dead {
			continue
		}
		ctx := w.newContext(context.Background())
		r.ctx = ctx
		w.spawn(r, "main", ctx, func(ctx context.Context) error {
			defer r.ctx.cancel(context.Canceled, nil)
			return program(ctx, r)
		})
	}
	return w.run()
}

// Do runs a function that belongs to no rank, until it and all others have ended.
func (w *World) Do(f func(ctx context.Context) error) error {
	w.Go("driver", f)
	return w.run()
}

// Go adds a task that belongs to no rank, to the run that lasts or the next one.
func (w *World) Go(name string, f func(ctx context.Context) error) {
	w.spawn(nil, name, w.newContext(context.Background()), f)
}

// At has f happen after d of virtual time: a fault, mostly. f must not wait.
func (w *World) At(d time.Duration, f func()) {
	c := &call{w: w, f: f}
	c.timer.owner = c
	w.arm(&c.timer, w.now+int64(d))
}

type call struct {
	timer timer
	w     *World
	f     func()
}

func (c *call) fire(*timer) { c.f() }

// Size is the number of ranks.
func (w *World) Size() int { return len(w.ranks) }

// Rank returns one rank.
func (w *World) Rank(i int) *Rank { return &w.ranks[i] }

// Now is the virtual time since the world began.
func (w *World) Now() time.Duration { return time.Duration(w.now) }

// Events is the number of events so far.
func (w *World) Events() uint64 { return w.events }

// RNR is how often a message met no receive slot, at all ranks.
func (w *World) RNR() uint64 { return w.rnr }

// ConnectAll does what Connect does on every rank, without addresses.
func (w *World) ConnectAll() {
	for i := range w.ranks {
		if n := &w.ranks[i].net; n.state == fresh {
			n.state = joined
		}
	}
}

// run lets everything happen until no task is left.
func (w *World) run() error {
	if w.ended != nil {
		w.unwind()
		return fmt.Errorf("sim: the world has ended: %w", w.ended)
	}
	if w.current != nil {
		return errors.New("sim: a task cannot run the world that runs it")
	}
	defer w.unwind() // also when a task panics, or ends the test
	for w.live > 0 && w.fatal == nil {
		switch {
		case w.runq.Len() > 0:
			w.resume(w.runq.Pop())
		case w.settle():
		default:
			w.step()
		}
	}
	errs := append(w.errs, w.fatal)
	w.errs = nil
	return errors.Join(errs...)
}

// step lets the next thing happen.
func (w *World) step() {
	h := &w.heap
	switch {
	case len(h.e) == 0 || len(h.e) == h.periodic && w.quiet > 200*h.periodic:
		n, lines := w.waiting()
		w.fatal = &DeadlockError{At: w.Now(), Tasks: n, Waiting: lines}
		return
	case h.e[0].at > int64(w.cfg.MaxTime):
		w.fatal = w.limit(fmt.Sprintf("%v of virtual time", w.cfg.MaxTime))
		return
	case w.events >= w.cfg.MaxEvents:
		w.fatal = w.limit(fmt.Sprintf("%d events", w.cfg.MaxEvents))
		return
	}
	if w.quiet++; len(h.e) != h.periodic {
		w.quiet = 0
	}
	w.events++
	t := h.e[0].t
	w.now = h.e[0].at
	h.remove(t)
	task := w.current
	w.current = nil // what happens by itself cannot wait
	t.owner.fire(t)
	w.current = task
}

// arm has a timer fire at a time, not before now.
func (w *World) arm(t *timer, at int64) {
	w.serial++
	w.heap.set(t, max(at, w.now), w.rng.next()&^(1<<32-1)|w.serial&(1<<32-1))
}

func (w *World) disarm(t *timer) {
	t.deadline = 0
	w.heap.remove(t)
}

// settle wakes the tasks that wait for something that others do without the world: they
// cancel contexts and store to segments. It reports whether there was one.
func (w *World) settle() bool {
	for i := 0; i < len(w.adopted); i++ {
		c := w.adopted[i]
		if c.Err() != nil { // that took it out
			i--
		}
	}
	for _, t := range w.foreign {
		if t.ctx.Err() != nil {
			w.wake(t)
		}
	}
	for _, r := range w.touched {
		r.dirty = false
		for _, t := range r.words {
			if t.word.holds() {
				w.wake(t)
			}
		}
	}
	w.touched = w.touched[:0]
	return w.runq.Len() > 0
}

// touch has settle look at the words of a rank, or of all.
func (w *World) touch(r *Rank) {
	if r == nil {
		for i := range w.ranks {
			w.touch(&w.ranks[i])
		}
	} else if !r.dirty && len(r.words) > 0 {
		r.dirty = true
		w.touched = append(w.touched, r)
	}
}

// ID is the rank's number.
func (r *Rank) ID() int { return int(r.id) }

// Size is the number of ranks.
func (r *Rank) Size() int { return len(r.w.ranks) }

// World is where the rank lives.
func (r *Rank) World() *World { return r.w }

// Net is the rank's attachment to the network.
func (r *Rank) Net() *Network { return &r.net }

// Segment is the rank's own memory.
func (r *Rank) Segment() []byte { return r.segment }

// Dead reports whether the rank was killed.
func (r *Rank) Dead() bool { return r.dead }

// Rand is a generator of the rank's own, made of the seed and the rank.
func (r *Rank) Rand() *rand.Rand {
	if r.rand == nil {
		g := generator(mix(r.w.cfg.Seed) ^ mix(uint64(r.id)+1))
		r.rand = rand.New(&g)
	}
	return r.rand
}

// Go starts a further task of the rank. Its context is the program's.
func (r *Rank) Go(name string, f func(ctx context.Context) error) {
	ctx := r.ctx
	if ctx == nil {
		ctx = r.w.newContext(context.Background())
	}
	r.w.spawn(r, name, ctx, f)
}

// Sleep lets virtual time pass. It returns the cause if ctx ends first.
func (r *Rank) Sleep(ctx context.Context, d time.Duration) error { return r.w.Sleep(ctx, d) }

// Sleep is Rank.Sleep, for tasks that belong to no rank.
func (w *World) Sleep(ctx context.Context, d time.Duration) error {
	t, err := w.task("sleep")
	if err != nil {
		return err
	}
	for until := w.now + int64(d); w.now < until; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := t.park(reason{"sleeps", -1}, ctx, until); err != nil {
			return err
		}
	}
	return nil
}

// words is memory aligned to 8 bytes.
func words(n int) []byte {
	w := make([]uint64, n/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), n)
}
