package verbs

import (
	"fmt"
	"strings"
)

// AttrMask names the attributes that a change of a QP sets (enum ibv_qp_attr_mask).
type AttrMask uint32

const (
	AttrState           AttrMask = 1 << 0
	AttrCurState        AttrMask = 1 << 1
	AttrAccess          AttrMask = 1 << 3
	AttrPKeyIndex       AttrMask = 1 << 4
	AttrPort            AttrMask = 1 << 5
	AttrQKey            AttrMask = 1 << 6
	AttrAV              AttrMask = 1 << 7
	AttrPathMTU         AttrMask = 1 << 8
	AttrTimeout         AttrMask = 1 << 9
	AttrRetryCount      AttrMask = 1 << 10
	AttrRNRRetry        AttrMask = 1 << 11
	AttrRQPSN           AttrMask = 1 << 12
	AttrMaxReadAtomic   AttrMask = 1 << 13
	AttrMinRNRTimer     AttrMask = 1 << 15
	AttrSQPSN           AttrMask = 1 << 16
	AttrMaxDestRdAtomic AttrMask = 1 << 17
	AttrDestQPN         AttrMask = 1 << 20
)

var attrNames = []string{"state", "current state", "SQD notification", "access flags", "P_Key index", "port", "Q_Key",
	"address vector", "path MTU",
	"timeout", "retry count", "RNR retry", "RQ PSN", "max initiated READs/atomics", "alternate path", "min RNR timer",
	"SQ PSN", "max accepted READs/atomics",
	"path migration state", "capabilities", "destination QP number"}

// String lists the names, "address vector, path MTU".
func (m AttrMask) String() string {
	return strings.ReplaceAll(flagString(attrNames, uint64(m)), "|", ", ")
}

// AddressVector is the way to a remote port.
type AddressVector struct {
	Port       int    // local port
	DLID       uint16 // InfiniBand: the remote LID
	SL         uint8  // service level
	StaticRate Rate   // RateMax: no limit

	Global    bool // send a GRH; always on RoCE
	DGID      GID
	SGIDIndex int // index of the local GID
	HopLimit  uint8
}

// QPAttr is the union of what a change of a QP can set; the mask says which fields count. Alternate
// paths and SQD are not offered.
type QPAttr struct {
	State           QPState
	CurState        QPState
	Access          Access
	PKeyIndex       uint16
	Port            int
	QKey            uint32
	AV              AddressVector
	PathMTU         MTU
	Timeout         uint8
	RetryCount      uint8
	RNRRetry        uint8
	RQPSN           uint32
	SQPSN           uint32
	MaxReadAtomic   uint8
	MaxDestRdAtomic uint8
	MinRNRTimer     uint8
	DestQPN         uint32
}

// InitAttr moves a QP from RESET to INIT.
type InitAttr struct {
	Port      int    // 0 means 1
	PKeyIndex uint16 // index into the port's P_Key table
	Access    Access // RC: what the peer may do
	QKey      uint32 // UD: what senders must know
}

// RTRAttr moves a QP from INIT to RTR. UD needs none of it.
type RTRAttr struct {
	AV      AddressVector
	PathMTU MTU    // 0 means 1024
	DestQPN uint32 // 24 bits
	RQPSN   uint32 // the peer's first packet sequence number; 24 bits
	// RC: READs and atomics of the peer served at once; 0 means the device's maximum, at most
	// DefaultReadAtomic
	MaxDestRdAtomic uint8
	// RC: code (IBTA 1.4 vol. 1 table 45) of the time that an early sender has to wait; 0 means
	// DefaultMinRNRTimer
	MinRNRTimer uint8
}

// RTSAttr moves a QP from RTR to RTS. UD needs SQPSN only.
type RTSAttr struct {
	SQPSN uint32 // our first packet sequence number; 24 bits
	// RC: 4.096 us * 2^Timeout until a packet is resent; 0 means DefaultTimeout
	Timeout    uint8
	RetryCount uint8 // RC: 1 to 7; 0 means DefaultRetryCount
	RNRRetry   uint8 // RC: 1 to 6, or RNRRetryForever; 0 means DefaultRNRRetry
	// RC: READs and atomics in flight; 0 means the device's maximum, at most DefaultReadAtomic
	MaxReadAtomic uint8
}

