package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// heapCmd is ibbench heap.
type heapCmd struct {
	common
	timing
	repeated
	Op    string `arg:"" optional:"" default:"local" enum:"local,remote,global,all,churn" help:"local: Alloc and Free of own memory; remote: Free of another rank's; global: GlobalAlloc by another rank than 0; all: AllAlloc and AllFree; churn: as local with random sizes, and how fragmented the heap is then."`
	Sizes string `aliases:"size" placeholder:"LIST" help:"Bytes of a block, as 64 or 64,1K or 16..64K (doubling); of churn the largest. Default: 16..64K in steps of 4 for local, 64K for churn, else 1K."`
	Live  string `placeholder:"N" help:"local, churn: blocks in use meanwhile. Default: 10000, or what is half of the heap."`
	Heap  string `default:"64M" placeholder:"BYTES" help:"Bytes of each rank's shared heap. Default: 64M."`
}

func (c *heapCmd) run(ctx context.Context, io streams) error {
	points, err := c.points()
	if err != nil {
		return usageError{err}
	}
	return c.measureRounds(ctx, io, plan.Heap, points, c.times(1))
}

func (c *heapCmd) points() ([]plan.Point, error) {
	sizes, err := plan.Sizes(cmp.Or(c.Sizes, map[string]string{plan.HeapLocal: "16,64,256,1K,4K,16K,64K", plan.HeapChurn: "64K"}[c.Op], "1K"))
	if err != nil {
		return nil, fmt.Errorf("--sizes: %w", err)
	}
	heap, err := plan.Sizes(c.Heap)
	if err != nil || len(heap) != 1 {
		return nil, fmt.Errorf("--heap %s: want one number of bytes, as 64M", c.Heap)
	}
	live := []int{0}
	if c.Live != "" {
		if live, err = plan.Counts("live blocks", c.Live, plan.MaxLive); err != nil {
			return nil, fmt.Errorf("--live: %w", err)
		}
	}
	if c.Live != "" && c.Op != plan.HeapLocal && c.Op != plan.HeapChurn {
		return nil, fmt.Errorf("--live is for local and churn")
	}
	proto := plan.Point{Kind: plan.Heap, Op: c.Op, Depth: 1, Lanes: 1, Chain: 1, HeapBytes: heap[0]}
	if err := c.timing.complete(&proto); err != nil {
		return nil, err
	}
	var points []plan.Point
	for _, proto.Live = range live {
		for _, proto.Size = range sizes {
			pt := proto
			if pt.Live == 0 {
				pt.Live = defaultLive(pt)
			}
			points = append(points, pt)
		}
	}
	return points, nil
}

// defaultLive leaves half of the heap free. Blocks of churn have a tenth of the largest on average.
func defaultLive(pt plan.Point) int {
	switch pt.Op {
	case plan.HeapLocal:
		return int(max(min(10000, pt.HeapBytes/2/max(pt.Size, 16)), 1))
	case plan.HeapChurn:
		return int(max(min(10000, pt.HeapBytes/2/max(pt.Size/10, 16)), 1))
	}
	return 1
}
