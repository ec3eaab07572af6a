package conduit

import (
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/transient"
	"github.com/ibconduit/conduit/segment"
)

// needs are what a part of the library requests of a job: collective operations, the shared heaps,
// and their like. They follow from the configuration and the number of ranks, and are alike on all
// ranks; Join compares the regions.
type needs struct {
	regions []env.Spec
	sized   []func(ranks int) (env.Spec, error) // regions whose size depends on how many ranks there are
	lanes   int                                 // how many times it calls NewLanes
	// handlers registers the part's handlers of active messages. A job none of whose parts has any
	// opens no endpoint for them.
	handlers func(*am.Table)
	heaps    *heaps // of the part that has them
	memory   *memory
}

// parts are those of every job. Their regions lie in this order, from the begin of every segment,
// those of sized first.
var parts = []func(*Config) needs{collNeeds, heapNeeds, memoryNeeds}

// needs are those of all parts together.
func (c *Config) needs() (all needs, err error) {
	var register []func(*am.Table)
	all.heaps, all.memory = &heaps{}, &memory{Memory: &transient.Memory{}}
	for _, part := range c.parts {
		n := part(c)
		all.sized = append(all.sized, n.sized...)
		all.regions = append(all.regions, n.regions...)
		all.lanes += n.lanes
		if n.handlers != nil {
			register = append(register, n.handlers)
		}
		if n.memory != nil {
			all.memory = n.memory
		}
		if n.heaps != nil {
			all.heaps = n.heaps
		}
	}
	all.handlers = func(t *am.Table) {
		for _, f := range register {
			f(t)
		}
	}
	return all, nil
}

// layout is that of segments that have the regions.
func (n *needs) layout(ranks int) (segment.Layout, error) {
	var regions []segment.Region
	for _, f := range n.sized {
		s, err := f(ranks)
		if err != nil {
			return segment.Layout{}, err
		}
		if s.Size > 0 { // else the part has none with this configuration
			regions = append(regions, segment.Region(s))
		}
	}
	for _, s := range n.regions {
		regions = append(regions, segment.Region(s))
	}
	return segment.Place(regions...)
}
