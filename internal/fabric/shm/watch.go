package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// watch handles the packets of a peer, waits for its end and reports how it came. It ends
// with the connection.
func (n *Network) watch(rank int) {
	p := &n.peers[rank]
	p.conn.SetDeadline(time.Time{})
	b, oob := make([]byte, noteHead+maxNote+1), make([]byte, unix.CmsgSpace(4))
	reset := false
	var broken *net.OpError
	for {
		data, fds, err := readPacket(p.conn, b, oob)
		switch {
		case n.closing.Load():
			closeAll(fds)
			return // what happens now is of no interest
		case err == nil && len(data) == 1 && data[0] == kindLeave && len(fds) == 0:
			p.gone.Store(true)
			n.eachEndpoint(func(ep *endpoint) { ep.peerLeft(rank) })
			if n.cfg.OnLeft != nil {
				n.cfg.OnLeft(rank)
			}
			return
		case err == nil && len(data) > 0:
			err = n.handlePacket(rank, data, fds)
		case errors.Is(err, io.EOF) || err == nil: // an empty packet is the end, too (recv(2))
			closeAll(fds)
			p.gone.Store(true)
			n.reportDown(rank, fmt.Errorf("shm: the process ended without leaving: %w", io.EOF))
			n.eachEndpoint((*endpoint).wakeIfAsleep) // it may have been down before, and now its cells come back
			return
		case errors.Is(err, unix.ECONNRESET) && !reset:
			// It closed the connection without having read all packets. What it sent before
			// is still to be read, perhaps that it leaves: the kernel reports the error first.
			reset = true
			continue
		case errors.As(err, &broken):
			p.gone.Store(errors.Is(err, unix.ECONNRESET))
			n.reportDown(rank, fmt.Errorf("shm: its connection broke: %w", err))
			return
		}
		if err != nil { // it goes on reading: the end of the process is still to be learnt
			n.reportDown(rank, err)
		}
	}
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
