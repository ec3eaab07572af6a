package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func ibEnd(lid uint16, gid string, width, speed uint8, mtu MTU, pkeys ...uint16) PathEnd {
	return PathEnd{LinkLayer: LinkInfiniBand, Port: 1, LID: lid, GID: gidOf(gid), ActiveMTU: mtu, ActiveWidth: width, ActiveSpeed: speed, PKeys: pkeys}
}

func TestLinkRatesAreThoseOfTheStandardSpeeds(t *testing.T) {
	for _, c := range []struct {
		name         string
		width, speed uint8
		gbps         int
		code         Rate
	}{
		{"SDR 1x", 1, 1, 2, 2}, {"SDR 4x", 2, 1, 10, 3}, {"DDR 4x", 2, 2, 20, 6}, {"QDR 4x", 2, 4, 40, 7}, {"FDR10 4x", 2, 8, 40, 7}, {"FDR 4x", 2, 16, 56, 12},
		{"FDR 12x", 8, 16, 168, 14}, {"EDR 1x", 1, 32, 25, 15}, {"EDR 4x", 2, 32, 100, 16}, {"EDR 12x", 8, 32, 300, 18}, {"HDR100 (2x)", 16, 64, 100, 16},
		{"HDR 4x", 2, 64, 200, 17}, {"HDR 12x", 8, 64, 600, 22}, {"NDR200 (2x)", 16, 128, 200, 17}, {"NDR 4x", 2, 128, 400, 21}, {"NDR 8x", 4, 128, 800, 23}, {"NDR 12x", 8, 128, 1200, 24},
	} {
		mbps := LinkRate(c.width, c.speed)
		if mbps/1000 != c.gbps || rateOf(mbps) != c.code {
			t.Errorf("%s: %d Mb/s, code %d; want %d Gb/s, code %d", c.name, mbps, rateOf(mbps), c.gbps, c.code)
		}
	}
	if LinkRate(2, 0) != 0 || LinkRate(3, 64) != 0 {
		t.Error("unknown codes must give 0")
	}
}

func TestPathOnInfiniBandUsesLIDAndSlowerRate(t *testing.T) {
	hdrEnd := ibEnd(0x1f, "fe80::ec0d:9a03:00c0:41d4", 2, 64, MTU4096, 0xffff)
	edrEnd := ibEnd(0x2a, "fe80::ec0d:9a03:00c0:5000", 2, 32, MTU2048, 0xffff)
	ndrEnd := ibEnd(0x2b, "fe80::ec0d:9a03:00c0:6000", 2, 128, MTU4096, 0xffff)
	p, err := ComputePath(hdrEnd, edrEnd)
	check(t, err)
	want := Path{MTU: MTU2048, AV: AddressVector{Port: 1, DLID: 0x2a, StaticRate: 16}}
	if p != want {
		t.Errorf("HDR to EDR: %+v, want %+v", p, want)
	}
	for _, c := range []struct {
		local, remote PathEnd
		want          Rate
	}{{edrEnd, hdrEnd, RateMax}, {hdrEnd, hdrEnd, RateMax}, {ndrEnd, hdrEnd, 17}, {hdrEnd, ndrEnd, RateMax}} {
		if p, err := ComputePath(c.local, c.remote); err != nil || p.AV.StaticRate != c.want {
			t.Errorf("from %d to %d Mb/s: rate %d, %v; want %d", LinkRate(c.local.ActiveWidth, c.local.ActiveSpeed), LinkRate(c.remote.ActiveWidth, c.remote.ActiveSpeed), p.AV.StaticRate, err, c.want)
		}
	}
	unknown := hdrEnd
	unknown.ActiveSpeed = 0
	if p, err := ComputePath(hdrEnd, unknown); err != nil || p.AV.StaticRate != RateMax {
		t.Errorf("an unknown speed must not limit: %v, %v", p, err)
	}
}

