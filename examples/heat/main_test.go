package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/exampletest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// The ranks have computed, whatever their number, what one rank computes.
func TestThePlateIsTheSameForAnyRanks(t *testing.T) {
	t.Run("shm", func(t *testing.T) {
		for n := 1; n <= 4; n++ {
			plate(t, n, "IBCONDUIT_FABRIC=shm")
		}
	})
	t.Run("ibv", func(t *testing.T) {
		device := rdmatest.Device(t)
		for n := 1; n <= 4; n++ {
			plate(t, n, "IBCONDUIT_FABRIC=ibv", "IBCONDUIT_DEVICE="+device)
		}
	})
}

func plate(t *testing.T, n int, env ...string) {
	t.Helper()
	want := fmt.Sprintf("%d ranks: 0.", n)
	if out := exampletest.Run(t, n, env...); !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " below the middle of the edge, as computed by one\n") {
		t.Errorf("%d ranks print %q, want %q", n, out, want)
	}
}
