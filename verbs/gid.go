package verbs

import (
	"fmt"
	"strings"
	"syscall"
)

// AutoGID leaves the choice to ChooseGID.
const AutoGID = -1

// GIDChoice is the GID to use on a port, and why.
type GIDChoice struct {
	GIDEntry
	Reasons []string // one line per entry that was considered, the chosen one first
}

// Explain returns the reasons as lines.
func (c GIDChoice) Explain() string { return strings.Join(c.Reasons, "\n") }

// gidRank orders the GIDs of an Ethernet port, best first.
type gidRank int

const (
	rankV2IPv4 gidRank = iota
	rankV2IPv6
	rankV2IPv4Local
	rankV2IPv6Local
	rankV1
	rankUnusable
)

var rankText = [...]string{
	rankV2IPv4:      "RoCEv2 over IPv4",
	rankV2IPv6:      "RoCEv2 over global IPv6",
	rankV2IPv4Local: "RoCEv2 over link-local IPv4: does not leave the link",
	rankV2IPv6Local: "RoCEv2 over link-local IPv6: does not leave the link",
	rankV1:          "RoCEv1: not routable",
}

func rankGID(e GIDEntry) (gidRank, string) {
	a := e.GID.Addr()
	switch {
	case e.GID.IsZero():
		return rankUnusable, "empty"
	case e.Type == GIDTypeRoCEv1:
		return rankV1, rankText[rankV1]
	case e.Type != GIDTypeRoCEv2:
		return rankUnusable, fmt.Sprintf("%s GID on an Ethernet port", e.Type)
	case a.IsMulticast() || a.IsLoopback():
		return rankUnusable, "multicast or loopback address"
	}
	r := rankV2IPv4
	switch {
	case a.Is4() && a.IsLinkLocalUnicast():
		r = rankV2IPv4Local
	case !a.Is4() && a.IsLinkLocalUnicast():
		r = rankV2IPv6Local
	case !a.Is4():
		r = rankV2IPv6
	}
	return r, rankText[r]
}

// ChooseGID chooses the GID of a port: on Ethernet RoCEv2 over IPv4, then over global IPv6, then
// over link-local addresses, then RoCEv1, of equals the lowest index; on InfiniBand index 0, the
// one that the subnet manager knows. An override other than AutoGID is checked, not ranked.
func ChooseGID(port PortAttr, gids []GIDEntry, override int) (GIDChoice, error) {
	fail := func(detail, remedy string) (GIDChoice, error) {
		return GIDChoice{}, &Error{Op: "choose GID", Object: fmt.Sprintf("port %d", port.Port), Errno: syscall.EADDRNOTAVAIL,
			Err: ErrNoGID, Detail: detail, Remedy: remedy}
	}
	if port.State != PortActive {
		return fail(fmt.Sprintf("the port is %s", port.State), portRemedy(port))
	}
	if port.LinkLayer == LinkInfiniBand && port.LID == 0 && !port.GRHRequired {
		return fail("the port has LID 0: no subnet manager has configured it",
			"start opensm, or check the switch's subnet manager")
	}
	if override != AutoGID {
		return checkGID(port, gids, override, fail)
	}
	if port.LinkLayer == LinkInfiniBand {
		return chooseIB(port, gids, fail)
	}
	best, bestRank := -1, rankUnusable
	for i, e := range gids {
		if r, _ := rankGID(e); r < bestRank {
			best, bestRank = i, r
		}
	}
	if best < 0 {
		return fail(fmt.Sprintf("none of the %d entries of its GID table is usable%s", len(gids), rejected(gids, -1)),
			"give the interface "+netdevs(gids)+"an IP address and bring it up: ip addr add, ip link set up")
	}
	return GIDChoice{GIDEntry: gids[best], Reasons: append([]string{fmt.Sprintf("GID %d %s %s: chosen: %s",
		gids[best].Index, gids[best].GID, gids[best].Type, rankText[bestRank])}, reasons(gids, best)...)}, nil
}

func chooseIB(port PortAttr, gids []GIDEntry, fail func(string, string) (GIDChoice, error)) (GIDChoice, error) {
	for i, e := range gids {
		if e.Index != 0 || e.GID.IsZero() {
			continue
		}
		how := fmt.Sprintf("LID %#x, GRH only between subnets", port.LID)
		if port.GRHRequired {
			how = "with a GRH, which the port requires"
		}
		c := GIDChoice{GIDEntry: e, Reasons: []string{fmt.Sprintf("GID 0 %s: chosen: the port's own, %s", e.GID, how)}}
		for j, o := range gids {
			if j != i {
				c.Reasons = append(c.Reasons, fmt.Sprintf("GID %d %s: not chosen: an alias of the port", o.Index, o.GID))
			}
		}
		return c, nil
	}
	return fail("GID 0 is empty", "check the subnet manager: it configures the port's GID")
}

func checkGID(port PortAttr, gids []GIDEntry, index int,
	fail func(string, string) (GIDChoice, error)) (GIDChoice, error) {
	for _, e := range gids {
		if e.Index != index {
			continue
		}
		if port.LinkLayer == LinkEthernet {
			if r, why := rankGID(e); r == rankUnusable {
				return fail(fmt.Sprintf("GID %d %s was asked for: %s", index, e.GID, why), "choose one of"+usable(gids))
			}
		} else if e.GID.IsZero() {
			return fail(fmt.Sprintf("GID %d was asked for: empty", index), "choose one of"+usable(gids))
		}
		return GIDChoice{GIDEntry: e, Reasons: []string{fmt.Sprintf("GID %d %s %s: asked for", e.Index, e.GID, e.Type)}}, nil
	}
	return fail(fmt.Sprintf("GID %d was asked for, but that place of the table is empty", index),
		"choose one of"+usable(gids))
}

// reasons says of each entry but the chosen why it was not taken.
func reasons(gids []GIDEntry, chosen int) []string {
	var out []string
	for i, e := range gids {
		if i == chosen {
			continue
		}
		r, why := rankGID(e)
		if chosen >= 0 {
			if cr, _ := rankGID(gids[chosen]); r == cr {
				why += ", as good but later in the table"
			}
		}
		out = append(out, fmt.Sprintf("GID %d %s %s: not chosen: %s", e.Index, e.GID, e.Type, why))
	}
	return out
}

func rejected(gids []GIDEntry, chosen int) string {
	rs := reasons(gids, chosen)
	if len(rs) == 0 {
		return ""
	}
	return ": " + strings.Join(rs, "; ")
}

func usable(gids []GIDEntry) string {
	var b strings.Builder
	for _, e := range gids {
		if !e.GID.IsZero() {
			fmt.Fprintf(&b, " %d (%s %s)", e.Index, e.GID, e.Type)
		}
	}
	if b.Len() == 0 {
		return " none: the table is empty"
	}
	return b.String()
}

func netdevs(gids []GIDEntry) string {
	for _, e := range gids {
		if e.Netdev != "" {
			return e.Netdev + " "
		}
	}
	return ""
}

func portRemedy(p PortAttr) string {
	switch {
	case p.LinkLayer == LinkEthernet:
		return "bring the interface under it up: ip link set DEV up, and check the cable"
	case p.State == PortInit || p.State == PortArmed:
		return "no subnet manager has activated it: start opensm, or check the switch's subnet manager"
	}
	return "check the cable, and ibstat"
}