// Defaults that survive a machine with more spinning processes than cores, and still end.
const (
	// DefaultTimeout is 1.07 s. With 14 (67 ms, the value of most examples) a descheduled Soft-RoCE
	// peer is declared dead.
	DefaultTimeout = 18
	// DefaultRetryCount is the largest value that every device takes for a number: Soft-RoCE never
	// counts down from 7 (Linux drivers/infiniband/sw/rxe/rxe_comp.c, COMPST_ERROR_RETRY), so that
	// the death of a peer would never be reported. With 6 it is after about 7 * 1.07 s, and 4 times
	// that at worst (IBTA 1.4 vol. 1 §9.7.6.1.3 allows up to four times the timeout).
	DefaultRetryCount = 6
	// DefaultRNRRetry is the largest finite value.
	DefaultRNRRetry = 6
	// RNRRetryForever makes a sender wait for a receive without end (IBTA 1.4 vol. 1 §9.7.5.2.8).
	RNRRetryForever = 7
	// DefaultMinRNRTimer is the code of 2.56 ms (IBTA 1.4 vol. 1 table 45).
	DefaultMinRNRTimer = 16
	// DefaultReadAtomic is as many READs in flight as keep a 100 Gb/s link busy with 4 KiB pages at
	// 5 us.
	DefaultReadAtomic = 16
)

// transition is a legal change of state, with the attributes it must and may have besides the
// state.
type transition struct {
	required, optional AttrMask
}

// transitions is the table of IBTA 1.4 vol. 1 §11.2.5.2 (table 91) as man ibv_modify_qp and the
// kernel's qp_state_table (drivers/infiniband/core/verbs.c) give it, without alternate paths and
// SQD. Any state may also go to RESET and to ERR, with no attribute but the state.
var transitions = map[[2]QPState]map[QPType]transition{
	{StateReset, StateInit}: {
		UD: {required: AttrPKeyIndex | AttrPort | AttrQKey},
		RC: {required: AttrPKeyIndex | AttrPort | AttrAccess},
	},
	{StateInit, StateInit}: {
		UD: {optional: AttrPKeyIndex | AttrPort | AttrQKey},
		RC: {optional: AttrPKeyIndex | AttrPort | AttrAccess},
	},
	{StateInit, StateRTR}: {
		UD: {optional: AttrPKeyIndex | AttrQKey},
		RC: {required: AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
			optional: AttrAccess | AttrPKeyIndex},
	},
	{StateRTR, StateRTS}: {
		UD: {required: AttrSQPSN, optional: AttrCurState | AttrQKey},
		RC: {required: AttrSQPSN | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxReadAtomic,
			optional: AttrCurState | AttrAccess | AttrMinRNRTimer},
	},
	{StateRTS, StateRTS}: {
		UD: {optional: AttrCurState | AttrQKey},
		RC: {optional: AttrCurState | AttrAccess | AttrMinRNRTimer},
	},
	{StateSQE, StateRTS}: {UD: {optional: AttrCurState | AttrQKey}},
}

// transitionFor returns what a change from one state to another takes, and whether the change is
// legal at all.
func transitionFor(t QPType, from, to QPState) (transition, bool) {
	if to == StateReset || to == StateErr {
		return transition{}, true
	}
	tr, ok := transitions[[2]QPState{from, to}][t]
	return tr, ok
}

// explainTransition names the fault in the attributes of a change of a QP from one state to
// another: missing ones, superfluous ones, or the change itself. It returns "" when mask is one
// that the change takes.
func explainTransition(t QPType, from, to QPState, mask AttrMask) string {
	tr, ok := transitionFor(t, from, to)
	if !ok {
		return fmt.Sprintf("%s QPs cannot go from %s to %s%s", t, from, to, waysFrom(t, from))
	}
	mask &^= AttrState
	var parts []string
	if missing := tr.required &^ mask; missing != 0 {
		parts = append(parts, fmt.Sprintf("missing: %s", missing))
	}
	if extra := mask &^ (tr.required | tr.optional); extra != 0 {
		parts = append(parts, fmt.Sprintf("superfluous: %s", extra))
	}
	if parts == nil {
		return ""
	}
	return fmt.Sprintf("%s to %s of %s QPs: %s", from, to, t, strings.Join(parts, "; "))
}

