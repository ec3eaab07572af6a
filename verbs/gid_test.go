package verbs

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

func gidOf(s string) GID { return netip.MustParseAddr(s).As16() }

func v2(i int, s string) GIDEntry {
	return GIDEntry{GID: gidOf(s), Index: i, Type: GIDTypeRoCEv2, Netdev: "eth0"}
}

func v1(i int, s string) GIDEntry {
	return GIDEntry{GID: gidOf(s), Index: i, Type: GIDTypeRoCEv1, Netdev: "eth0"}
}

// A ConnectX-5 in RoCE mode, as show_gids prints it: every address twice, as v1 and v2.
var cx5 = []GIDEntry{v1(0, "fe80::ba59:9fff:fe0a:1"), v2(1, "fe80::ba59:9fff:fe0a:1"), v1(2, "10.1.2.3"), v2(3, "10.1.2.3"), v1(4, "2001:db8::3"), v2(5, "2001:db8::3")}

var ethActive = PortAttr{Port: 1, State: PortActive, LinkLayer: LinkEthernet, ActiveMTU: MTU4096}

// A ConnectX-6 on HDR InfiniBand, as ibv_devinfo -v prints it: active_width 4X (2), active_speed 50
// Gb/s (64), lid 0x1f.
var hdr = PortAttr{Port: 1, State: PortActive, LinkLayer: LinkInfiniBand, LID: 0x1f, ActiveMTU: MTU4096, MaxMTU: MTU4096, ActiveWidth: 2, ActiveSpeed: 64, GIDTableLen: 8, PKeyTableLen: 128}

var ibGIDs = []GIDEntry{{GID: gidOf("fe80::ec0d:9a03:00c0:41d4"), Index: 0, Type: GIDTypeIB}}

func TestChooseGIDOnEthernetPrefersRoutable(t *testing.T) {
	for _, c := range []struct {
		name string
		gids []GIDEntry
		want int
	}{
		{"ConnectX-5 table", cx5, 3},
		{"rxe: index 0 is link-local", []GIDEntry{v2(0, "fe80::1"), v2(1, "10.0.0.1")}, 1},
		{"IPv6 only", []GIDEntry{v2(0, "fe80::1"), v2(1, "2001:db8::1")}, 1},
		{"two IPv4 addresses", []GIDEntry{v2(4, "10.0.0.1"), v2(6, "10.0.0.2")}, 4},
		{"IPv4 link-local is worse than global IPv6", []GIDEntry{v2(0, "169.254.1.1"), v2(1, "2001:db8::1")}, 1},
		{"IPv4 link-local is better than IPv6 link-local", []GIDEntry{v2(0, "fe80::1"), v2(1, "169.254.1.1")}, 1},
		{"link-local v2 before v1", []GIDEntry{v1(0, "10.0.0.1"), v2(1, "fe80::1")}, 1},
		{"v1 only", []GIDEntry{v1(0, "fe80::1")}, 0},
		{"empty and prefix-only entries are passed over", []GIDEntry{{Index: 0, Type: GIDTypeRoCEv2}, v2(1, "fe80::"), v2(2, "fe80::1")}, 2},
	} {
		got, err := ChooseGID(ethActive, c.gids, AutoGID)
		if err != nil || got.Index != c.want {
			t.Errorf("%s: got index %d, %v; want %d", c.name, got.Index, err, c.want)
			continue
		}
		if len(got.Reasons) != len(c.gids) {
			t.Errorf("%s: %d reasons for %d entries:\n%s", c.name, len(got.Reasons), len(c.gids), got.Explain())
		}
	}
}

func TestChooseGIDExplainsEveryRejection(t *testing.T) {
	got, err := ChooseGID(ethActive, append(cx5[:len(cx5):len(cx5)], v2(7, "10.9.9.9")), AutoGID)
	check(t, err)
	want := `GID 3 10.1.2.3 RoCEv2: chosen: RoCEv2 over IPv4
GID 0 fe80::ba59:9fff:fe0a:1 RoCEv1: not chosen: RoCEv1: not routable
GID 1 fe80::ba59:9fff:fe0a:1 RoCEv2: not chosen: RoCEv2 over link-local IPv6: does not leave the link
GID 2 10.1.2.3 RoCEv1: not chosen: RoCEv1: not routable
GID 4 2001:db8::3 RoCEv1: not chosen: RoCEv1: not routable
GID 5 2001:db8::3 RoCEv2: not chosen: RoCEv2 over global IPv6
GID 7 10.9.9.9 RoCEv2: not chosen: RoCEv2 over IPv4, as good but later in the table`
	if got.Explain() != want {
		t.Errorf("got\n%s\nwant\n%s", got.Explain(), want)
	}
}

func TestChooseGIDChecksAnOverride(t *testing.T) {
	if got, err := ChooseGID(ethActive, cx5, 4); err != nil || got.Index != 4 {
		t.Errorf("a valid override: %v, %v", got, err)
	}
	_, err := ChooseGID(ethActive, cx5, 9)
	if !errors.Is(err, ErrNoGID) || !strings.Contains(err.Error(), "3 (10.1.2.3 RoCEv2)") {
		t.Errorf("an empty place must be refused, listing the others: %v", err)
	}
	if _, err := ChooseGID(ethActive, []GIDEntry{{Index: 0, Type: GIDTypeRoCEv2}}, 0); !errors.Is(err, ErrNoGID) {
		t.Errorf("a zero GID must be refused: %v", err)
	}
}

func TestChooseGIDOnInfiniBandTakesIndex0(t *testing.T) {
	got, err := ChooseGID(hdr, append(ibGIDs[:1:1], GIDEntry{GID: gidOf("fe80::14:500:c0:41d4"), Index: 1}), AutoGID)
	if err != nil || got.Index != 0 || !strings.Contains(got.Explain(), "LID 0x1f") {
		t.Errorf("got %v, %v", got, err)
	}
	noLID := hdr
	noLID.LID = 0
	if _, err := ChooseGID(noLID, ibGIDs, AutoGID); !errors.Is(err, ErrNoGID) || !strings.Contains(err.Error(), "opensm") {
		t.Errorf("LID 0: %v", err)
	}
	noLID.GRHRequired = true
	if got, err := ChooseGID(noLID, ibGIDs, AutoGID); err != nil || !strings.Contains(got.Explain(), "with a GRH") {
		t.Errorf("LID 0 where GIDs route: %v, %v", got, err)
	}
}

func TestChooseGIDSaysWhatToDoAboutAPortWithoutOne(t *testing.T) {
	for _, c := range []struct {
		port PortAttr
		gids []GIDEntry
		want string
	}{
		{PortAttr{Port: 1, State: PortDown, LinkLayer: LinkEthernet}, cx5, "ip link set"},
		{PortAttr{Port: 1, State: PortInit, LinkLayer: LinkInfiniBand, LID: 3}, ibGIDs, "opensm"},
		{PortAttr{Port: 1, State: PortDown, LinkLayer: LinkInfiniBand}, ibGIDs, "cable"},
		{ethActive, nil, "ip addr add"},
		{ethActive, []GIDEntry{v2(0, "fe80::")}, "ip addr add"},
		{hdr, nil, "subnet manager"},
	} {
		_, err := ChooseGID(c.port, c.gids, AutoGID)
		if !errors.Is(err, ErrNoGID) || !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s with %d GIDs: %v; want a remedy with %q", c.port.LinkLayer, c.port.State, len(c.gids), err, c.want)
		}
	}
}
