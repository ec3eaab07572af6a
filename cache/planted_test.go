//go:build !race && !debug && !biglock

package cache_test

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// Each fault is what another cache of this kind does, or did.
func TestTheTestsFindPlantedFaults(t *testing.T) {
	edit := faulttest.In("cache")
	faulttest.Suite{Package: "cache", Timeout: time.Minute, Known: true,
		Run: "^Test(AGet|AFlush|WhatIs|Errors|Streams|NoRank|APrefetch|AClose|Readahead|Strides|WhatPassed|GetsInFlight)"}.Check(t,
		faulttest.Fault{
			Name: "a hash that is not mixed", Found: "probes",
			Edits: edit("entries_datapath.go", "(key ^ key>>29) * 0x9E3779B97F4A7C15 >> (t.shift & 63)", "key & uint64(len(t.slots)-1)"),
		},
		faulttest.Fault{
			Name: "a fetch in flight at an acquire is kept", Found: "prefetched before the acquire",
			Edits: append(edit("flights_datapath.go", "err == nil && e.epoch >= p.epoch {", "err == nil {"),
				edit("pages.go", "\tif e.wanted&lines != 0 {\n\t\tc.cancel(e)\n\t}\n", "")...),
		},
		faulttest.Fault{
			Name: "a fetch overwrites dirty bytes", Found: "want|read",
			Edits: edit("flights_datapath.go", "if e.mask == none {\n\t\t\tcopy(", "if true {\n\t\t\tcopy("),
		},
		faulttest.Fault{
			Name: "a get that overtook a write is kept", Found: "read|want",
			Edits: edit("flights_datapath.go", "\t\tif e.wanted != 0 { // it may", "\t\tif false { // it may"),
		},
		faulttest.Fault{
			Name: "a write in flight that passed by is forgotten", Found: "after the release|bytes at .* are",
			Edits: edit("fence.go", "\tif write {\n\t\tc.net.expose", "\tif false {\n\t\tc.net.expose"),
		},
		faulttest.Fault{
			Name: "an operation that passes by leaves copies", Found: "after the release|bytes at .* are",
			Edits: edit("fence.go", "\t\tp.drop(uint16(i), p.lines(o, k))\n", "\t\t_, _, _ = o, k, i\n"),
		},
		faulttest.Fault{
			Name: "a prefetch waits for a full ring", Found: "prefetches took|in flight|at most [12]",
			Edits: append(edit("prefetch_datapath.go", "cap(c.net.pieces) || int(c.net.ring[rank]) >= p.cfg.Ring {", "cap(c.net.pieces) || int(c.net.ring[rank]) > 3*p.cfg.Ring/2+2 {"),
				edit("prefetch_datapath.go", "i == none || int(c.net.ring[rank]) >= p.cfg.Ring {", "i == none {")...),
		},
		faulttest.Fault{
			Name: "a get in flight waits for what was evicted", Found: "have not ended",
			Edits: edit("gets_datapath.go", "\tif c.net.underway() {", "\tif true {"),
		},
		faulttest.Fault{
			Name: "a get in flight that was abandoned goes on", Found: "was written to",
			Edits: edit("gets_datapath.go", "\tif x := g.find(n); x != nil {\n\t\tg.end(x)\n\t}\n", ""),
		},
		faulttest.Fault{
			Name: "a fetch is not cut at the end of a rank", Found: "leave the segment|bytes were fetched",
			Edits: edit("flights_datapath.go", "\thigh = min(high, p.sizes[rank]-page)\n", ""),
		},
		faulttest.Fault{
			Name: "readahead does not look at what is wasted", Found: "for nothing",
			Edits: edit("streams_datapath.go", "\tif small && !c.usage.thrifty(looseShift) {\n", "\tif false {\n"),
		},
		faulttest.Fault{
			Name: "a close forgets what was not sent", Found: "the memory has|may be lost",
			Edits: edit("cache.go", "\terr := c.Release(ctx)\n", "\tvar err error\n"),
		},
		faulttest.Fault{
			Name: "errors of writes are dropped", Found: "lost writes",
			Edits: edit("flights_datapath.go", "\t\t\tc.lose(err, int(o.peer))\n", ""),
		},
	)
}
