package verbs

import (
	"strings"
	"testing"
)

func TestExplanationNamesWrongAttributes(t *testing.T) {
	rtr := AttrState | AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer
	for _, c := range []struct {
		name     string
		typ      QPType
		from, to QPState
		mask     AttrMask
		want     string // "" means legal
	}{
		{"RC init", RC, StateReset, StateInit, AttrState | AttrPKeyIndex | AttrPort | AttrAccess, ""},
		{"UD init takes a Q_Key for access flags", UD, StateReset, StateInit, AttrState | AttrPKeyIndex | AttrPort | AttrAccess, "RESET to INIT of UD QPs: missing: Q_Key; superfluous: access flags"},
		{"RC rtr", RC, StateInit, StateRTR, rtr, ""},
		{"RC rtr without an address", RC, StateInit, StateRTR, rtr &^ (AttrAV | AttrMinRNRTimer), "INIT to RTR of RC QPs: missing: address vector, min RNR timer"},
		{"UD rtr needs nothing", UD, StateInit, StateRTR, AttrState, ""},
		{"RC rts without retries", RC, StateRTR, StateRTS, AttrState | AttrSQPSN | AttrTimeout | AttrRNRRetry | AttrMaxReadAtomic, "RTR to RTS of RC QPs: missing: retry count"},
		{"RC rts with an optional attribute", RC, StateRTR, StateRTS, AttrState | AttrSQPSN | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxReadAtomic | AttrMinRNRTimer, ""},
		{"RESET to RTS is no step", RC, StateReset, StateRTS, AttrState, "RC QPs cannot go from RESET to RTS; from RESET it may go to INIT, RESET, ERR"},
		{"ERR leads to RESET only", RC, StateErr, StateInit, AttrState, "RC QPs cannot go from ERR to INIT; from ERR it may go to RESET, ERR"},
		{"anything to ERR", UD, StateRTS, StateErr, AttrState, ""},
		{"ERR takes no attributes", UD, StateRTS, StateErr, AttrState | AttrPort, "RTS to ERR of UD QPs: superfluous: port"},
		{"RTS to RTS", RC, StateRTS, StateRTS, AttrAccess, ""},
	} {
		if got := explainTransition(c.typ, c.from, c.to, c.mask); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestExplainValuesNamesWhatIsOutOfRange(t *testing.T) {
	dev := &DeviceAttr{Ports: 1, MaxQPReadAtomic: 16, MaxQPInitReadAtomic: 16}
	port := &PortAttr{Port: 1, LinkLayer: LinkEthernet, ActiveMTU: MTU1024, PKeyTableLen: 1, GIDTableLen: 256}
	gids := []GIDEntry{v2(1, "10.0.0.1")}
	ok := QPAttr{Port: 1, PathMTU: MTU1024, DestQPN: 17, AV: AddressVector{Port: 1, Global: true, DGID: gidOf("10.0.0.2"), SGIDIndex: 1}}
	all := AttrPort | AttrPKeyIndex | AttrPathMTU | AttrDestQPN | AttrMaxReadAtomic | AttrTimeout | AttrAV
	if got := explainValues(&ok, all, dev, port, gids); got != nil {
		t.Errorf("valid values: %q", got)
	}
	for want, change := range map[string]func(a *QPAttr){
		"port 2 of a device with 1":           func(a *QPAttr) { a.Port = 2 },
		"P_Key index 1 of a table of 1":       func(a *QPAttr) { a.PKeyIndex = 1 },
		"path MTU 4096 exceeds":               func(a *QPAttr) { a.PathMTU = MTU4096 },
		"path MTU code 9":                     func(a *QPAttr) { a.PathMTU = 9 },
		"destination QP number 16777216":      func(a *QPAttr) { a.DestQPN = 1 << 24 },
		"initiated READs/atomics 17":          func(a *QPAttr) { a.MaxReadAtomic = 17 },
		"timeout 32":                          func(a *QPAttr) { a.Timeout = 32 },
		"RoCE needs a GRH":                    func(a *QPAttr) { a.AV.Global = false },
		"remote GID is zero":                  func(a *QPAttr) { a.AV.DGID = GID{} },
		"GID index 5 of port 1 is empty":      func(a *QPAttr) { a.AV.SGIDIndex = 5 },
		"address vector: port 0 of a device ": func(a *QPAttr) { a.AV.Port = 0 },
	} {
		a := ok
		change(&a)
		if got := strings.Join(explainValues(&a, all, dev, port, gids), "; "); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
