package main

import (
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/exampletest"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// No word has two entries.
func TestAllRanksCountTheSameWords(t *testing.T) {
	exampletest.OnNetworks(t, rdmatest.Device, func(t *testing.T, n int, out string) {
		if strings.Count(out, " 200 words in 200 entries, ") != n {
			t.Errorf("%d ranks print:\n%s", n, out)
		}
	})
}
