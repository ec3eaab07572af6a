package transient

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit"
)

// kernel is a kernel of package bench that runs on one worker. R is a rank's result.
type kernel[R any] interface {
	Configure(*conduit.Config)
	Run(context.Context, *conduit.Worker) (R, error)
}

// run reads the parameters P of a kernel, joins with what it asks for, and runs it. Just before
// that it calls begin, if there is one.
func run[P, R any, K kernel[R]](ctx context.Context, r *Rank, make func(p P, ranks int) (K, error), begin func(K)) (res R, err error) {
	var p P
	if err := r.Params(&p); err != nil {
		return res, errors.Join(err, r.Boot.Close())
	}
	k, err := make(p, r.Boot.Size())
	if err != nil {
		return res, errors.Join(err, r.Boot.Close())
	}
	cfg := conduit.Config{Bootstrap: r.Boot, Fabric: r.Fabric, Device: r.Device, SegmentSize: 1 << 12}
	k.Configure(&cfg)
	job, err := conduit.Join(ctx, cfg)
	if err != nil {
		return res, err
	}
	w, err := job.NewWorker()
	if err != nil {
		return res, errors.Join(err, job.Close())
	}
	if begin != nil {
		begin(k)
	}
	res, err = k.Run(ctx, w)
	return res, errors.Join(err, w.Close(), job.Close())
}
