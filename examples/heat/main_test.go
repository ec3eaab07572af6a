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
	exampletest.OnNetworks(t, rdmatest.Device, func(t *testing.T, n int, out string) {
		want := fmt.Sprintf("%d ranks: 0.", n)
		if !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " below the middle of the edge, as computed by one\n") {
			t.Errorf("%d ranks print %q, want %q", n, out, want)
		}
	})
}