func waysFrom(t QPType, from QPState) string {
	var ways []string
	for to := StateInit; to <= StateSQE; to++ {
		if _, ok := transitionFor(t, from, to); ok {
			ways = append(ways, to.String())
		}
	}
	return fmt.Sprintf("; from %s it may go to %s", from, strings.Join(append(ways, "RESET", "ERR"), ", "))
}

// explainValues says which attribute values cannot be right, given the known facts of the device
// and port.
func explainValues(a *QPAttr, mask AttrMask, dev *DeviceAttr, port *PortAttr, gids []GIDEntry) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if mask&AttrPort != 0 && (a.Port < 1 || a.Port > dev.Ports) {
		say("port %d of a device with %d", a.Port, dev.Ports)
	}
	if mask&AttrPKeyIndex != 0 && port != nil && int(a.PKeyIndex) >= port.PKeyTableLen {
		say("P_Key index %d of a table of %d", a.PKeyIndex, port.PKeyTableLen)
	}
	if mask&AttrPathMTU != 0 {
		if a.PathMTU.Bytes() == 0 {
			say("path MTU code %d is not one of 1 (256) to 5 (4096)", uint8(a.PathMTU))
		} else if port != nil && a.PathMTU > port.ActiveMTU {
			say("path MTU %s exceeds the port's active MTU %s", a.PathMTU, port.ActiveMTU)
		}
	}
	for _, f := range []struct {
		bit  AttrMask
		v    int
		max  int
		what string
	}{
		{AttrTimeout, int(a.Timeout), 31, "timeout"},
		{AttrRetryCount, int(a.RetryCount), 7, "retry count"},
		{AttrRNRRetry, int(a.RNRRetry), 7, "RNR retry"},
		{AttrMinRNRTimer, int(a.MinRNRTimer), 31, "min RNR timer"},
		{AttrDestQPN, int(a.DestQPN), 1<<24 - 1, "destination QP number"},
		{AttrRQPSN, int(a.RQPSN), 1<<24 - 1, "RQ PSN"},
		{AttrSQPSN, int(a.SQPSN), 1<<24 - 1, "SQ PSN"},
		{AttrMaxReadAtomic, int(a.MaxReadAtomic), dev.MaxQPInitReadAtomic, "max initiated READs/atomics"},
		{AttrMaxDestRdAtomic, int(a.MaxDestRdAtomic), dev.MaxQPReadAtomic, "max accepted READs/atomics"},
	} {
		if mask&f.bit != 0 && f.v > f.max {
			say("%s %d exceeds %d", f.what, f.v, f.max)
		}
	}
	if mask&AttrAV != 0 {
		out = append(out, explainAV(&a.AV, dev, port, gids)...)
	}
	return out
}

// explainAV names the fault of an address vector.
func explainAV(av *AddressVector, dev *DeviceAttr, port *PortAttr, gids []GIDEntry) []string {
	var out []string
	if av.Port < 1 || av.Port > dev.Ports {
		out = append(out, fmt.Sprintf("address vector: port %d of a device with %d", av.Port, dev.Ports))
	}
	if port == nil {
		return out
	}
	if !av.Global {
		switch {
		case port.LinkLayer == LinkEthernet:
			out = append(out, "address vector: RoCE needs a GRH (Global)")
		case av.DLID == 0:
			out = append(out, "address vector: remote LID is 0")
		}
		return out
	}
	if av.DGID == (GID{}) {
		out = append(out, "address vector: remote GID is zero")
	}
	for _, g := range gids {
		if g.Index == av.SGIDIndex {
			return out
		}
	}
	return append(out, fmt.Sprintf("address vector: GID index %d of port %d is empty (table has %d places)",
		av.SGIDIndex, av.Port, port.GIDTableLen))
}
