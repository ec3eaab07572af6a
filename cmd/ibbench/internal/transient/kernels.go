package transient

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/internal/bench"
)

// Kernels of package bench, with the parameters of that package. A rank's result is a Measured, of
// Touch an int64.
const (
	Jacobi   = "jacobi" // says a line when the first iteration that counts begins
	FT       = "ft"
	Incast   = "incast"
	AllToAll = "alltoall" // of AllToAllParams; says a bench.AllToAllPoint for each size
	// Touch finds how much memory a rank can have. Its parameter is how many bytes to touch at most,
	// its result the memory of the rank's group at the last step that took no page from a disk.
	Touch = "touch"
)

// Measured is what one rank found.
type Measured[R any] struct {
	Result R
	Before int64 // bytes of the rank's group before the kernel began: what the rank has anyway
	Pinned int64 // bytes that a device has, of those (VmPin)
}

var kernels = map[string]func(ctx context.Context, r *Rank) (result any, err error){
	Jacobi: func(ctx context.Context, r *Rank) (any, error) {
		return run(ctx, r, bench.NewJacobi, func(k *bench.Jacobi) { k.Counting = func() { r.Say(true) } })
	},
	FT: func(ctx context.Context, r *Rank) (any, error) {
		return run(ctx, r, bench.NewFT, func(*bench.FT) {})
	},
	Incast: func(ctx context.Context, r *Rank) (any, error) {
		return run(ctx, r, bench.NewIncast, func(*bench.Incast) {})
	},
	AllToAll: allToAll, Touch: touch,
}

// kernel runs on one worker. R is a rank's result.
type kernel[R any] interface {
	Configure(*conduit.Config)
	Run(context.Context, *conduit.Worker) (R, error)
}

// run reads the parameters P of a kernel, joins with what it asks for, and runs it. Just before
// that it calls begin.
func run[P, R any, K kernel[R]](ctx context.Context, r *Rank, make func(p P, ranks int) (K, error), begin func(K)) (res Measured[R], err error) {
	var p P
	if err := r.Params(&p); err != nil {
		return res, errors.Join(err, r.Boot.Close())
	}
	k, err := make(p, r.Boot.Size())
	if err != nil {
		return res, errors.Join(err, r.Boot.Close())
	}
	job, w, err := r.join(ctx, r.Boot, func(c *conduit.Config) {
		c.SegmentSize = 1 << 12
		k.Configure(c)
	})
	if err != nil {
		return res, err
	}
	res.Before, res.Pinned = r.Used(), r.Pinned()
	begin(k)
	res.Result, err = k.Run(ctx, w)
	return res, errors.Join(err, w.Close(), job.Close())
}

// join makes a job with one worker.
func (r *Rank) join(ctx context.Context, boot bootstrap.Bootstrap, configure func(*conduit.Config)) (*conduit.Job, *conduit.Worker, error) {
	cfg := conduit.Config{Bootstrap: boot, Fabric: r.Fabric, Device: r.Device}
	configure(&cfg)
	job, err := conduit.Join(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	w, err := job.NewWorker()
	if err != nil {
		return nil, nil, errors.Join(err, job.Close())
	}
	return job, w, nil
}

// AllToAllParams are those of AllToAll.
type AllToAllParams struct {
	Sizes  []int64 // of blocks, in bytes
	Rounds int
	Loop   int           // operations of a round; 0: automatic
	Most   time.Duration // for one size
}

// allToAll runs all sides in the same processes, each in a job of its own, of which the first joins
// the launcher's and the others are made by way of it.
func allToAll(ctx context.Context, r *Rank) (_ any, err error) {
	var p AllToAllParams
	if err := r.Params(&p); err != nil {
		return nil, errors.Join(err, r.Boot.Close())
	}
	// Ranks that are not on one core, where there are enough.
	if cpus, err := machine.Allowed(); err == nil && r.Boot.Size() <= len(cpus) {
		if err := machine.Pin(cpus[r.Boot.Rank():][:1]); err != nil {
			return nil, errors.Join(err, r.Boot.Close())
		}
	}
	largest := slices.Max(p.Sizes)
	sides := bench.AllToAllSides(r.Boot.Size(), largest)
	var workers []*conduit.Worker
	defer func() {
		for _, w := range slices.Backward(workers) {
			err = errors.Join(err, w.Close(), w.Job().Close())
		}
	}()
	for i, s := range sides {
		boot := r.Boot
		if i > 0 {
			boot = measure.NewOver(workers[0].Job(), r.Boot, s.Name)
		}
		_, w, err := r.join(ctx, boot, func(c *conduit.Config) { s.Configure(c, r.Boot.Size(), largest) })
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	for _, size := range p.Sizes {
		pt, err := bench.MeasureAllToAll(ctx, sides, workers, size, p.Rounds, p.Loop, p.Most)
		if err != nil {
			return nil, err
		}
		if r.Boot.Rank() == 0 {
			r.Say(pt)
		}
	}
	return true, nil
}

func touch(ctx context.Context, r *Rank) (any, error) {
	var most, used int64
	err := r.Params(&most)
	if err == nil {
		err = bench.Touch(ctx, most, func(int64) { used = r.Used() })
	}
	return used, errors.Join(err, r.Boot.Close())
}
