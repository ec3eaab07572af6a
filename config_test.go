package conduit

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/cache"
)

// variables is a Getenv of "NAME=value" pairs.
func variables(pairs string) func(string) (string, bool) {
	return func(key string) (string, bool) {
		for _, p := range strings.Fields(pairs) {
			if name, value, _ := strings.Cut(p, "="); name == key {
				return value, true
			}
		}
		return "", false
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		env  string
		want string // of the error
	}{
		{Config{SegmentSize: -1}, "", "SegmentSize is -1"},
		{Config{Fabric: "tcp"}, "", `Fabric is "tcp", want auto, ibv or shm`},
		{Config{SegmentSize: 1, SegmentShare: 0.5}, "", "SegmentShare is 0.5"},
		{Config{SegmentShare: 1.5}, "", "SegmentShare is 1.5"},
		{Config{SegmentShare: math.NaN()}, "", "SegmentShare is NaN"},
		{Config{Workers: 5000}, "", "Workers is 5000"},
		{Config{QueueDepth: 1}, "", "QueueDepth is 1"},
		{Config{GID: "fe80::1"}, "", `GID is "fe80::1"`},
		{Config{ZeroCopyMin: -2}, "", "ZeroCopyMin is -2"},
		{Config{BufferOrigin: 77}, "", "BufferOrigin is"},
		{Config{MaxConnections: 1<<20 + 1}, "", "MaxConnections is 1048577"},
		{Config{EagerPeers: 1 << 16}, "", "EagerPeers is 65536"},
		{Config{MessageEndpoints: 65}, "", "MessageEndpoints is 65, want 1 to 64"},
		{Config{MessageEndpoints: -1}, "", "MessageEndpoints is -1, want 1 to 64"},
		{Config{Messages: am.Config{Size: 3}}, "", "Messages is set in Rank"},
		{Config{Cache: &cache.Config{Pages: -1}}, "", "Cache.Pages is -1, want 1 to 43690"},
		{Config{Cache: &cache.Config{Begin: 8}}, "", "Cache is set in Region, Size or Begin"},
		{Config{}, "IBCONDUIT_CACHE=yes", `IBCONDUIT_CACHE is "yes"`},
		{Config{}, "IBCONDUIT_CACHE=page", `IBCONDUIT_CACHE is "page"`},
		{Config{}, "IBCONDUIT_CACHE=pages=0", `IBCONDUIT_CACHE is "pages=0"`},
		{Config{}, "IBCONDUIT_CACHE=page=48", `IBCONDUIT_CACHE is "page=48"`},
		{Config{}, "IBCONDUIT_CACHE=policy=best", `IBCONDUIT_CACHE is "policy=best"`},
		{Config{Workers: -1}, "IBCONDUIT_WORKERS=0", "Workers is -1, want 1 to 1024"}, // the field, not its variable

		{Config{}, "IBCONDUIT_SEGMENT_SIZE=lots", `IBCONDUIT_SEGMENT_SIZE is "lots"`},
		{Config{}, "IBCONDUIT_JOIN_TIMEOUT=-3s", `IBCONDUIT_JOIN_TIMEOUT is "-3s"`},
		{Config{}, "IBCONDUIT_LOG=loud", `IBCONDUIT_LOG is "loud"`},
		{Config{}, "IBCONDUIT_FABRIC=tcp", `IBCONDUIT_FABRIC is "tcp", want auto, ibv or shm`},
		{Config{}, "IBCONDUIT_GID=-1", `IBCONDUIT_GID is "-1", want a GID table index`},
		{Config{}, "IBCONDUIT_PORT=256", `IBCONDUIT_PORT is "256", want an integer from 1 to 255`},
		{Config{}, "IBCONDUIT_WORKERS=0", `IBCONDUIT_WORKERS is "0", want an integer from 1 to 1024`},
		{Config{}, "IBCONDUIT_QUEUE_DEPTH=deep", `IBCONDUIT_QUEUE_DEPTH is "deep", want an integer from 4 to 8192`},
		{Config{}, "IBCONDUIT_MESSAGE_ENDPOINTS=65", `IBCONDUIT_MESSAGE_ENDPOINTS is "65", want an integer from 1 to 64`},
		{Config{}, "IBCONDUIT_MAX_CONNECTIONS=0", `IBCONDUIT_MAX_CONNECTIONS is "0"`},
		{Config{}, "IBCONDUIT_CONNECT_ALL=yes", `IBCONDUIT_CONNECT_ALL is "yes"`},
		{Config{}, "IBCONDUIT_ZEROCOPY_MIN=0", `IBCONDUIT_ZEROCOPY_MIN is "0"`},
		{Config{}, "IBCONDUIT_ZEROCOPY_MIN=-2", `IBCONDUIT_ZEROCOPY_MIN is "-2"`},
		{Config{}, "IBCONDUIT_ZEROCOPY_MIN=often", `IBCONDUIT_ZEROCOPY_MIN is "often"`},
		{Config{}, "IBCONDUIT_MEM_EVENTS=dunno", `IBCONDUIT_MEM_EVENTS is "dunno"`},
		{Config{}, "IBCONDUIT_MEM_MONITORS=dunno", `IBCONDUIT_MEM_MONITORS is "dunno"`},
		{Config{}, "IBCONDUIT_MEM_LOG_LEVEL=dunno", `IBCONDUIT_MEM_LOG_LEVEL is "dunno"`},
		{Config{}, "IBCONDUIT_REGCACHE=dunno", `IBCONDUIT_REGCACHE is "dunno"`},
	} {
		c.cfg.Getenv = variables(c.env)
		j, err := Join(t.Context(), c.cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Want == "" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want a ConfigError with %q", err, c.want)
		}
		if err == nil {
			_ = j.Close()
		}
	}
}

