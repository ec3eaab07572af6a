package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of packets between ports, after those of joining.
const (
	kindAsk    = 4 + iota // connect with me: slots, slot size; may bring the port's memory
	kindAnswer            // I will: likewise
	kindClose             // nothing is in flight: messages sent, messages taken
	kindYes               // nothing is: closed
	kindNo                // something is: it stays open
	kindGone              // the port was closed
	kindWake              // a message came while you slept
	kindNote              // a note
)

const (
	packetLen   = 20
	noteHead    = 8
	sendTimeout = time.Second // of packets that must get through, when the peer reads none
)

// packet is what ports tell each other over the socket of the pair; doc.go has the format.
type packet struct {
	kind  byte
	port  uint32
	epoch uint32
	a, b  uint32
}

func (k packet) encode() [packetLen]byte {
	var b [packetLen]byte
	b[0] = k.kind
	binary.LittleEndian.PutUint32(b[4:], k.port)
	binary.LittleEndian.PutUint32(b[8:], k.epoch)
	binary.LittleEndian.PutUint32(b[12:], k.a)
	binary.LittleEndian.PutUint32(b[16:], k.b)
	return b
}

// decodePacket reads a packet other than a note. It may be anything.
func decodePacket(b []byte) (k packet, err error) {
	if len(b) != packetLen || b[0] < kindAsk || b[0] > kindWake || b[1]|b[2]|b[3] != 0 {
		return k, fmt.Errorf("shm: it sent %d bytes that mean nothing", len(b))
	}
	le := binary.LittleEndian
	k = packet{kind: b[0], port: le.Uint32(b[4:]), epoch: le.Uint32(b[8:]), a: le.Uint32(b[12:]), b: le.Uint32(b[16:])}
	if k.port >= maxPorts {
		return k, fmt.Errorf("shm: it wants port %d (ports are 0 to %d)", k.port, maxPorts-1)
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

// sendWake wakes a peer. It does not wait: where there is no room, there is enough to wake by.
func (p *port) sendWake(peer int) {
	_ = p.n.peers[peer].raw.Write(p.sendWakeTo)
}

// sendNote sends a note if there is room.
func (p *peer) sendNote(port int, data []byte) (sent bool) {
	var b [noteHead + maxNote]byte
	b[0] = kindNote
	binary.LittleEndian.PutUint32(b[4:], uint32(port))
	n := noteHead + copy(b[noteHead:], data)
	err := p.raw.Write(func(fd uintptr) bool {
		sent = unix.Send(int(fd), b[:n], unix.MSG_DONTWAIT) == nil
		return true
	})
	return sent && err == nil
}

// obey does what a packet of a peer says.
func (n *Network) obey(from int, b []byte, fds []int) error {
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if len(b) >= noteHead && b[0] == kindNote {
		return n.note(from, b, fds)
	}
	k, err := decodePacket(b)
	if err != nil {
		return err
	}
	if len(fds) > 0 && (len(fds) > 1 || k.kind > kindAnswer) {
		return fmt.Errorf("shm: it sent %d descriptors that nobody wants", len(fds))
	}
	if k.kind <= kindAnswer {
		return n.asked(from, k, fds)
	}
	p := n.portOf(k.port)
	switch {
	case p == nil:
		return errors.New("shm: it speaks about a connection with a port that was never opened")
	case k.kind == kindWake:
		p.nudge()
	case k.kind == kindGone:
		p.goneAway(from, k)
	default:
		p.closing(from, k)
	}
	return nil
}

// asked gives an ASK or ANSWER to its port, or keeps it until the port is opened.
func (n *Network) asked(from int, k packet, fds []int) error {
	if k.a < 1 || k.a > maxSlots || k.b < 1 || k.b > maxMessage {
		return fmt.Errorf("shm: its port has %d slots of %d bytes", k.a, k.b)
	}
	a := ask{from: from, packet: k}
	if len(fds) == 1 {
		var err error
		if a.far, err = openMailbox(fds[0], int(k.a), int(k.b)); err != nil {
			return err
		}
	}
	p, err := n.portOrLater(a)
	if err != nil {
		a.drop()
		return err
	}
	if p != nil {
		p.asked(a)
	}
	return nil
}

// portOrLater is the port that an ask is for. If that is not open yet the ask is kept.
func (n *Network) portOrLater(a ask) (*port, error) {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	if p := n.ports[a.port]; p != nil {
		return p, nil
	}
	if a.kind != kindAsk {
		return nil, fmt.Errorf("shm: it answers for port %d, which never asked", a.port)
	}
	for _, b := range n.asks[a.port] {
		if b.from == a.from {
			return nil, fmt.Errorf("shm: it asks for port %d again, which is not open", a.port)
		}
	}
	n.asks[a.port] = append(n.asks[a.port], a)
	return nil, nil
}

// portOf is the port of a number, open or closed.
func (n *Network) portOf(i uint32) *port {
	n.portMu.Lock()
	defer n.portMu.Unlock()
	return n.ports[i]
}

// note gives a note to its port. Those to ports that are not open are lost.
func (n *Network) note(from int, b []byte, fds []int) error {
	port := binary.LittleEndian.Uint32(b[4:])
	if len(fds) > 0 || len(b) > noteHead+maxNote || b[1]|b[2]|b[3] != 0 || port >= maxPorts {
		return fmt.Errorf("shm: malformed note of %d bytes to port %d", len(b)-noteHead, port)
	}
	if p := n.portOf(port); p != nil {
		p.noteArrives(from, b[noteHead:])
	}
	return nil
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
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, nil, errors.New("shm: a packet of the peer is cut off; raise the limit of open files (ulimit -n) if it brought a descriptor")
	}
	return b[:n], fds, nil
}
