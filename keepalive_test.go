package conduit

import (
	"testing"
	"time"
)

func TestKeepaliveIsTheFieldElseTheVariableElseFiveSeconds(t *testing.T) {
	for _, c := range []struct {
		field    time.Duration
		variable string
		want     time.Duration
	}{{0, "", 5 * time.Second}, {0, "250ms", 250 * time.Millisecond}, {time.Minute, "1s", time.Minute}, {-1, "1s", -1}} {
		cfg, err := Config{Keepalive: c.field, Getenv: func(k string) (string, bool) {
			return c.variable, k == "IBCONDUIT_KEEPALIVE"
		}}.withDefaults()
		if err != nil || cfg.Keepalive != c.want {
			t.Errorf("field %v, variable %q: %v, %v; want %v", c.field, c.variable, cfg.Keepalive, err, c.want)
		}
	}
}
