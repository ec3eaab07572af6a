package bench

import (
	"testing"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cache"
)

// measured runs a kernel once on two ranks, with a cache.
func measured(t *testing.T, name string, p Params, c cache.Config) (res Result) {
	k, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	c.Mapped = true
	err = onJob(t, k, p, 2, conduit.Config{Fabric: conduit.FabricSHM, Cache: &c}, func(b *Bench) error {
		r, err := b.Run()
		if b.r.me == 0 {
			res = r
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestRandomKernelsReadLittleAhead(t *testing.T) {
	for _, k := range []struct {
		name string
		p    Params
	}{
		{"random", Params{N: 1 << 14}}, {"gups", Params{N: 1 << 13}}, {"indexgather", Params{N: 1 << 13, Variant: "words"}},
		{"ssca2-k3", Params{N: 10}}, {"ssca2-k4", Params{N: 11, Steps: 1}}, {"ssca2-k4", Params{N: 11, Steps: 1, Variant: overlap}},
	} {
		c := cache.Config{Pages: 64}
		with := measured(t, k.name, k.p, c)
		c.NoReadahead = true
		without := measured(t, k.name, k.p, c)
		t.Logf("%s %s: %d bytes of gets with readahead, %d without; %+v", k.name, k.p.Variant, with.Counts.GetBytes, without.Counts.GetBytes, with.Cache)
		if with.Counts.GetBytes > without.Counts.GetBytes*11/10 {
			t.Errorf("%s gets %d bytes with readahead, %d without", k.name, with.Counts.GetBytes, without.Counts.GetBytes)
		}
		if lines := with.Cache.Fetched / 64; with.Cache.Unused > lines/20 {
			t.Errorf("%s: %d of %d lines were fetched for nothing", k.name, with.Cache.Unused, lines)
		}
	}
}
