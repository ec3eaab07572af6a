package conduit

import (
	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/segment"
)

// part is what a part of every job needs before Join: collective operations, the shared heaps, and
// their like. All of it follows from the configuration, and must be alike on all ranks.
type part struct {
	regions func(*Config) []env.Spec
}

// parts are those of a job. Their regions lie in this order, from the begin of every segment.
var parts = []part{
	{regions: func(*Config) []env.Spec { return []env.Spec{{Name: collRegion, Size: systemBytes}} }},
}

// layout is that of a job's segments.
func layout(c *Config) (segment.Layout, error) {
	var regions []segment.Region
	for _, p := range c.parts {
		for _, s := range p.regions(c) {
			regions = append(regions, segment.Region(s))
		}
	}
	return segment.Place(regions...)
}
