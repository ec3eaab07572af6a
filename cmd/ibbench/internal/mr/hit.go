package mr

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"unsafe"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/regcache"
)

// hitPoint times Get and Put of ranges that are registered, in an order that no cache line
// foresees.
func (s *session) hitPoint(pt plan.Point, series *report.Series) (err error) {
	gap := stride(pt) + page // what lies next to each other would be registered by itself all the same; this is plainer
	mem, err := mapRanges(1, gap*uintptr(pt.Regions))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.close()) }()
	c, err := s.cache(pt, s.reg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	h := &hits{cache: c, size: uint64(pt.Size)}
	for _, i := range rand.New(rand.NewPCG(s.opts.Seed, 0)).Perm(pt.Regions) {
		h.at = append(h.at, unsafe.Add(mem.at[0], gap*uintptr(i)))
	}
	if err := h.run(2 * pt.Regions); err != nil { // registers, and settles the hints
		return err
	}
	before, mallocs := c.Stats(), allocated()
	all, batch, err := s.batches(pt, h.run)
	if err != nil {
		return err
	}
	mallocs = allocated() - mallocs
	after := c.Stats()
	gets := after.Gets - before.Gets
	series.Result, series.Hist = report.Latency(all, s.opts.Pct, batch), all.Hist()
	percent := report.Round3(100 * float64(after.Hits-before.Hits) / float64(max(gets, 1)))
	series.Set("mr.hit.percent", percent)
	series.Set("mr.hit.allocs_per_op", report.Round3(float64(mallocs)/float64(max(gets, 1))))
	series.Notes = hitNotes(pt, batch, percent, uncached(c, pt), after.Crowded-before.Crowded)
	return nil
}

func hitNotes(pt plan.Point, batch int, percent float64, why []string, crowded uint64) (notes []string) {
	if batch > 1 {
		notes = append(notes, fmt.Sprintf("%d operations per sample, since one is too short for the clock; the tail is averaged", batch))
	}
	if o := origin(pt); o != regcache.Mapped {
		notes = append(notes, "the memory is given to the cache as of origin "+o.String())
	}
	notes = append(notes, why...)
	if percent < 100 && crowded > 0 {
		notes = append(notes, fmt.Sprintf("mr hit with %s of %d bytes: the device or RLIMIT_MEMLOCK has no room for all of them", errtext.Count(pt.Regions, "region"), pt.Size))
	}
	return notes
}

// allocated counts the allocations of the process, the few of the samples' own included.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
