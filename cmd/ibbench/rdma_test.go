package main

import (
	"testing"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestLatencyOverVerbs(t *testing.T) {
	dev := rdmatest.Device(t)
	for _, args := range [][]string{
		{"lat", "put", "--sizes", "1,8,9,100,4K,64K"}, {"lat", "put", "--ack", "--sizes", "8,4K"},
		{"lat", "get", "--sizes", "8,4K"}, {"lat", "amo"}, {"lat", "cas"},
		{"bw", "put", "--sizes", "64,64K"}, {"bw", "get", "--sizes", "64K", "--depth", "4,32"}, {"rate", "put", "--depth", "4,64"},
		{"rate", "amo", "--depth", "16", "--lanes", "2"}, {"bw", "put", "--local", "own", "--sizes", "64,64K"}, {"lat", "get", "--local", "own", "--sizes", "64K"},
		{"lat", "am", "--sizes", "short,8,4K"}, {"bw", "am", "--sizes", "64,4K", "--bidi"}, {"rate", "am", "--lanes", "1,2", "--goroutines", "1,4"},
	} {
		for _, s := range series(t, append(args, "-d", dev, "--fabric", "ibv", "--iters", "100", "--warmup", "0", "--warmup-iters", "20")...) {
			if s.Env.Fabric != "ibv" || s.Env.Device == nil || s.Env.Device.Name != dev || s.Env.Device.MTU == 0 || s.Env.Device.GID == "" {
				t.Errorf("%v: measured on %s, %+v", args, s.Env.Fabric, s.Env.Device)
			}
		}
	}
}

func TestWithADeviceTheBestNetworkIsVerbs(t *testing.T) {
	dev := rdmatest.Device(t)
	s := series(t, "lat", "amo", "--iters", "50", "-d", dev)[0]
	if s.Env.Fabric != "ibv" || s.Env.Device.Software != true && s.Env.Device.Firmware == "" {
		t.Errorf("%+v", s.Env.Device)
	}
}

func TestPerftestIsComparedOnTheSameDevice(t *testing.T) {
	dev := rdmatest.Device(t)
	for kind, points := range map[string]int{"lat": 4, "bw": 3} {
		size := map[string]string{"lat": "8", "bw": "4K"}[kind]
		all := series(t, "perftest", kind, "-d", dev, "--rounds", "2", "--iters", "100", "--sizes", size)
		if len(all) != points {
			t.Fatalf("%s: %d series", kind, len(all))
		}
		for _, s := range all {
			p := s.Peer()
			if s.Kind != "perftest" || p == nil || s.Value("ratio.mean") <= 0 || len(p.Rounds) < 2 || p.Settings["Device"] != dev || p.Version == "" {
				t.Errorf("%s %s: %+v, ratio %+v", kind, s.Op, p, s.Metrics)
			}
			if s.Op == "am" && (p.Tool != "ib_send_"+kind || kind == "lat" && (p.Times != 2 || s.Definition != "rtt") || !s.Has("am.rnr") || s.Value("am.rnr") != 0) {
				t.Errorf("%s: %s times %v, %s, %+v", s.Op, p.Tool, p.Times, s.Definition, s.Metrics)
			}
			if kind == "lat" && (s.Value("ratio.p50") <= 0 || s.Value("ratio.p99") <= 0) {
				t.Errorf("%s: %+v", s.Op, s.Metrics)
			}
		}
	}
}

func TestCollectivesOverVerbs(t *testing.T) {
	collOps(t, 2, "--fabric", "ibv", "-d", rdmatest.Device(t))
}
