package transient

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bench"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
)

// AllToAll is the name of the kernel that compares the ways of an all-to-all.
const AllToAll = "alltoall"

// AllToAllParams are its parameters.
type AllToAllParams struct {
	Sizes  []int64 // of blocks, in bytes
	Rounds int
	Loop   int           // operations of a round; 0: automatic
	Most   time.Duration // for one size
}

func init() { kernels[AllToAll] = allToAllRank }

// allToAllRank returns a []bench.AllToAllPoint. All sides run in the same processes, each in a job
// of its own, of which the first joins the launcher's and the others are made by way of it.
func allToAllRank(ctx context.Context, r *Rank) (_ any, err error) {
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
	var jobs []*conduit.Job
	var workers []*conduit.Worker
	defer func() {
		for i, j := range slices.Backward(jobs) {
			if i < len(workers) {
				err = errors.Join(err, workers[i].Close())
			}
			err = errors.Join(err, j.Close())
		}
	}()
	for i, s := range sides {
		boot := r.Boot
		if i > 0 {
			boot = measure.NewOver(jobs[0], r.Boot, s.Name)
		}
		cfg := conduit.Config{Bootstrap: boot, Fabric: r.Fabric, Device: r.Device}
		s.Configure(&cfg, r.Boot.Size(), largest)
		j, err := conduit.Join(ctx, cfg)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
		w, err := j.NewWorker()
		if err != nil {
			return nil, err
		}
		workers = append(workers, w)
	}
	var points []bench.AllToAllPoint
	for _, size := range p.Sizes {
		pt, err := bench.MeasureAllToAll(ctx, sides, workers, size, p.Rounds, p.Loop, p.Most)
		if err != nil {
			return nil, err
		}
		points = append(points, pt)
		if r.Boot.Rank() == 0 {
			r.Say(pt)
		}
	}
	return points, nil
}
