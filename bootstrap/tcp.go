package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"
)

// Times of the rendezvous. None is asserted in a test.
const (
	handshakeTime = 5 * time.Second      // of one connection, up to its hello
	graceTime     = time.Second          // late diallers still get the verdict
	leaveTime     = 2 * time.Second      // for the other side to read what was sent last
	dialFirst     = 5 * time.Millisecond // pause after the first failed dial
	dialLast      = time.Second          // longest pause between dials
	handshakesMax = 64                   // at a time; more wait in the kernel's backlog
	refusedMax    = 64                   // different refusals that are remembered
)

// rendezvous is what a rank must know to meet the others over TCP.
type rendezvous struct {
	rank, size int
	job        string // "" where the launcher gave none
	addr       string // host:port of rank 0; may be "" where there is a socket
	socket     string // path of rank 0's unix socket, or ""
	listenAt   string // where rank 0 listens, if not at addr
	secret     []byte // nil: only on loopback, or insecure
	insecure   bool
	munge      *munger // in the place of a secret, or nil
	addrFrom   string  // where a port is from that nobody named
	// rank 0: inherited from the launcher, or nil
	listener, socketListener *os.File
	life                     life
	ended                    *endedList
	timeout                  time.Duration
	log                      *slog.Logger
	protocol                 uint16         // of our frames; differs in tests only
	handshake                time.Duration  // of one connection; shorter in tests only
	grace                    time.Duration  // for late diallers; longer in tests only
	answered                 chan struct{}  // closed when no rank dials any more, which only tests know
	exit                     func(code int) // os.Exit, except in tests
}

// trusts allows an address without a secret only on loopback: elsewhere, any process that reaches
// the port could join and obtain the keys to the ranks' memory.
func (rv *rendezvous) trusts(a net.Addr) error {
	if rv.secret != nil || rv.munge != nil || rv.insecure {
		return nil
	}
	if a.Network() == "unix" {
		return nil // the directory lets in its owner only
	}
	if ap, err := netip.ParseAddrPort(a.String()); err == nil && ap.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("rank %d: no secret, and %v is not on loopback: set IBCONDUIT_SECRET_FILE or IBCONDUIT_SECRET "+
		"to the same random value on all ranks (openssl rand -hex 32); "+
		"IBCONDUIT_INSECURE=1 lets any process join that reaches the port", rv.rank, a)
}

// refusedBy reports a refusal, as opposed to a connection that merely failed.
func refusedBy(err error) bool { return errors.Is(err, errNotOurs) || errors.Is(err, errNotProven) }

func clientHandshake(ctx context.Context, raw net.Conn, conf *tls.Config) (*tls.Conn, error) {
	c := tls.Client(raw, conf)
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return c, nil
}
