package ibv

import (
	"slices"

	"github.com/ibconduit/conduit/verbs"
)

// remote is what a rank keeps of the address of another, once for all lanes and endpoints: 64
// bytes, since there are as many as ranks in the job.
type remote struct {
	gid        verbs.GID
	base, size uint64    // of the segment
	pkeys      *[]uint16 // which ranks with equal ones share
	rkey       uint32    // of the segment
	qkey       uint32    // of its datagrams
	listener   uint32    // queue pair of its connector; 0: there is none
	lid        uint16
	flags      uint8
	readAtomic uint8
	link       verbs.LinkLayer
	gidType    uint8
	mtu        verbs.MTU
	width      uint8
	speed      uint8
}

const flagServed = 1 << 7 // of remote.flags: this network reaches the rank

func (p *remote) served() bool { return p.flags&flagServed != 0 }

// end is the rank's end of a path.
func (p *remote) end() verbs.PathEnd {
	return verbs.PathEnd{LinkLayer: p.link, GIDType: verbs.GIDType(p.gidType), ActiveMTU: p.mtu, ActiveWidth: p.width,
		ActiveSpeed: p.speed,
		GRHRequired: p.flags&flagGRH != 0, LID: p.lid, GID: p.gid, PKeys: *p.pkeys}
}

// newRemotes keeps the addresses of all ranks. One that this network does not serve has none.
func newRemotes(addrs []address) []remote {
	all := make([]remote, len(addrs))
	var keys []*[]uint16
	for r := range addrs {
		a := &addrs[r]
		if a.lanes == 0 {
			continue
		}
		at := slices.IndexFunc(keys, func(k *[]uint16) bool { return slices.Equal(*k, a.end.PKeys) })
		if at < 0 {
			at = len(keys)
			own := slices.Clone(a.end.PKeys) // a pointer into addrs would keep all of them
			keys = append(keys, &own)
		}
		all[r] = remote{gid: a.end.GID, base: a.base, size: a.size, pkeys: keys[at], rkey: a.rkey,
			lid: a.end.LID, flags: flagServed,
			readAtomic: a.readAtomic, link: a.end.LinkLayer, gidType: uint8(a.end.GIDType), mtu: a.end.ActiveMTU,
			width: a.end.ActiveWidth, speed: a.end.ActiveSpeed}
		if a.end.GRHRequired {
			all[r].flags |= flagGRH
		}
	}
	return all
}
