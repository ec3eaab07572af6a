package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/fabric"
)

// Params are the size of a kernel. What a field counts is the kernel's; a field that it does not
// use is 0.
type Params struct {
	N       int    `json:"n"`                 // see Kernel.Unit
	Steps   int    `json:"steps,omitempty"`   // see Kernel.StepUnit
	Stride  int    `json:"stride,omitempty"`  // of stride: words between accesses
	Variant string `json:"variant,omitempty"` // one of Kernel.Variants
	Seed    uint64 `json:"seed"`              // of all that is random
}

// Kernel is a computation over a job that checks its own result.
type Kernel struct {
	Name     string
	What     string   // in a line
	Unit     string   // what Params.N counts
	StepUnit string   // what Params.Steps counts; empty: it has none
	Variants []string // the first is the default; nil: there is one
	Default  Params
	MaxN     int // of Params.N

	plan func(l *layout, p Params) program
}

// program is one rank's part in a kernel. All ranks call its methods together.
type program interface {
	setup(r *rank) error   // once: what all runs share
	prepare(r *rank) error // before each run: memory as it is at the begin
	run(r *rank) error     // what is timed
	verify(r *rank) error  // of this rank's part of the result
}

// kernels in the order in which they are listed.
var kernels = slices.Concat(streams, tables, []*Kernel{ptrans}, ssca2, []*Kernel{stencil, md, handoff}, whole)

// Kernels are all there are.
func Kernels() []*Kernel { return slices.Clone(kernels) }

