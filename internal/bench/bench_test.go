package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/handle/handletest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }

// In the VM each cache takes half a minute.
var everyCache = flag.Bool("every-cache", false, "run kernels over verbs with every cache, not only the tiny one")

// tiny are sizes with which a kernel takes milliseconds.
var tiny = map[string]Params{
	"seq": {N: 500}, "reverse": {N: 500}, "stride": {N: 500, Stride: 33}, "random": {N: 500}, "chase": {N: 300},
	"gups": {N: 256}, "indexgather": {N: 256}, "histogram": {N: 256}, "ptrans": {N: 24},
	"ssca2-k1": {N: 6}, "ssca2-k2": {N: 6}, "ssca2-k3": {N: 6}, "ssca2-k4": {N: 6, Steps: 3},
	"stencil": {N: 4, Steps: 3}, "md": {N: 3, Steps: 22}, "handoff": {N: 20}, "bulk": {N: 2}, "all-local": {N: 500},
}

// variants are the tiny parameters of a kernel, once for each variant.
func variants(k *Kernel) (all []Params) {
	p := tiny[k.Name]
	for _, v := range append(slices.Clone(k.Variants), "")[:max(len(k.Variants), 1)] {
		p.Variant = v
		all = append(all, p)
	}
	return all
}

// onJob starts a kernel on n ranks of this process and has fn use it.
func onJob(t *testing.T, k *Kernel, p Params, n int, cfg conduit.Config, fn func(b *Bench) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return onJobFor(ctx, t, k, p, n, cfg, fn)
}

func onJobFor(ctx context.Context, t *testing.T, k *Kernel, p Params, n int, cfg conduit.Config, fn func(b *Bench) error) error {
	t.Helper()
	bytes, err := k.Bytes(p, n)
	if err != nil {
		t.Fatal(err)
	}
	cfg.SegmentSize = bytes
	return conduit.RunLocalConfig(ctx, n, cfg, func(j *conduit.Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		b, err := k.Start(ctx, w, p)
		if err == nil {
			err = fn(b)
		}
		return errors.Join(err, w.Close())
	})
}

// twice runs a kernel two times, which must begin alike.
func twice(b *Bench) error {
	for range 2 {
		res, err := b.Run()
		if err != nil {
			return err
		}
		if n := res.Counts.Gets + res.Counts.Puts + res.Counts.Atomics; res.Elapsed <= 0 || n == 0 && b.r.n > 1 && b.kernel.Name != "all-local" {
			return fmt.Errorf("%+v", res)
		}
	}
	return nil
}

