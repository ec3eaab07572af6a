package verbs

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Rate is a static rate in the coding of the IBTA (enum ibv_rate): what a sender limits itself to.
type Rate uint8

// RateMax means no limit.
const RateMax Rate = 0

// rateCode maps Gb/s, rounded down, to codes (IBTA 1.4 vol. 1 table 224; infiniband/verbs.h enum
// ibv_rate).
var rateCode = map[int]Rate{2: 2, 5: 5, 10: 3, 20: 6, 30: 4, 40: 7, 60: 8, 80: 9, 120: 10, 14: 11,
	56: 12, 112: 13, 168: 14,
	25: 15, 100: 16, 200: 17, 300: 18, 28: 19, 50: 20, 400: 21, 600: 22, 800: 23, 1200: 24}

// lanes maps active_width to lanes (IBTA 1.4 vol. 1 §14.2.5.6 PortInfo.LinkWidthActive).
var lanes = map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}

// laneMbps maps active_speed to the nominal data rate of a lane in Mb/s (PortInfo.LinkSpeedActive,
// LinkSpeedExtActive).
var laneMbps = map[uint8]int{1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14000, 32: 25000, 64: 50000, 128: 100000}

// LinkRate returns the nominal rate in Mb/s of a link of that width and speed, or 0 when a code is
// unknown.
func LinkRate(width, speed uint8) int { return lanes[width] * laneMbps[speed] }

// rateOf returns the code of a rate in Mb/s, or RateMax when there is none.
func rateOf(mbps int) Rate { return rateCode[mbps/1000] }

// GRH hop limit: RoCEv2 packets carry it as IP TTL (RoCEv2 annex A17.4.5.1).
const defaultHopLimit = 64

// PathEnd is what one end of a connection must know about a port of the other, and of its own.
type PathEnd struct {
	LinkLayer   LinkLayer
	LID         uint16
	GID         GID
	GIDType     GIDType
	GIDIndex    int // local end only
	Port        int // local end only
	ActiveMTU   MTU
	ActiveWidth uint8
	ActiveSpeed uint8
	GRHRequired bool
	SL          uint8    // local end only: service level to use
	PKeys       []uint16 // the port's P_Key table
}

// NewPathEnd describes a port with the GID that was chosen for it.
func NewPathEnd(p PortAttr, g GIDChoice, pkeys []uint16) PathEnd {
	return PathEnd{LinkLayer: p.LinkLayer, LID: p.LID, GID: g.GID, GIDType: g.Type, GIDIndex: g.Index, Port: p.Port,
		ActiveMTU:   p.ActiveMTU,
		ActiveWidth: p.ActiveWidth, ActiveSpeed: p.ActiveSpeed, GRHRequired: p.GRHRequired, PKeys: pkeys}
}

// Path is the way between two ports.
type Path struct {
	AV        AddressVector
	MTU       MTU
	PKeyIndex uint16
}

// ComputePath works out, without asking a subnet manager, the way from the local port to the remote
// one: LID or GID, P_Key, the smaller MTU and the lower rate. On fabrics with a subnet manager that
// assigns service levels per path, set local.SL.
func ComputePath(local, remote PathEnd) (Path, error) {
	fail := func(detail, remedy string) (Path, error) {
		return Path{}, &Error{Op: "compute path", Errno: syscall.EHOSTUNREACH, Err: ErrNoPath, Detail: detail, Remedy: remedy}
	}
	if local.LinkLayer != remote.LinkLayer {
		return fail(fmt.Sprintf("the local port is %s, the remote one %s", local.LinkLayer, remote.LinkLayer),
			"choose devices of one network on both hosts")
	}
	mtu := min(local.ActiveMTU, remote.ActiveMTU)
	if mtu.Bytes() == 0 || max(local.ActiveMTU, remote.ActiveMTU).Bytes() == 0 {
		return fail(fmt.Sprintf("invalid MTU: local %s, remote %s", local.ActiveMTU, remote.ActiveMTU), "is the port active?")
	}
	p := Path{MTU: mtu, AV: AddressVector{Port: local.Port, SL: local.SL, SGIDIndex: local.GIDIndex}}
	if local.LinkLayer == LinkEthernet {
		if local.GIDType != remote.GIDType {
			return fail(fmt.Sprintf("the local GID %s is %s, the remote one %s is %s",
				local.GID, local.GIDType, remote.GID, remote.GIDType), "choose GIDs of one type on both hosts")
		}
		if local.GIDType == GIDTypeRoCEv2 && local.GID.Addr().Is4() != remote.GID.Addr().Is4() {
			return fail(fmt.Sprintf("the local GID %s and the remote one %s are of different IP versions",
				local.GID, remote.GID), "choose GIDs of one IP version on both hosts")
		}
		p.AV.setGlobal(remote.GID)
		return p, nil
	}
	idx, err := matchPKey(local.PKeys, remote.PKeys)
	if err != nil {
		return fail(err.Error(), "ask the administrator of the subnet for a partition that both ports are in")
	}
	p.PKeyIndex = idx
	// GRH where LIDs do not route: another subnet, or a port that demands it (IBTA 1.4 vol. 1
	// §8.3).
	if local.GRHRequired || remote.GRHRequired || local.GID.SubnetPrefix() != remote.GID.SubnetPrefix() {
		p.AV.setGlobal(remote.GID)
	}
	if remote.LID == 0 && !p.AV.Global {
		return fail("the remote port has LID 0: no subnet manager has configured it",
			"start opensm, or check the switch's subnet manager")
	}
	p.AV.DLID = remote.LID
	p.AV.StaticRate = staticRate(LinkRate(local.ActiveWidth, local.ActiveSpeed),
		LinkRate(remote.ActiveWidth, remote.ActiveSpeed))
	return p, nil
}

func (a *AddressVector) setGlobal(dgid GID) {
	a.Global, a.DGID, a.HopLimit = true, dgid, defaultHopLimit
}

// staticRate limits a sender that is faster than the other end's link, so that it does not fill the
// last switch's buffers.
func staticRate(local, remote int) Rate {
	if local == 0 || remote == 0 || local <= remote {
		return RateMax
	}
	return rateOf(remote)
}

// matchPKey returns the local index of the first partition that both are in, one of them as a full
// member (IBTA 1.4 vol. 1 §10.9.3).
func matchPKey(local, remote []uint16) (uint16, error) {
	const full = 1 << 15
	if len(local) == 0 && len(remote) == 0 {
		return 0, nil
	}
	limited := false
	for i, l := range local {
		for _, r := range remote {
			switch {
			case l&^full == 0 || l&^full != r&^full:
			case (l|r)&full != 0:
				return uint16(i), nil
			default:
				limited = true
			}
		}
	}
	why := "no partition in common"
	if limited {
		why = "both are only limited members of the partitions they share"
	}
	return 0, fmt.Errorf("%s: local P_Keys %s, remote %s", why, pkeyList(local), pkeyList(remote))
}

func pkeyList(keys []uint16) string {
	var out []string
	for _, k := range keys {
		if s := fmt.Sprintf("%#04x", k); k&0x7fff != 0 && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, " ")
}
