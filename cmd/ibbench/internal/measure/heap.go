package measure

import (
	"math/bits"
	"math/rand/v2"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// block is memory of the shared heaps.
type block = conduit.Ptr[byte]

// heaps is one rank's part in a point of the shared heaps.
type heaps struct {
	s       *session
	samples // of pairs of Alloc and Free
	pt      plan.Point
	rng     *rand.Rand
	live    []block // of local and churn
	last    int     // the rank that rank 0 deals with
}

// heapPoint measures a point of the shared heaps. All ranks call it together.
func (s *session) heapPoint(pt plan.Point) (*report.Series, error) {
	h := &heaps{s: s, pt: pt, rng: rand.New(rand.NewPCG(s.plan.Seed, 1)), samples: samples{batch: 1}, last: s.job.Size() - 1}
	if own := pt.Op == plan.HeapLocal || pt.Op == plan.HeapChurn; !own { // messages are sent, and of remote and global all blocks are in use at the end of a stretch
		h.fixed, h.most = true, max(min(pt.HeapBytes/4/max(pt.Size, 64), 4096), 1)
	}
	if s.job.Rank() == 0 && (pt.Op == plan.HeapLocal || pt.Op == plan.HeapChurn) {
		for range pt.Live {
			if err := h.fill(); err != nil {
				return nil, err
			}
		}
	}
	before := s.job.HeapStats()
	if s.job.Rank() > 0 {
		err := s.followSamples(false, h.stretch)
		if err == nil {
			_, err = gather(s, int64(s.job.HeapStats().Asked-before.Asked))
		}
		return nil, err
	}
	series, err := s.leadSamples(pt, &h.samples, h.stretch)
	if err != nil {
		return nil, err
	}
	asked, err := gather(s, int64(s.job.HeapStats().Asked-before.Asked))
	if err != nil {
		return nil, err
	}
	h.describe(asked, series)
	return series, h.empty()
}

// size is that of the next block: the point's, or of churn a random one up to a power of two, from
// 16 to the point's, that is random too.
func (h *heaps) size() int {
	if h.pt.Op != plan.HeapChurn {
		return int(h.pt.Size)
	}
	most := max(int(h.pt.Size), 16)
	top := 16 << h.rng.IntN(bits.Len(uint(most-1))-3)
	return 1 + h.rng.IntN(min(top, most))
}

// fill takes a block more.
func (h *heaps) fill() error {
	p, err := conduit.Alloc[byte](h.s.ctx, h.s.job, h.size())
	if err == nil {
		h.live = append(h.live, p)
	}
	return err
}

func (h *heaps) empty() error {
	for _, p := range h.live {
		if err := conduit.Free(h.s.ctx, h.s.job, p); err != nil {
			return err
		}
	}
	return nil
}

// stretch takes samples. All ranks call it.
func (h *heaps) stretch(c command) error {
	n := c.N
	h.taken = h.taken[:0]
	switch h.pt.Op {
	case plan.HeapRemote:
		return h.remote(int(n))
	case plan.HeapGlobal:
		return h.global(int(n))
	case plan.HeapAll:
		return h.together(int(n))
	}
	if h.s.job.Rank() > 0 {
		return nil
	}
	return h.pairs(int(n))
}

// timed appends what f takes.
func (h *heaps) timed(f func() error) error {
	begin := now()
	err := f()
	h.taken = append(h.taken, now()-begin)
	return err
}

// pairs frees random blocks and takes others in their place.
func (h *heaps) pairs(n int) error {
	which, sizes := make([]int, h.batch), make([]int, h.batch)
	for range n {
		for i := range which { // outside of the time
			which[i], sizes[i] = h.rng.IntN(len(h.live)), h.size()
		}
		err := h.timed(func() (err error) {
			for i, k := range which {
				if err = conduit.Free(h.s.ctx, h.s.job, h.live[k]); err != nil {
					return err
				}
				if h.live[k], err = conduit.Alloc[byte](h.s.ctx, h.s.job, sizes[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// remote has rank 0 free blocks that the last rank has taken.
func (h *heaps) remote(n int) error {
	var offs []uint64
	if h.s.job.Rank() == h.last {
		for range n {
			p, err := conduit.Alloc[byte](h.s.ctx, h.s.job, int(h.pt.Size))
			if err != nil {
				return err
			}
			offs = append(offs, p.Offset())
		}
	}
	all, err := gather(h.s, offs)
	if err != nil || h.s.job.Rank() > 0 {
		return err
	}
	for _, off := range all[h.last] {
		if err := h.timed(func() error { return conduit.Free(h.s.ctx, h.s.job, conduit.At[byte](h.last, off)) }); err != nil {
			return err
		}
	}
	return nil
}

// global has the last rank take memory of the global heap, and free it outside of the time.
func (h *heaps) global(n int) error {
	if h.s.job.Rank() == h.last {
		var got []block
		for range n {
			err := h.timed(func() error {
				p, err := conduit.GlobalAlloc[byte](h.s.ctx, h.s.job, h.s.job.Size(), int(h.pt.Size))
				got = append(got, p)
				return err
			})
			if err != nil {
				return err
			}
		}
		for _, p := range got {
			if err := conduit.Free(h.s.ctx, h.s.job, p); err != nil {
				return err
			}
		}
	}
	all, err := gather(h.s, h.taken)
	if err == nil {
		h.taken = all[h.last]
	}
	return err
}

// together has all ranks take and free memory of the global heap.
func (h *heaps) together(n int) error {
	for range n {
		err := h.timed(func() error {
			p, err := conduit.AllAlloc[byte](h.s.ctx, h.s.job, h.s.job.Size(), int(h.pt.Size))
			if err != nil {
				return err
			}
			return conduit.AllFree(h.s.ctx, h.s.job, p)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// describe says how rank 0's heap is divided, before the blocks are freed; of the global heap where
// the blocks are of it.
func (h *heaps) describe(asked []int64, series *report.Series) {
	st := h.s.job.HeapStats()
	a := st.Local
	if h.pt.Op == plan.HeapGlobal || h.pt.Op == plan.HeapAll {
		a = st.Global
	}
	share := func(part, whole uint64) float64 { // in percent
		if whole == 0 {
			return 0
		}
		return report.Round3(100 * float64(part) / float64(whole))
	}
	requests := int64(0)
	for _, n := range asked {
		requests += n
	}
	series.Set("heap.blocks", float64(a.Blocks))
	series.Set("heap.in_use", float64(a.InUse))
	series.Set("heap.free", float64(a.Free))
	series.Set("heap.largest_free", float64(a.LargestFree))
	series.Set("heap.fragmentation", share(uint64(a.Free)-uint64(a.LargestFree), uint64(a.Free)))
	series.Set("heap.meta", share(uint64(a.Meta), uint64(a.Len)))
	series.Set("heap.requests", float64(requests))
}
