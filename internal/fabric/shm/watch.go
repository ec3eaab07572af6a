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
