package transient

import (
	"context"

	"github.com/ibconduit/conduit/bench"
)

// Incast is the name of the kernel bench.Incast, whose parameters are IncastParams; the result of a
// rank is an IncastResult.
const Incast = "incast"

func init() { kernels[Incast] = incastRank }

func incastRank(ctx context.Context, r *Rank) (any, error) {
	return run(ctx, r, bench.NewIncast, nil)
}