func TestKernelsVerifyTheirResults(t *testing.T) {
	for _, k := range Kernels() {
		for _, p := range variants(k) {
			for _, n := range []int{1, 2, 3} {
				t.Run(fmt.Sprintf("%s%s/%d", k.Name, p.Variant, n), func(t *testing.T) {
					if err := onJob(t, k, p, n, conduit.Config{Fabric: conduit.FabricSHM}, twice); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// caches are what a kernel's result may not depend on. In the smallest ones pages go as soon as
// they have come, and writes with them.
var caches = map[string]cache.Config{
	"default":  {},
	"tiny":     {Pages: 4, Dirty: 1, Ring: 1},
	"one page": {Pages: 1, Dirty: 1, Ring: 1},
	"lines":    {Pages: 16, PageSize: 64, LineSize: 64},
	"pages":    {Pages: 3, PageSize: 4096, LineSize: 4096, Dirty: 2},
	"passive":  {Pages: 64, NoReadahead: true, NoBypass: true},
	"frequent": {Pages: 8, Policy: cache.Admission},
	"duel":     {Pages: 32, Policy: cache.Duel},
}

// withCaches runs all kernels with some caches.
func withCaches(t *testing.T, on conduit.Config, names ...string) {
	for _, name := range names {
		c := caches[name]
		n := 2
		if name == "tiny" {
			n = 3
		}
		c.Mapped = on.Fabric == conduit.FabricSHM
		cfg := on
		cfg.Cache = &c
		for _, k := range Kernels() {
			for _, p := range variants(k) {
				t.Run(fmt.Sprintf("%s/%s%s/%d", name, k.Name, p.Variant, n), func(t *testing.T) {
					err := onJob(t, k, p, n, cfg, func(b *Bench) error {
						err := twice(b)
						if s := b.r.w.CacheStats(); err == nil && s.Gets+s.Puts == 0 && k.Name != "all-local" && k.Name != "bulk" {
							err = fmt.Errorf("the cache was not asked: %+v", s)
						}
						return err
					})
					if err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

func TestKernelsWithACache(t *testing.T) {
	withCaches(t, conduit.Config{Fabric: conduit.FabricSHM}, slices.Collect(maps.Keys(caches))...)
}

func TestKernelsOverVerbs(t *testing.T) {
	on := conduit.Config{Fabric: conduit.FabricIBV, Device: rdmatest.Device(t)}
	if !*everyCache { // 20 steps and new lists take long in the VM
		md := tiny["md"]
		defer func() { tiny["md"] = md }()
		tiny["md"] = Params{N: md.N, Steps: 1}
	}
	for _, k := range Kernels() {
		for _, p := range variants(k) {
			t.Run(k.Name+p.Variant, func(t *testing.T) {
				if err := onJob(t, k, p, 2, on, twice); err != nil {
					t.Error(err)
				}
			})
		}
	}
	names := []string{"tiny"}
	if *everyCache {
		names = slices.Collect(maps.Keys(caches))
	}
	withCaches(t, on, names...)
}

// spoiled is a program in whose memory one byte is changed before the result is checked.
type spoiled struct {
	program
	rank int
	off  uint64
}

func (s spoiled) verify(r *rank) error {
	if r.me == s.rank {
		r.job.Segment()[r.job.Info().Shared.End()+s.off] ^= 0x40
	}
	return s.program.verify(r)
}

// before is a program in whose memory one byte is changed before it runs.
type before struct {
	program
	rank int
	off  uint64
}

func (s before) run(r *rank) error {
	if r.me == s.rank {
		r.job.Segment()[r.job.Info().Shared.End()+s.off] ^= 0x40
	}
	if err := r.barrier(); err != nil {
		return err
	}
	return s.program.run(r)
}

// A wrong byte in what a kernel reads, or in what it has written, is found, by all ranks.
func TestAWrongByteIsFound(t *testing.T) {
	for _, k := range Kernels() {
		p := tiny[k.Name]
		full, err := k.Complete(p)
		if err != nil {
			t.Fatal(err)
		}
		spoil := func(prog program) program { return before{prog, 1, 0} }
		switch prog := k.plan(&layout{ranks: 2}, full).(type) {
		case *gups, *bulk, *histogram: // they write first what they read
			spoil = func(prog program) program { return spoiled{prog, 1, 0} }
		case *construction:
			spoil = func(p program) program { return spoiled{p, 1, prog.slots.off} }
		case *transpose: // the exponent of A's last element
			spoil = func(p program) program { return before{p, 1, prog.a.off + uint64(prog.a.n)*8 - 1} }
		case *ring:
			spoil = func(p program) program { return garbled{p} }
		case *heavyScan: // a weight
			spoil = func(p program) program { return before{p, 1, prog.weight.off + 1} }
		case *subgraphs: // where an edge leads to
			spoil = func(p program) program { return before{p, 1, prog.marks.off + 8} }
		case *centrality: // a weight that was no multiple of 8, or was one
			spoil = func(p program) program { return flipFirstWeight{p, prog} }
		case *hexes: // a coordinate
			spoil = func(p program) program { return before{p, 1, prog.pos[0].off + 5} }
		case *atoms:
			spoil = func(p program) program { return before{p, 1, 5} }
		}
		err = onJob(t, k, p, 2, conduit.Config{Fabric: conduit.FabricSHM}, func(b *Bench) error {
			b.prog = spoil(b.prog)
			_, err := b.Run()
			var wrong *WrongError
			if !errors.As(err, &wrong) {
				return fmt.Errorf("%v, want a *WrongError", err)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", k.Name, err)
		}
	}
}

// garbled is handoff of which rank 1 hands over other words than it should.
type garbled struct{ program }

func (g garbled) run(r *rank) error {
	h := g.program.(*ring)
	if r.me == 1 {
		h.p.Seed++
		defer func() { h.p.Seed-- }()
	}
	return h.run(r)
}

// flipFirstWeight has kernel 4 take edges that it should leave out, and leave out others.
type flipFirstWeight struct {
	program
	c *centrality
}

func (f flipFirstWeight) run(r *rank) error {
	w := f.program.(*centrality).weight.here(r)
	for i := range w {
		w[i] ^= 7
	}
	return f.program.run(r)
}

func TestWrongParametersAreRefused(t *testing.T) {
	for _, c := range []struct {
		kernel string
		p      Params
	}{
		{"seq", Params{N: -1}}, {"seq", Params{N: 1 << 30}}, {"seq", Params{Steps: 2}}, {"seq", Params{Stride: 3}}, {"seq", Params{Variant: "put"}},
		{"stride", Params{Stride: -1}}, {"stride", Params{Stride: maxStride + 1}}, {"ptrans", Params{Variant: "fast"}}, {"ssca2-k1", Params{N: maxScale + 1}},
		{"md", Params{Steps: maxSteps + 1}}, {"md", Params{Steps: -1}},
	} {
		k, err := Find(c.kernel)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Bytes(c.p, 2); err == nil {
			t.Errorf("%s: %+v is not refused", c.kernel, c.p)
		}
	}
	if _, err := Find("frob"); err == nil {
		t.Error("there is a kernel frob")
	}
}

func TestASegmentTooSmallIsRefused(t *testing.T) {
	k, _ := Find("seq")
	err := conduit.RunLocalConfig(t.Context(), 1, conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 4096}, func(j *conduit.Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		if _, err := k.Start(t.Context(), w, Params{N: 1 << 10}); err == nil {
			return errors.New("it is not refused")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