func TestAFieldIsAsSetElseAsItsVariable(t *testing.T) {
	keepalive := func(want time.Duration) func(Config) bool {
		return func(c Config) bool { return c.Keepalive == want }
	}
	zeroCopy := func(want int64) func(Config) bool {
		return func(c Config) bool { return c.ZeroCopyMin == want }
	}
	connections := func(most int, all bool) func(Config) bool {
		return func(c Config) bool { return c.MaxConnections == most && c.ConnectAll == all }
	}
	eager := func(want int) func(Config) bool { return func(c Config) bool { return c.EagerPeers == want } }
	const some = "IBCONDUIT_MAX_CONNECTIONS=5 IBCONDUIT_CONNECT_ALL="
	for i, c := range []struct {
		cfg Config
		env string
		is  func(Config) bool
	}{
		{Config{}, "", keepalive(5 * time.Second)},
		{Config{}, "IBCONDUIT_KEEPALIVE=250ms", keepalive(250 * time.Millisecond)},
		{Config{Keepalive: time.Minute}, "IBCONDUIT_KEEPALIVE=1s", keepalive(time.Minute)},
		{Config{Keepalive: -1}, "IBCONDUIT_KEEPALIVE=1s", keepalive(-1)},
		{Config{}, "", connections(0, false)},
		{Config{MaxConnections: 3, ConnectAll: true}, some + "0", connections(3, true)},
		{Config{}, some + "1", connections(5, true)},
		{Config{}, "", zeroCopy(0)},
		{Config{}, "IBCONDUIT_ZEROCOPY_MIN=64K", zeroCopy(64 << 10)},
		{Config{}, "IBCONDUIT_ZEROCOPY_MIN=1", zeroCopy(1)},
		{Config{}, "IBCONDUIT_ZEROCOPY_MIN=never", zeroCopy(-1)},
		{Config{}, "IBCONDUIT_ZEROCOPY_MIN=-1", zeroCopy(-1)},
		{Config{ZeroCopyMin: 7}, "IBCONDUIT_ZEROCOPY_MIN=64K", zeroCopy(7)},
		{Config{ZeroCopyMin: -1}, "IBCONDUIT_ZEROCOPY_MIN=64K", zeroCopy(-1)},
		{Config{}, "", eager(64)},
		{Config{}, "IBCONDUIT_EAGER_PEERS=7", eager(7)},
		{Config{EagerPeers: -1}, "IBCONDUIT_EAGER_PEERS=7", eager(-1)},
		{Config{}, "IBCONDUIT_MESSAGE_ENDPOINTS=3", func(c Config) bool { return c.MessageEndpoints == 3 }},
	} {
		c.cfg.Getenv = variables(c.env)
		if got, err := c.cfg.withDefaults(); err != nil || !c.is(got) {
			t.Errorf("%d, %q: %+v, %v", i, c.env, got, err)
		}
	}
}

func TestTheLongestTimesAreTaken(t *testing.T) {
	j, err := Join(t.Context(), Config{Fabric: FabricSHM, SegmentSize: 1 << 16, Getenv: noEnv, JoinTimeout: math.MaxInt64, CloseTimeout: math.MaxInt64})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestBytesOfSizes(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "8": 8, "64K": 64 << 10, "1m": 1 << 20, "2GiB": 2 << 30, "3kB": 3 << 10, " 5T ": 5 << 40} {
		if n, err := ParseBytes(s); err != nil || n != want {
			t.Errorf("%q: %d, %v, want %d", s, n, err, want)
		}
	}
	for _, s := range []string{"", "K", "-1", "1.5G", "9223372036854775808", "9000000000G", "1KK", "x", "5i", "5iB", "5BB", "1KBb", "+5", "5 K"} {
		if n, err := ParseBytes(s); err == nil {
			t.Errorf("%q is taken as %d", s, n)
		}
	}
}
