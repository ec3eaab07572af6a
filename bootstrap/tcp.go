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
	"strconv"
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
	addr       string // host:port of rank 0
	secret     []byte // nil: only on loopback, or insecure
	insecure   bool
	munge      *munger  // in the place of a secret, or nil
	addrFrom   string   // where a port is from that nobody named
	listener   *os.File // rank 0: inherited from the launcher, or nil
	life       life
	ended      *endedList
	timeout    time.Duration
	log        *slog.Logger
	protocol   uint16         // of our frames; differs in tests only
	handshake  time.Duration  // of one connection; shorter in tests only
	grace      time.Duration  // for late diallers; longer in tests only
	answered   chan struct{}  // closed when no rank dials any more, which only tests know
	exit       func(code int) // os.Exit, except in tests
}

func (rv *rendezvous) join(ctx context.Context) (backend, error) {
	if rv.size == 1 {
		if rv.listener != nil {
			rv.listener.Close()
		}
		m := newSelf()
		if rv.job != "" {
			m.job = rv.job
		}
		return m, nil
	}
	conf, err := tlsFor(rv.secret)
	if rv.munge != nil {
		conf, err = ephemeral()
	}
	if err != nil {
		return nil, err
	}
	if rv.rank == 0 {
		return joinRoot(ctx, rv, conf)
	}
	return joinPeer(ctx, rv, conf)
}

// trusts allows an address without a secret only on loopback: elsewhere, any process that reaches
// the port could join and obtain the keys to the ranks' memory.
func (rv *rendezvous) trusts(a net.Addr) error {
	if rv.secret != nil || rv.munge != nil || rv.insecure {
		return nil
	}
	if ap, err := netip.ParseAddrPort(a.String()); err == nil && ap.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("rank %d: no secret, and %v is not on loopback: set IBCONDUIT_SECRET_FILE or IBCONDUIT_SECRET "+
		"to the same random value on all ranks (openssl rand -hex 32); IBCONDUIT_INSECURE=1 lets any process join that reaches the port", rv.rank, a)
}

// listen binds rank 0's rendezvous address, never all addresses.
func (rv *rendezvous) listen(ctx context.Context) (net.Listener, error) {
	ln, err := rv.bind(ctx)
	if err != nil {
		if rv.addrFrom != "" {
			return nil, fmt.Errorf("rank 0: listen at %s: %w%s (%s)", rv.addr, err, listenRemedy(err), rv.addrFrom)
		}
		return nil, fmt.Errorf("rank 0: listen at %s: %w%s", rv.addr, err, listenRemedy(err))
	}
	if err := rv.trusts(ln.Addr()); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

func (rv *rendezvous) bind(ctx context.Context) (net.Listener, error) {
	if rv.listener != nil {
		defer rv.listener.Close() // FileListener duplicates it
		return net.FileListener(rv.listener)
	}
	host, port, err := net.SplitHostPort(rv.addr)
	if err != nil {
		return nil, err
	}
	ip, err := bindAddress(ctx, host)
	if err != nil {
		return nil, err
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ip, port))
}

// bindAddress turns rank 0's own name into an address of this host. In a pod
// the name appears in DNS after the process has started, and Debian maps a
// host's own name to 127.0.1.1, where no other host can reach it: for its own
// name rank 0 takes the address that its default route uses.
func bindAddress(ctx context.Context, host string) (string, error) {
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return host, nil
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for _, ip := range ips {
		if !ip.IsLoopback() {
			return ip.String(), nil
		}
	}
	if sameHost(host, hostname()) {
		if ip := routedAddress(); ip != "" {
			return ip, nil
		}
	}
	if len(ips) > 0 {
		return ips[0].String(), nil
	}
	return "", err
}

// sameHost compares host names up to their domain.
func sameHost(a, b string) bool { return firstLabel(a) == firstLabel(b) }

func firstLabel(name string) string {
	for i := range len(name) {
		if name[i] == '.' {
			return name[:i]
		}
	}
	return name
}

// routedAddress asks the kernel which address it would send from; connecting
// a datagram socket sends nothing. 192.0.2.1 is for documents (RFC 5737).
func routedAddress() string {
	c, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return ""
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String()
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

func portAfter(port string) (string, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n == 65535 {
		return "", fmt.Errorf("port %q: need a number from 1 to 65534", port)
	}
	return strconv.FormatUint(n+1, 10), nil
}
