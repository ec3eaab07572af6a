package ibv

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/verbs"
)

// address is what a rank publishes; the package comment has the wire format.
type address struct {
	end        verbs.PathEnd
	readAtomic uint8
	lanes      int
	eager      int // Config.Eager
	psn        uint32
	base, size uint64
	rkey       uint32
}

const (
	addrVersion = 2
	addrFixed   = 56
	psnMask     = 1<<24 - 1
	flagGRH     = 1
	maxPKeys    = 1 << 12     // published; no port is known to have more
	maxLanes    = laneBit - 1 // what datagrams can name
	maxEager    = 1<<16 - 1   // what the field holds
)

func (a *address) encode() []byte {
	b := make([]byte, addrFixed, addrFixed+2*len(a.end.PKeys))
	b[0], b[1], b[2] = addrVersion, byte(a.end.LinkLayer), byte(a.end.GIDType)
	b[3], b[4], b[5] = byte(a.end.ActiveMTU), a.end.ActiveWidth, a.end.ActiveSpeed
	if a.end.GRHRequired {
		b[6] = flagGRH
	}
	b[7] = a.readAtomic
	le := binary.LittleEndian
	le.PutUint16(b[8:], a.end.LID)
	le.PutUint16(b[10:], uint16(a.lanes))
	le.PutUint32(b[12:], a.psn)
	copy(b[16:32], a.end.GID[:])
	le.PutUint64(b[32:], a.base)
	le.PutUint64(b[40:], a.size)
	le.PutUint32(b[48:], a.rkey)
	keys := a.end.PKeys
	for len(keys) > 0 && keys[len(keys)-1] == 0 { // empty places at the end say nothing
		keys = keys[:len(keys)-1]
	}
	keys = keys[:min(len(keys), maxPKeys)]
	le.PutUint16(b[52:], uint16(a.eager))
	le.PutUint16(b[54:], uint16(len(keys)))
	for _, k := range keys {
		b = le.AppendUint16(b, k)
	}
	return b
}

func decodeAddress(b []byte) (a address, err error) {
	switch {
	case len(b) == 0:
		return a, errors.New("empty address")
	case b[0] != addrVersion:
		return a, fmt.Errorf("address of version %d, this is version %d: mixed binaries", b[0], addrVersion)
	case len(b) < addrFixed:
		return a, fmt.Errorf("address of %d bytes, want at least %d", len(b), addrFixed)
	}
	le := binary.LittleEndian
	keys := int(le.Uint16(b[54:]))
	if keys > maxPKeys || len(b) != addrFixed+2*keys {
		return a, fmt.Errorf("address of %d bytes with %d P_Keys", len(b), keys)
	}
	a = address{
		end: verbs.PathEnd{
			LinkLayer: verbs.LinkLayer(b[1]), GIDType: verbs.GIDType(b[2]),
			ActiveMTU: verbs.MTU(b[3]), ActiveWidth: b[4], ActiveSpeed: b[5],
			GRHRequired: b[6]&flagGRH != 0,
			LID:         le.Uint16(b[8:]), GID: verbs.GID(b[16:32]),
		},
		readAtomic: b[7],
		lanes:      int(le.Uint16(b[10:])),
		eager:      int(le.Uint16(b[52:])),
		psn:        le.Uint32(b[12:]),
		base:       le.Uint64(b[32:]),
		size:       le.Uint64(b[40:]),
		rkey:       le.Uint32(b[48:]),
	}
	for i := range keys {
		a.end.PKeys = append(a.end.PKeys, le.Uint16(b[addrFixed+2*i:]))
	}
	switch {
	case a.psn > psnMask:
		return a, fmt.Errorf("packet sequence number %#x exceeds 24 bits", a.psn)
	case a.base+a.size < a.base:
		return a, fmt.Errorf("segment of %d bytes at %#x wraps around", a.size, a.base)
	case a.lanes == 0 || a.lanes > maxLanes:
		return a, fmt.Errorf("address with %d lanes", a.lanes)
	}
	return a, nil
}

// ranked orders device names: hardware before software, then by name.
func ranked(infos []verbs.DeviceInfo) []string {
	names := make([]string, len(infos))
	for i, d := range infos {
		names[i] = d.Name
	}
	class := func(name string) int {
		if Software(name) {
			return 1
		}
		return 0
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(class(a), class(b)), cmp.Compare(a, b))
	})
	return names
}

// Software reports whether a device name is one that the drivers of software
// RDMA give by convention: rxe (Soft-RoCE), siw (Soft-iWARP). Its figures say nothing about
// hardware.
func Software(device string) bool {
	return strings.HasPrefix(device, "rxe") || strings.HasPrefix(device, "siw")
}
