package transient

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit/bench"
)

// Touch is the name of the kernel that finds how much memory a rank can have: bench.Touch. Its
// parameter is how many bytes to touch at most, its result an int64: the memory of the rank's group
// at the last step that took no page from a disk.
const Touch = "touch"

func init() { kernels[Touch] = touchRank }

func touchRank(ctx context.Context, r *Rank) (any, error) {
	var most, used int64
	err := r.Params(&most)
	if err == nil {
		err = bench.Touch(ctx, most, func(int64) { used = r.Used() })
	}
	return used, errors.Join(err, r.Boot.Close())
}
