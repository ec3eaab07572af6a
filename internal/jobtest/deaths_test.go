package jobtest

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/parttest"
)

var (
	deathsWorlds = flag.Int("deaths", 0, "worlds of random deaths on each network (default 20; a tenth where parttest.Of says so)")
	deathsFirst  = flag.Uint64("deaths-seed", 1, "of the first world of random deaths")
	deathsMost   = flag.Duration("deaths-most", 0, "fail where a rank takes longer; 0: however long")
)

// TestRandomDeaths runs worlds of random collective operations, amid which ranks are killed: the
// others shrink the team and go on. `go test ./internal/jobtest -run RandomDeaths -deaths 500
// -deaths-most 2s -v -timeout 0` runs more, and prints the longest; over verbs with a device, as
// with -exec "$PWD/hack/softverbs/run".
func TestRandomDeaths(t *testing.T) {
	worlds := *deathsWorlds
	if worlds == 0 {
		worlds = parttest.Of(20)
	}
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		var longest time.Duration
		var of uint64
		killed := 0
		for seed := *deathsFirst; seed < *deathsFirst+uint64(worlds); seed++ {
			d := newDeaths(seed)
			killed += d.dying()
			took, err := d.run(t, cfg)
			if err != nil {
				t.Errorf("seed %d, %d ranks, %d killed: %v", seed, d.n, d.dying(), err)
			}
			if took > longest {
				longest, of = took, seed
			}
			if *deathsMost > 0 && took > *deathsMost {
				t.Errorf("seed %d took a rank %v", seed, took)
			}
		}
		t.Logf("%d worlds, %d killed ranks; the longest is seed %d, %v", worlds, killed, of, longest)
	})
}

// run returns how long the slowest rank took, from the end of Join to the end of its program.
func (d *deaths) run(t *testing.T, cfg conduit.Config) (longest time.Duration, err error) {
	out, _ := launched(t, d.n, rankEnv("deaths", cfg, fmt.Sprintf("%s=%d", deathsSeed, d.seed)))
	survivors := 0
	for line := range strings.Lines(out) {
		var rank int
		var took string
		if n, _ := fmt.Sscanf(line, "rank %d: survived %s", &rank, &took); n == 2 {
			survivors++
			one, err := time.ParseDuration(took)
			if err != nil {
				return 0, err
			}
			longest = max(longest, one)
		}
	}
	if want := d.n - d.dying(); survivors != want {
		return longest, fmt.Errorf("%d ranks came to the end, want %d:\n%s", survivors, want, out)
	}
	return longest, nil
}