func TestPathOnInfiniBandAddsAGRHOnlyIfNeeded(t *testing.T) {
	here := ibEnd(0x1f, "fe80::1", 2, 64, MTU4096)
	there := ibEnd(0x2a, "fe80::2", 2, 64, MTU4096)
	if p, err := ComputePath(here, there); err != nil || p.AV.Global {
		t.Errorf("one subnet: %+v, %v", p, err)
	}
	far := ibEnd(0x2a, "fec0:0:0:1::2", 2, 64, MTU4096)
	p, err := ComputePath(here, far)
	if err != nil || !p.AV.Global || p.AV.DGID != far.GID || p.AV.HopLimit < 2 || p.AV.DLID != 0x2a {
		t.Errorf("two subnets: %+v, %v", p, err)
	}
	strict := here
	strict.GRHRequired = true
	if p, err := ComputePath(strict, there); err != nil || !p.AV.Global {
		t.Errorf("local port requires a GRH: %+v, %v", p, err)
	}
	strict = there
	strict.GRHRequired, strict.LID = true, 0
	if p, err := ComputePath(here, strict); err != nil || !p.AV.Global {
		t.Errorf("remote port requires a GRH and has no LID: %+v, %v", p, err)
	}
	there.LID = 0
	if _, err := ComputePath(here, there); !errors.Is(err, ErrNoPath) || !strings.Contains(err.Error(), "opensm") {
		t.Errorf("remote LID 0: %v", err)
	}
}

func TestPathKeepsTheServiceLevelAndPort(t *testing.T) {
	here := ibEnd(1, "fe80::1", 2, 64, MTU4096)
	here.SL, here.Port, here.GIDIndex = 5, 2, 3
	p, err := ComputePath(here, ibEnd(2, "fe80::2", 2, 64, MTU4096))
	if err != nil || p.AV.SL != 5 || p.AV.Port != 2 || p.AV.SGIDIndex != 3 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestPathChoosesACommonPartition(t *testing.T) {
	for _, c := range []struct {
		name          string
		local, remote []uint16
		want          int // -1: no path
	}{
		{"default partition", []uint16{0xffff}, []uint16{0xffff}, 0},
		{"empty places are no partitions", []uint16{0, 0x8001, 0}, []uint16{0, 0x8002, 0x8001}, 1},
		{"limited here, full there", []uint16{0x7fff}, []uint16{0xffff}, 0},
		{"full here, limited there", []uint16{0xffff}, []uint16{0x7fff}, 0},
		{"limited members cannot talk", []uint16{0x7fff}, []uint16{0x7fff}, -1},
		{"limited in one, full in another", []uint16{0x7fff, 0x8001}, []uint16{0x7fff, 0x0001}, 1},
		{"nothing in common", []uint16{0x8001}, []uint16{0x8002}, -1},
		{"none known", nil, nil, 0},
	} {
		p, err := ComputePath(ibEnd(1, "fe80::1", 2, 64, MTU4096, c.local...), ibEnd(2, "fe80::2", 2, 64, MTU4096, c.remote...))
		if c.want < 0 {
			if !errors.Is(err, ErrNoPath) || !strings.Contains(err.Error(), "P_Key") {
				t.Errorf("%s: %v, %v; want no path", c.name, p, err)
			}
		} else if err != nil || int(p.PKeyIndex) != c.want {
			t.Errorf("%s: index %d, %v; want %d", c.name, p.PKeyIndex, err, c.want)
		}
	}
}

func TestPathOnEthernetWantsEqualGIDKinds(t *testing.T) {
	end := func(gid string, typ GIDType, mtu MTU) PathEnd {
		return PathEnd{LinkLayer: LinkEthernet, Port: 1, GID: gidOf(gid), GIDType: typ, GIDIndex: 3, ActiveMTU: mtu}
	}
	p, err := ComputePath(end("10.0.0.1", GIDTypeRoCEv2, MTU4096), end("10.0.0.2", GIDTypeRoCEv2, MTU1024))
	if err != nil || !p.AV.Global || p.AV.DGID != gidOf("10.0.0.2") || p.AV.SGIDIndex != 3 || p.MTU != MTU1024 || p.AV.HopLimit != 64 || p.AV.DLID != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	for name, c := range map[string][2]PathEnd{
		"v1 and v2":     {end("10.0.0.1", GIDTypeRoCEv1, MTU1024), end("10.0.0.2", GIDTypeRoCEv2, MTU1024)},
		"IPv4 and IPv6": {end("10.0.0.1", GIDTypeRoCEv2, MTU1024), end("2001:db8::2", GIDTypeRoCEv2, MTU1024)},
		"two layers":    {end("10.0.0.1", GIDTypeRoCEv2, MTU1024), ibEnd(2, "fe80::2", 2, 64, MTU4096)},
		"no MTU":        {end("10.0.0.1", GIDTypeRoCEv2, 0), end("10.0.0.2", GIDTypeRoCEv2, MTU1024)},
	} {
		if _, err := ComputePath(c[0], c[1]); !errors.Is(err, ErrNoPath) || !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("%s: %v, want no path", name, err)
		}
	}
}
