package transient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/memgroup"
)

// Kernels of package bench, with the parameters and results of that package.
const (
	Jacobi = "jacobi"
	FT     = "ft"
	Incast = "incast"
)

// RankMain is the whole life of a rank. It returns an exit code.
func RankMain() int { return Life(play) }

// Life is all of a rank that this program has started, which does what play does: it ends with a
// signal, and says why it has failed unless another rank does.
func Life(play func(ctx context.Context) (rank int, err error)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rank, err := play(ctx)
	if err == nil {
		return 0
	}
	if !measure.PeerEnded(err) && !errors.Is(err, measure.ErrElsewhere) && ctx.Err() == nil {
		lines := slices.Compact(strings.Split(err.Error(), "\n")) // many wait for the same
		fmt.Fprintf(os.Stderr, "ibbench: rank %d: %s\n", rank, strings.Join(lines, "\n"))
	}
	return 3
}

func play(ctx context.Context) (rank int, err error) {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(orderVar)), &o); err != nil {
		return 0, fmt.Errorf("%s: %w", orderVar, err)
	}
	boot, err := bootstrap.New(ctx, bootstrap.Options{})
	if err != nil {
		return 0, err
	}
	rank = boot.Rank()
	if o.Places != nil {
		err = memgroup.Enter(o.Places[rank])
	}
	if err != nil {
		return rank, errors.Join(err, boot.Close())
	}
	var result any
	switch o.Kernel {
	case Jacobi:
		result, err = run(ctx, &o, boot, bench.NewJacobi)
	case FT:
		result, err = run(ctx, &o, boot, bench.NewFT)
	case Incast:
		result, err = run(ctx, &o, boot, bench.NewIncast)
	default:
		err = errors.Join(fmt.Errorf("no kernel %q", o.Kernel), boot.Close())
	}
	if err != nil {
		return rank, err
	}
	b, err := json.Marshal(result)
	if err != nil {
		return rank, err
	}
	return rank, json.NewEncoder(os.Stdout).Encode(found{Rank: rank, Result: b})
}

// kernel runs on one worker. R is a rank's result.
type kernel[R any] interface {
	Configure(*conduit.Config)
	Run(context.Context, *conduit.Worker) (R, error)
}

// run reads the parameters P of a kernel, joins with the configuration that it wants, and runs it.
func run[P, R any, K kernel[R]](ctx context.Context, o *order, boot bootstrap.Bootstrap,
	make func(p P, ranks int) (K, error)) (res R, err error) {
	var p P
	if err := json.Unmarshal(o.Params, &p); err != nil {
		return res, errors.Join(err, boot.Close())
	}
	k, err := make(p, boot.Size())
	if err != nil {
		return res, errors.Join(err, boot.Close())
	}
	cfg := conduit.Config{Bootstrap: boot, Fabric: o.Fabric, Device: o.Device, SegmentSize: 1 << 12}
	k.Configure(&cfg)
	job, err := conduit.Join(ctx, cfg)
	if err != nil {
		return res, err
	}
	w, err := job.NewWorker()
	if err != nil {
		return res, errors.Join(err, job.Close())
	}
	res, err = k.Run(ctx, w)
	return res, errors.Join(err, w.Close(), job.Close())
}
