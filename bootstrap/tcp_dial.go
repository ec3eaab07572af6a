package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// stuckTime is how long a rank tries where there is no way to rank 0, and rank 0 where its port is
// taken, or its name unknown: a network may come up late, and an earlier job end.
const stuckTime = 10 * time.Second

// dial connects to rank 0: over the launcher's socket, which needs no network, or else over TCP.
func (rv *rendezvous) dial(ctx context.Context) (net.Conn, error) {
	var failed error
	if rv.socket != "" {
		c, err := new(net.Dialer).DialContext(ctx, "unix", rv.socket)
		if err == nil || errors.Is(err, syscall.EAGAIN) { // a full backlog (connect(2)): there soon is room
			return c, err
		}
		failed = err
	}
	if rv.addr == "" {
		return nil, failed
	}
	if err := rv.trustsName(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errUntrusted, err)
	}
	c, err := rv.dialTCP(ctx)
	if err != nil {
		if failed != nil {
			err = fmt.Errorf("%w; %v", err, failed) // what more attempts may mend is the way over TCP
		}
		return nil, err
	}
	if err := rv.trusts(c.RemoteAddr()); err != nil {
		c.Close()
		return nil, fmt.Errorf("%w: %w", errUntrusted, err)
	}
	return c, nil
}

// dialTCP needs a resolver for its own host's name, and for localhost, as little as rank 0 does.
func (rv *rendezvous) dialTCP(ctx context.Context) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", rv.addr)
	host, port, _ := net.SplitHostPort(rv.addr)
	if !errors.As(err, new(*net.DNSError)) || !rv.ownName() && !strings.EqualFold(host, "localhost") {
		return c, err
	}
	ips, _ := bindAddresses(ctx, host)
	for _, ip := range ips {
		if c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(ip, port)); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// where rank 0 is, for messages.
func (rv *rendezvous) where() string {
	if rv.addr != "" {
		return rv.addr
	}
	return rv.socket
}

// trustsName says before any connection that a secret is missing, where the address can lead to
// no loopback: rank 0 may never come, and this is why.
func (rv *rendezvous) trustsName(ctx context.Context) error {
	if rv.secret != nil || rv.munge != nil || rv.insecure {
		return nil
	}
	host, _, err := net.SplitHostPort(rv.addr)
	if err != nil {
		return err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil // it may appear later
	}
	for _, ip := range ips {
		if ip.Unmap().IsLoopback() {
			return nil
		}
	}
	return rv.trusts(net.TCPAddrFromAddrPort(netip.AddrPortFrom(ips[0], 0)))
}

// passing: whether more attempts may succeed. Most errors pass: rank 0, its name or a network may
// come later.
func (rv *rendezvous) passing(err error, tried time.Duration) bool {
	for _, never := range []error{syscall.EACCES, syscall.EPERM, syscall.EAFNOSUPPORT, syscall.EPROTONOSUPPORT,
		syscall.EINVAL, syscall.EMFILE} {
		if errors.Is(err, never) {
			return false
		}
	}
	if errors.Is(err, syscall.ENOENT) && rv.addr == "" {
		return false // the launcher has made the socket before
	}
	if errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return !rv.onLoopback() && tried < stuckTime
	}
	return true
}

func (rv *rendezvous) onLoopback() bool {
	host, _, _ := net.SplitHostPort(rv.addr)
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// dialRemedy is what to do about an error that does not pass.
func (rv *rendezvous) dialRemedy(err error) string {
	switch {
	case errors.Is(err, syscall.ENETUNREACH) && rv.onLoopback():
		return " (the loopback interface is down: ip link set lo up)"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return " (this is " + hostname() +
			", which has no route there: set IBCONDUIT_ADDR to an address of rank 0 that all ranks reach)"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return " (a firewall or a sandbox of this host, " + hostname() + ", forbids it)"
	case errors.Is(err, syscall.EMFILE):
		return " (this process has opened all files that it may: raise ulimit -n)"
	}
	return ""
}
