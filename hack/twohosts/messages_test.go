//go:build linux && cgo

package twohosts

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/hack/softroce"
)

// started waits until all ranks are together and begin.
func (j *job) started() {
	j.Helper()
	for r := range j.ranks {
		j.says(r, "traffic")
	}
}

// find waits until the ranks that are named have found others down and gone on among themselves,
// and logs how long the slowest took to find out.
func (j *job) find(down string, survivors string, ranks ...int) {
	j.Helper()
	begun := time.Now()
	for _, r := range ranks {
		j.says(r, fmt.Sprintf("rank %d: found ranks %s down", r, down))
		j.Logf("rank %d noticed after %.1f s: %s", r, time.Since(begun).Seconds(), j.line(r, "found ranks"))
	}
	for _, r := range ranks {
		j.says(r, fmt.Sprintf("rank %d: survives with %s\n", r, survivors))
	}
	j.end(ranks...)
}

// messagesBetween is the part of TestTwoHosts that only messages have.
func messagesBetween(t *testing.T, c *softroce.Cluster) {
	t.Run("of every kind arrive once, with their bytes", func(t *testing.T) {
		start(t, c, "mixed", "auto", 15, 0, 0, 1, 1).all()
	})
	t.Run("go on when a cable is plugged in again", func(t *testing.T) {
		if !replug(t, c, "mixed", 80) && !replug(t, c, "mixed", 800) { // they may be over before the cable is out
			t.Error("rank 0 did not wait")
		}
	})
	t.Run("arrive though their sender leaves while the cable is out", func(t *testing.T) {
		held := func() bool {
			j := start(t, c, "farewell", "auto", 3, 0, 1)
			j.started()
			j.says(1, "rank 1: 0 of rank 0 arrived\n")
			time.Sleep(farewellAfter / 4) // rank 1 has come to Close, and said so
			must(t, c.Cut(0, 1))
			j.says(0, "rank 0: leaves\n")
			time.Sleep(time.Second) // less than a device tries
			early := strings.Contains(j.outs[1].String(), "rank 1: 1 of rank 0 arrived\n")
			must(t, c.Restore(0, 1))
			j.all()
			for i := range 4 {
				if said := fmt.Sprintf("rank 1: %d of rank 0 arrived\n", i); !strings.Contains(j.outs[1].String(), said) {
					t.Errorf("rank 1 did not say %q", said)
				}
			}
			return !early
		}
		for tries := 1; !held(); tries++ { // the cable may come out late on a busy machine
			if tries == 2 {
				t.Fatal("the words were there before the cable was out")
			}
		}
	})
	t.Run("are not needed to find a cut cable", func(t *testing.T) {
		other := os.Getenv("IBCONDUIT_KEEPALIVE") // for a user that measures it
		if other == "" {
			t.Setenv("IBCONDUIT_KEEPALIVE", "1s")
		}
		j := start(t, c, "silent", "auto", 0, 0, 1)
		j.started()
		must(t, c.Cut(0, 1))
		defer c.Restore(0, 1)
		begun := time.Now()
		for r := range 2 {
			j.says(r, fmt.Sprintf("rank %d: found rank %d down", r, 1-r))
			line := j.line(r, "found rank")
			t.Logf("rank %d noticed after %.1f s: %s", r, time.Since(begun).Seconds(), line)
			if other == "" && !strings.Contains(line, "verbs:") {
				t.Errorf("rank %d learned it before its keepalive found it", r)
			}
		}
		j.end(0, 1)
	})
}
