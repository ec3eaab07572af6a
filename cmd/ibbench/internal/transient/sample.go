package transient

import (
	"context"
	"time"

	"github.com/ibconduit/conduit/internal/memgroup"
)

// Sample is the memory of the ranks' groups at a time.
type Sample struct {
	At   time.Duration // since the ranks were started
	Used []int64       // bytes of each group
}

// Sampler follows the memory of groups. Watch is for Run.Began.
type Sampler struct {
	Every   time.Duration
	Samples []Sample // to be read after the run
}

// Watch takes samples until ctx ends.
func (s *Sampler) Watch(ctx context.Context, groups []*memgroup.Group) {
	begin := time.Now()
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	for {
		one := Sample{At: time.Since(begin)}
		for _, g := range groups {
			one.Used = append(one.Used, g.Used())
		}
		s.Samples = append(s.Samples, one)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Peak is the most that a group had, in bytes.
func (s *Sampler) Peak() (peak int64) {
	for _, one := range s.Samples {
		for _, n := range one.Used {
			peak = max(peak, n)
		}
	}
	return peak
}
