package transient

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bench"
)

// Incast is the name of the kernel bench.Incast, whose parameters are IncastParams; the result of a
// rank is an IncastResult.
const Incast = "incast"

func init() { kernels[Incast] = incastRank }

func incastRank(ctx context.Context, r *Rank) (any, error) {
	var p bench.IncastParams
	err := r.Params(&p)
	if err != nil {
		return nil, errors.Join(err, r.Boot.Close())
	}
	k, err := bench.NewIncast(p, r.Boot.Size())
	if err != nil {
		return nil, errors.Join(err, r.Boot.Close())
	}
	cfg := conduit.Config{Bootstrap: r.Boot, Fabric: r.Fabric, Device: r.Device, SegmentSize: 1 << 12}
	k.Configure(&cfg)
	job, err := conduit.Join(ctx, cfg)
	if err != nil {
		return nil, err
	}
	w, err := job.NewWorker()
	if err != nil {
		return nil, errors.Join(err, job.Close())
	}
	res, err := k.Run(ctx, w)
	return res, errors.Join(err, w.Close(), job.Close())
}