// Find returns the kernel of a name.
func Find(name string) (*Kernel, error) {
	var names []string
	for _, k := range kernels {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return nil, fmt.Errorf("bench: no kernel %q; there are %s", name, strings.Join(names, ", "))
}

// Complete fills in the kernel's defaults for fields that are 0, and returns the fault.
func (k *Kernel) Complete(p Params) (Params, error) {
	bad := func(format string, args ...any) (Params, error) {
		return p, fmt.Errorf("bench: %s: %s", k.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case p.N < 0 || p.N > k.MaxN:
		return bad("size %d: want 1 to %d %s", p.N, k.MaxN, k.Unit)
	case p.Steps < 0 || p.Steps > maxSteps:
		return bad("%d steps: want 1 to %d", p.Steps, maxSteps)
	case p.Steps > 0 && k.StepUnit == "":
		return bad("it has no steps")
	case p.Stride < 0 || p.Stride > maxStride:
		return bad("stride %d: want 1 to %d words", p.Stride, maxStride)
	case p.Stride > 0 && k.Default.Stride == 0:
		return bad("it has no stride")
	case p.Variant != "" && !slices.Contains(k.Variants, p.Variant):
		return bad("no variant %q; it has %s", p.Variant, cmp.Or(strings.Join(k.Variants, ", "), "none"))
	}
	if p.N == 0 {
		p.N = k.Default.N
	}
	if p.Steps == 0 {
		p.Steps = k.Default.Steps
	}
	if p.Stride == 0 {
		p.Stride = k.Default.Stride
	}
	if p.Variant == "" && len(k.Variants) > 0 {
		p.Variant = k.Variants[0]
	}
	if p.Seed == 0 {
		p.Seed = 1
	}
	return p, nil
}

const (
	maxSteps  = 1 << 20
	maxStride = 1 << 20
)

// Bytes is how much memory of each rank's segment the kernel needs, behind the job's shared data
// (Info.Shared).
func (k *Kernel) Bytes(p Params, ranks int) (int64, error) {
	p, err := k.Complete(p)
	if err != nil {
		return 0, err
	}
	l := &layout{ranks: ranks}
	k.plan(l, p)
	return int64(l.top), nil
}

// rank is what a program runs on.
type rank struct {
	ctx  context.Context
	w    *conduit.Worker
	job  *conduit.Job
	me   int
	n    int
	next int // the rank to the right

	omits func() bool // of a test: whether the fence is left out that the program has come to
}

// The fences of the programs.

func (r *rank) barrier() error {
	if r.omits != nil && r.omits() {
		return nil
	}
	return r.w.Barrier(r.ctx)
}

func (r *rank) flush() error {
	if r.omits != nil && r.omits() {
		return nil
	}
	return r.w.Flush(r.ctx)
}

// wait waits until this rank's word is at least v.
func (r *rank) wait(word place[uint64], v int) error {
	if r.omits != nil && r.omits() {
		return nil
	}
	return r.w.WaitUntil(r.ctx, word.off, conduit.GreaterEqual, uint64(v))
}

// Bench is one rank's part in a kernel that was started.
type Bench struct {
	kernel *Kernel
	r      *rank
	prog   program
}

// Start prepares a kernel on the ranks of the worker's job. All ranks call it together with equal
// parameters. The worker is the kernel's while Start or Run are at work, and its memory the first
// Bytes of each segment behind the job's shared data.
func (k *Kernel) Start(ctx context.Context, w *conduit.Worker, p Params) (*Bench, error) {
	p, err := k.Complete(p)
	if err != nil {
		return nil, err
	}
	job := w.Job()
	base := job.Info().Shared.End()
	l := &layout{ranks: job.Size(), top: base}
	prog := k.plan(l, p)
	for r := range job.Size() {
		if have := job.SegmentSize(r); have < l.top {
			return nil, fmt.Errorf("bench: %s: it needs %d bytes of each segment, rank %d has %d", k.Name, l.top, r, have)
		}
	}
	r := &rank{ctx: ctx, w: w, job: job, me: job.Rank(), n: job.Size()}
	r.next = (r.me + 1) % r.n
	b := &Bench{kernel: k, r: r, prog: prog}
	return b, prog.setup(r)
}

// Result is what one run took.
type Result struct {
	Elapsed time.Duration   // of the slowest rank, from barrier to barrier
	Counts  fabric.Counters // of all ranks together, of the networks to other ranks
	Cache   CacheCounts     // of all ranks together; zero without a cache
}

// CacheCounts are what caches did in a run: those of the counters of package cache that say whether
// one was of use.
type CacheCounts struct {
	Hits, Misses       uint64 // gets that needed no operation of the network, and those that did
	Prefetched, Unused uint64 // lines fetched ahead, and those of them that no get asked for
	Fetched, Used      uint64 // bytes of lines, and of those that a get asked for
}

// cacheCounts are those of this rank so far.
func (r *rank) cacheCounts() CacheCounts {
	s := r.job.CacheStats()
	return CacheCounts{s.GetHits, s.GetMisses, s.Prefetched, s.Prefetched - s.PrefetchUsed, s.BytesFetched, s.BytesUsed}
}

// add is the sum of a and b, or with by = -1, modulo 2^64, the difference.
func (a CacheCounts) add(b CacheCounts, by int) CacheCounts {
	times := uint64(by)
	return CacheCounts{
		a.Hits + times*b.Hits, a.Misses + times*b.Misses, a.Prefetched + times*b.Prefetched,
		a.Unused + times*b.Unused, a.Fetched + times*b.Fetched, a.Used + times*b.Used,
	}
}

// WrongError says that a kernel computed something wrong.
type WrongError struct {
	Kernel string
	Rank   int   // that found it, the first one
	Cause  error // what it found; of another rank its text
}

func (e *WrongError) Error() string {
	return fmt.Sprintf("bench: %s: rank %d: wrong result: %v", e.Kernel, e.Rank, e.Cause)
}

func (e *WrongError) Unwrap() error { return e.Cause }

// outcome is exchanged by ranks after a run.
type outcome struct {
	Nanos  int64
	Counts fabric.Counters
	Cache  CacheCounts
	Wrong  uint8 // bytes of Why
	Why    [255]byte
}

// Run computes once, and checks the result. All ranks call it together, and all get an error where
// one of them found a wrong result: a *WrongError.
func (b *Bench) Run() (Result, error) {
	if err := b.prog.prepare(b.r); err != nil {
		return Result{}, err
	}
	for range 2 { // ranks leave the second one together: none is asleep then
		if err := b.r.barrier(); err != nil { // memory is prepared
			return Result{}, err
		}
	}
	before, kept := b.r.counts(), b.r.cacheCounts()
	begin := time.Now()
	if err := b.prog.run(b.r); err != nil {
		return Result{}, fmt.Errorf("bench: %s: %w", b.kernel.Name, err)
	}
	if err := b.r.flush(); err != nil {
		return Result{}, err
	}
	mine := outcome{Counts: minus(b.r.counts(), before), Cache: b.r.cacheCounts().add(kept, -1)}
	if err := b.r.barrier(); err != nil { // all is written
		return Result{}, err
	}
	mine.Nanos = int64(time.Since(begin))
	wrong := b.prog.verify(b.r)
	if wrong != nil {
		mine.Wrong = uint8(copy(mine.Why[:], wrong.Error()))
	}
	all, err := conduit.AllGatherValue(b.r.ctx, b.r.job, mine)
	if err != nil {
		return Result{}, cmp.Or(wrong, err)
	}
	var res Result
	for r, o := range all {
		if o.Wrong > 0 {
			if r != b.r.me {
				wrong = errors.New(string(o.Why[:o.Wrong]))
			}
			return Result{}, &WrongError{Kernel: b.kernel.Name, Rank: r, Cause: wrong}
		}
		res.Elapsed = max(res.Elapsed, time.Duration(o.Nanos))
		res.Counts = res.Counts.Add(o.Counts)
		res.Cache = res.Cache.add(o.Cache, 1)
	}
	return res, nil
}

// counts are the counts of the networks to other ranks.
func (r *rank) counts() (c fabric.Counters) {
	stats := r.job.Stats()
	for other := range r.n {
		if name := r.job.FabricTo(other); other != r.me {
			c = c.Add(stats[name])
			delete(stats, name)
		}
	}
	return c
}

// minus has of each counter what is printed.
func minus(a, b fabric.Counters) fabric.Counters {
	a.Puts -= b.Puts
	a.Gets -= b.Gets
	a.Atomics -= b.Atomics
	a.PutBytes -= b.PutBytes
	a.GetBytes -= b.GetBytes
	a.Completed -= b.Completed
	a.Errors -= b.Errors
	a.Inline -= b.Inline
	a.Bounced -= b.Bounced
	a.Direct -= b.Direct
	a.ZeroCopy -= b.ZeroCopy
	a.Doorbells -= b.Doorbells
	a.Requests -= b.Requests
	a.Polls -= b.Polls
	a.Stalls -= b.Stalls
	a.Unregistered -= b.Unregistered
	return a
}
