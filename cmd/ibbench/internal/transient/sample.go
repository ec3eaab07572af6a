package transient

import (
	"context"
	"time"

	"github.com/ibconduit/conduit/internal/memgroup"
)

// Watch calls each with the memory of all groups in bytes, and when that is since it was called,
// until ctx ends. It is for Run.Began.
func Watch(ctx context.Context, groups []*memgroup.Group, every time.Duration, each func(at time.Duration, used []int64)) {
	begin := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for ctx.Err() == nil {
		at := time.Since(begin)
		var used []int64
		for _, g := range groups {
			used = append(used, g.Used())
		}
		each(at, used)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
