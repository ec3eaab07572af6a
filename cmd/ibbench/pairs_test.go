package main

import (
	"slices"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/pairs"
)

// An odd number of ranks: one pauses in each step, or they are on one host as here.
func TestAllPairsAreMeasured(t *testing.T) {
	all := series(t, "pairs", "--fabric", "shm", "-n", "3", "--duration", "2ms", "--warmup", "1ms", "--size", "4K")
	if len(all) != 2 || all[0].Result.Unit != "ns" || all[1].Result.Unit != "B/s" || all[1].Size != 4096 {
		t.Fatalf("%d series, %+v", len(all), all)
	}
	for _, s := range all {
		m := s.Pairs()
		for i := range 3 {
			for j := range 3 {
				if got := m.Values[i][j]; (got > 0) != (i != j) {
					t.Errorf("%s from %d to %d: %v", s.Op, i, j, got)
				}
			}
			if m.Ranks[i].Host == "" {
				t.Errorf("%+v", m.Ranks)
			}
		}
	}
	exits(t, []string{"--fabric", "shm"}, []exit{
		{"pairs --duration 0s", exitUsage, "a duration that is not above 0"},
		{"pairs --factor 1", exitUsage, "a factor of 1: want one above 1"},
		{"pairs bw --size 8,9", exitUsage, "want one number of bytes"},
		{"pairs -n 1", exitUsage, "want 2 to"},
	})
}

// The delay is far above what a busy machine makes of the median.
func TestADelayedPairIsFoundOverVerbs(t *testing.T) {
	all := inUserSpace(t, []string{"SOFTVERBS_FAULTS=delay=20ms,node=1,peer=2 delay=20ms,node=2,peer=1"},
		"pairs", "lat", "--fabric", "ibv", "-n", "4", "--duration", "5ms", "--warmup", "1ms")
	if len(all) != 1 || all[0].Pairs() == nil {
		t.Fatalf("%+v", all)
	}
	m := all[0].Pairs()
	i := slices.IndexFunc(m.Findings, func(f pairs.Finding) bool { return f.Kind == pairs.Link && slices.Equal(f.Ranks, []int{1, 2}) })
	if i != 0 {
		t.Errorf("the worst finding is not the link between 1 and 2: %+v, %v", m.Findings, m.Values)
	}
	if m.Ranks[0].MTU == 0 || m.Ranks[0].Device == "" {
		t.Errorf("%+v", m.Ranks[0])
	}
}
