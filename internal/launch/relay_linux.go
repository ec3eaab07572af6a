package launch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ibconduit/conduit/internal/mux"
)

// A rank that is not on the host of rank 0 dials its agent, which opens a stream; this process
// opens one to the agent of rank 0, which dials rank 0. The TLS of package bootstrap goes from end
// to end.

// twoWays is what can be ended in one direction.
type twoWays interface {
	io.ReadWriter
	CloseWrite() error
}

// join copies in both directions until both have ended. before is called ahead of each piece that
// goes to b, and of its end: what a rank's end has caused must not overtake it.
func join(a, b twoWays, before func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyWay(a, b, func() {})
	}()
	copyWay(b, a, before)
	<-done
}

func copyWay(to, from twoWays, before func()) {
	buf := make([]byte, mux.Part)
	for {
		n, err := from.Read(buf)
		before()
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
				if c, ok := from.(*mux.Stream); ok {
					c.Drop()
				}
			}
		}
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// acceptAll takes connections until the listener is closed. A reason that keeps it from taking one
// is logged, once: the rank only sees that it gets no answer.
func acceptAll(ln net.Listener, report func(string), take func(net.Conn)) {
	for said := false; ; {
		c, err := ln.Accept()
		switch {
		case err == nil:
			take(c)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case !said:
			report(fmt.Sprintf("a rank that wants to reach rank 0 has to wait: %v%s", err, limits(err)))
			said = true
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// relayRank joins a rank's connection with a stream.
func relayRank(rank net.Conn, s *mux.Stream, before func()) {
	defer rank.Close()
	w, ok := rank.(twoWays) // TCP and unix sockets are
	if !ok {
		_ = s.CloseWrite()
		return
	}
	join(w, s, before)
}

// relay joins a stream of another host with one of rank 0's.
func (h *hosts) relay(s *mux.Stream) {
	go func() {
		select {
		case <-h.rooted:
			join(s, h.root.ch.Open(firstRelay+h.relays.Add(1)), func() {})
		case <-s.Done():
		}
	}()
}
