package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of packets between endpoints, after the packets of joining.
const (
	kindRequest    = 4 + iota // connect with me: slots, slot size; may bring the region
	kindReply                 // ready: likewise
	kindClose                 // nothing is in flight: messages sent, messages taken
	kindClosed                // nothing is: closed
	kindNotIdle               // something is: it stays open
	kindNoEndpoint            // the endpoint was closed
	kindWake                  // a message came while you slept
	kindNote                  // a note
)

const (
	packetLen   = 20
	noteHead    = 8
	sendTimeout = time.Second // of packets that must get through, when the peer reads none
)

// packet is what endpoints send over the socket of the pair; doc.go has the format.
type packet struct {
	kind     byte
	endpoint uint32
	epoch    uint32
	a, b     uint32
}

func (k packet) encode() [packetLen]byte {
	var b [packetLen]byte
	b[0] = k.kind
	binary.LittleEndian.PutUint32(b[4:], k.endpoint)
	binary.LittleEndian.PutUint32(b[8:], k.epoch)
	binary.LittleEndian.PutUint32(b[12:], k.a)
	binary.LittleEndian.PutUint32(b[16:], k.b)
	return b
}

// decodePacket reads a packet other than a note. It may be anything.
func decodePacket(b []byte) (k packet, err error) {
	if len(b) != packetLen || b[0] < kindRequest || b[0] > kindWake || b[1]|b[2]|b[3] != 0 {
		return k, fmt.Errorf("shm: it sent %d bytes that mean nothing", len(b))
	}
	le := binary.LittleEndian
	k = packet{kind: b[0], endpoint: le.Uint32(b[4:]), epoch: le.Uint32(b[8:]), a: le.Uint32(b[12:]), b: le.Uint32(b[16:])}
	if k.endpoint >= maxEndpoints {
		return k, fmt.Errorf("shm: it wants endpoint %d (endpoints are 0 to %d)", k.endpoint, maxEndpoints-1)
	}
	return k, nil
}

// send sends a packet that must get through, perhaps with a descriptor.
func (p *peer) send(k packet, fd int) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	b := k.encode()
	// A peer that lives reads at once, so the time-out is for one that was stopped.
	if err := p.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	defer p.conn.SetWriteDeadline(time.Time{})
	_, _, err := p.conn.WriteMsgUnix(b[:], rights, nil)
	return err
}

// handlePacket does what a packet of a peer requests.
func (n *Network) handlePacket(from int, b []byte, fds []int) error {
	defer closeAll(fds)
	if len(b) >= noteHead && b[0] == kindNote {
		return n.noteArrived(from, b, fds)
	}
	k, err := decodePacket(b)
	if err != nil {
		return err
	}
	if len(fds) > 0 && (len(fds) > 1 || k.kind > kindReply) {
		return fmt.Errorf("shm: it sent %d descriptors that are not wanted", len(fds))
	}
	if k.kind <= kindReply {
		return n.handleHandshake(from, k, fds)
	}
	ep := n.endpointOf(k.endpoint)
	if ep == nil {
		return errors.New("shm: a packet about a connection with an endpoint that was never opened")
	}
	if !ep.alive.Load() && k.kind == kindClose { // no message can get lost here any more
		_ = n.peers[from].send(packet{kind: kindClosed, endpoint: k.endpoint, epoch: k.epoch}, -1)
		return nil
	}
	l := ep.links[from].Load()
	switch {
	case k.kind == kindWake:
		ep.wakeIfAsleep()
	case l == nil:
	case k.kind == kindNoEndpoint:
		l.refused(k)
	default:
		l.closing(k)
	}
	return nil
}

// handleHandshake gives a REQUEST or REPLY to its endpoint, or keeps it until that is opened.
func (n *Network) handleHandshake(from int, k packet, fds []int) error {
	if k.a < 1 || k.a > maxSlots || k.b < 1 || k.b > maxMessage {
		return fmt.Errorf("shm: its endpoint has %d slots of %d bytes", k.a, k.b)
	}
	h := handshake{from: from, packet: k}
	if len(fds) == 1 {
		var err error
		if h.region, err = mapRegion(fds[0], int(k.a), int(k.b)); err != nil {
			return err
		}
	}
	ep, err := n.endpointOrLater(h)
	if err != nil {
		h.drop()
		return err
	}
	if ep != nil {
		ep.link(from).connected(h)
	}
	return nil
}

// endpointOrLater is the endpoint that a handshake is for. If that is not open yet the handshake
// is kept.
func (n *Network) endpointOrLater(h handshake) (*endpoint, error) {
	n.endpointMu.Lock()
	defer n.endpointMu.Unlock()
	if ep := n.endpoints[h.endpoint]; ep != nil {
		return ep, nil
	}
	if h.kind != kindRequest {
		return nil, fmt.Errorf("shm: a reply to endpoint %d, which sent no request", h.endpoint)
	}
	for _, other := range n.early[h.endpoint] {
		if other.from == h.from {
			return nil, fmt.Errorf("shm: a second request to endpoint %d, which is not open", h.endpoint)
		}
	}
	n.early[h.endpoint] = append(n.early[h.endpoint], h)
	return nil, nil
}

// endpointOf is the endpoint of a number, open or closed.
func (n *Network) endpointOf(i uint32) *endpoint {
	n.endpointMu.Lock()
	defer n.endpointMu.Unlock()
	return n.endpoints[i]
}

// protocolError ends a peer that breaks the rules. It may be called with any lock but the
// Network's.
func (n *Network) protocolError(from int, err error) {
	if from == n.cfg.Rank || n.closing.Load() {
		return
	}
	if n.peers[from].reported.CompareAndSwap(false, true) {
		n.watchers.Go(func() { n.reportDown(from, err) })
	}
}

// readPacket reads the next packet of a peer, with the descriptors that it brings.
func readPacket(c *net.UnixConn, b, oob []byte) (data []byte, fds []int, err error) {
	n, oobn, flags, _, err := c.ReadMsgUnix(b, oob) // descriptors arrive close-on-exec
	if err != nil {
		return nil, nil, err
	}
	if oobn > 0 {
		fds = descriptors(oob[:oobn])
	}
	if flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		closeAll(fds)
		return nil, nil, errors.New("shm: a packet of the peer is cut off; raise the limit of open files (ulimit -n) if it " +
			"brought a descriptor")
	}
	return b[:n], fds, nil
}
