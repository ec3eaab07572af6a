package main

import (
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/exampletest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestAllRanksCountTheSameWords(t *testing.T) {
	t.Run("shm", func(t *testing.T) {
		for n := 1; n <= 4; n++ {
			table(t, n, "IBCONDUIT_FABRIC=shm")
		}
	})
	t.Run("ibv", func(t *testing.T) {
		device := rdmatest.Device(t)
		for n := 1; n <= 4; n++ {
			table(t, n, "IBCONDUIT_FABRIC=ibv", "IBCONDUIT_DEVICE="+device)
		}
	})
}

// table: no word has two entries.
func table(t *testing.T, n int, env ...string) {
	t.Helper()
	if out := exampletest.Run(t, n, env...); strings.Count(out, " 200 words in 200 entries, ") != n {
		t.Errorf("%d ranks print:\n%s", n, out)
	}
}
