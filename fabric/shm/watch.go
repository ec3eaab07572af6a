package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// watch waits for the end of a peer and tells how it came. It ends with the
// connection.
func (n *Network) watch(rank int) {
	c := n.peers[rank].conn
	c.SetDeadline(time.Time{})
	var b [2]byte
	got, err := c.Read(b[:])
	switch {
	case n.closing.Load():
		return // nothing that happens now is news
	case err == nil && got == 1 && b[0] == kindGoodbye:
		return
	case err == nil:
		err = fmt.Errorf("shm: it sent %d bytes that are no goodbye", got)
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("shm: the process ended without a goodbye: %w", err)
	default:
		err = fmt.Errorf("shm: its connection broke: %w", err)
	}
	if n.markDown(rank, err) && n.cfg.OnDown != nil {
		n.cfg.OnDown(rank, err)
	}
}

// sayGoodbye tells a peer that the end of the connection is no death. The
// packet always fits: nothing else is ever sent after the greeting.
func sayGoodbye(c *net.UnixConn) {
	c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte{kindGoodbye}) // a peer that is dead already needs none
}
