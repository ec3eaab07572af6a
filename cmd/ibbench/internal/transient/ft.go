package transient

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bench"
)

// FT is the name of the kernel bench.FT, whose parameters are FTParams.
const FT = "ft"

// FTRank is the result of one rank.
type FTRank struct {
	bench.FTResult
	Before int64 // bytes of the rank's group before there are arrays: what the rank has anyway
}

func init() { kernels[FT] = ftRank }

func ftRank(ctx context.Context, r *Rank) (any, error) {
	var p bench.FTParams
	err := r.Params(&p)
	if err != nil {
		return nil, errors.Join(err, r.Boot.Close())
	}
	k, err := bench.NewFT(p, r.Boot.Size())
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
	res := FTRank{Before: r.Used()}
	res.FTResult, err = k.Run(ctx, w)
	return res, errors.Join(err, w.Close(), job.Close())
}
