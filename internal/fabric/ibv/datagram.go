package ibv

import (
	"encoding/binary"
	"fmt"

	"github.com/ibconduit/conduit/verbs"
)

// datagram is what endpoints, and connectors, send one another outside of connections; the package
// comment has the wire format.
type datagram struct {
	kind     datagramKind
	endpoint uint16 // or laneBit and a lane
	from, to uint32
	epoch    uint32

	qpn, psn, slotSize uint32 // request, reply; refusal: slotSize
	errno              uint32 // refusal of a lane: why the peer has no queue pair
	attempt            uint32 // close, closed, stay
	sent, arrived      uint32 // close: messages of this connection

	note []byte
}

type datagramKind uint8

const (
	dgNote    datagramKind = iota + 1
	dgRequest              // of a connection
	dgReply                // accepts it: the queue pair is ready
	dgReady                // the reply came: so is the other
	dgRefusal              // the two endpoints do not fit
	dgClose                // nothing is in flight: let it be closed
	dgClosed               // agrees: it is closed
	dgStay                 // does not agree
	dgEnd
)

// laneBit in datagram.endpoint: the rest is the number of a lane.
const laneBit = 1 << 15

const (
	datagramVersion = 1
	datagramHeader  = 16
	datagramFixed   = 32                           // of all kinds but notes
	datagramMax     = 256                          // the smallest MTU of all
	maxNote         = datagramMax - datagramHeader // bytes
	// a received datagram begins with room for a GRH (IBTA 1.4 vol. 1 §11.4.1.2)
	grhBytes = 40
)

// encode writes the datagram to b, which has datagramMax bytes, and returns its length.
func (d *datagram) encode(b []byte) int {
	le := binary.LittleEndian
	b[0], b[1] = datagramVersion, byte(d.kind)
	le.PutUint16(b[2:], d.endpoint)
	le.PutUint32(b[4:], d.from)
	le.PutUint32(b[8:], d.to)
	le.PutUint32(b[12:], d.epoch)
	if d.kind == dgNote {
		return datagramHeader + copy(b[datagramHeader:datagramMax], d.note)
	}
	clear(b[datagramHeader:datagramFixed])
	switch d.kind {
	case dgRequest, dgReply:
		le.PutUint32(b[16:], d.qpn)
		le.PutUint32(b[20:], d.psn)
		le.PutUint32(b[24:], d.slotSize)
	case dgRefusal:
		le.PutUint32(b[20:], d.errno)
		le.PutUint32(b[24:], d.slotSize)
	case dgClose, dgClosed, dgStay:
		le.PutUint32(b[16:], d.attempt)
		le.PutUint32(b[20:], d.sent)
		le.PutUint32(b[24:], d.arrived)
	}
	return datagramFixed
}

// decodeDatagram reads one from b, which it keeps for a note's bytes.
func decodeDatagram(b []byte) (d datagram, err error) {
	switch {
	case len(b) < datagramHeader || len(b) > datagramMax:
		return d, fmt.Errorf("datagram of %d bytes", len(b))
	case b[0] != datagramVersion:
		return d, fmt.Errorf("datagram of version %d, this is version %d: mixed binaries", b[0], datagramVersion)
	}
	le := binary.LittleEndian
	d = datagram{kind: datagramKind(b[1]), endpoint: le.Uint16(b[2:]), from: le.Uint32(b[4:]), to: le.Uint32(b[8:]),
		epoch: le.Uint32(b[12:])}
	if d.kind == dgNote {
		d.note = b[datagramHeader:len(b):len(b)]
		return d, nil
	}
	switch {
	case d.kind == 0 || d.kind >= dgEnd:
		return d, fmt.Errorf("datagram of kind %d", d.kind)
	case len(b) != datagramFixed:
		return d, fmt.Errorf("datagram of kind %d with %d bytes", d.kind, len(b))
	case d.epoch == 0:
		return d, fmt.Errorf("datagram of kind %d without an epoch", d.kind)
	}
	switch d.kind {
	case dgRequest, dgReply:
		d.qpn, d.psn, d.slotSize = le.Uint32(b[16:]), le.Uint32(b[20:]), le.Uint32(b[24:])
		if d.qpn == 0 || d.qpn > psnMask || d.psn > psnMask {
			return d, fmt.Errorf("datagram with queue pair %#x and packet sequence number %#x", d.qpn, d.psn)
		}
	case dgRefusal:
		d.errno, d.slotSize = le.Uint32(b[20:]), le.Uint32(b[24:])
	case dgClose, dgClosed, dgStay:
		d.attempt, d.sent, d.arrived = le.Uint32(b[16:]), le.Uint32(b[20:]), le.Uint32(b[24:])
	}
	return d, nil
}

// sentFrom reports whether a datagram came from a rank's device port: grh are the first bytes of
// its buffer, lid and withGRH what its completion says. On RoCEv2 over IPv4 the IP header fills the
// last 20 bytes of the GRH's room (RoCEv2 annex A17.4.5.2), else it is a GRH or an IPv6 header,
// which agree about the source.
func sentFrom(peer *verbs.PathEnd, grh []byte, lid uint16, withGRH bool) bool {
	if peer.LinkLayer != verbs.LinkEthernet {
		if withGRH {
			return verbs.GID(grh[8:24]) == peer.GID
		}
		return lid == peer.LID
	}
	if a := peer.GID.Addr(); peer.GIDType == verbs.GIDTypeRoCEv2 && a.Is4() {
		return grh[20]>>4 == 4 && [4]byte(grh[32:36]) == a.As4()
	}
	return verbs.GID(grh[8:24]) == peer.GID
}
