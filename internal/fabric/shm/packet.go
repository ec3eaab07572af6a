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

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// sendLeave announces that the end of the connection is no death. The packet fits unless the peer
// has stopped to read.
func sendLeave(c *net.UnixConn) {
	c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte{kindLeave}) // a peer that is dead already needs none
}

// descriptors takes all descriptors out of a control message.
func descriptors(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}
