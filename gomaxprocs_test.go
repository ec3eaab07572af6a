package conduit

import (
	"runtime"
	"testing"
)

// One processor for the runtime becomes two, so that the attendants of messages run while the
// program computes, unless the user forbids it. Defaults that follow GOMAXPROCS do not change.
func TestOneProcessorBecomesTwo(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for name, c := range map[string]struct {
		ranks     int
		cfg       Config
		env, keep string
		want      int
	}{
		"by default":            {ranks: 2, want: 2},
		"GOMAXPROCS is set":     {ranks: 2, env: "1", want: 1},
		"GOMAXPROCS is no size": {ranks: 2, env: "0", want: 2},
		"it is too large":       {ranks: 2, env: "2147483648", want: 2},
		"the field forbids it":  {ranks: 2, cfg: Config{KeepGOMAXPROCS: true}, want: 1},
		"its variable forbids":  {ranks: 2, keep: "1", want: 1},
		"its variable does not": {ranks: 2, keep: "0", want: 2},
		"one rank has no peers": {ranks: 1, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOMAXPROCS", c.env)
			t.Setenv("IBCONDUIT_KEEP_GOMAXPROCS", c.keep)
			runtime.GOMAXPROCS(1)
			c.cfg.SegmentSize = 1 << 16
			err := RunLocalConfig(t.Context(), c.ranks, c.cfg, func(j *Job) error {
				if j.cfg.MessageEndpoints != 1 || j.cfg.Workers != 2 {
					t.Errorf("%d endpoints and %d workers, want 1 and 2", j.cfg.MessageEndpoints, j.cfg.Workers)
				}
				return nil
			})
			if got := runtime.GOMAXPROCS(0); err != nil || got != c.want {
				t.Errorf("GOMAXPROCS is %d, want %d; %v", got, c.want, err)
			}
		})
	}
}
