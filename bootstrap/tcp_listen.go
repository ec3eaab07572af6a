package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// listeners are where rank 0 listens: more than one where the others may come by several ways.
type listeners []net.Listener

func (l listeners) Close() (err error) {
	for _, ln := range l {
		err = errors.Join(err, ln.Close())
	}
	return err
}

// Addr is the first way's.
func (l listeners) Addr() net.Addr { return l[0].Addr() }

func (l listeners) String() string {
	var at []string
	for _, ln := range l {
		at = append(at, ln.Addr().String())
	}
	return strings.Join(at, ", ")
}

// takeListeners adopts the listeners that the launcher has opened for rank 0.
func (rv *rendezvous) takeListeners(env environment) (err error) {
	if rv.rank != 0 {
		return nil
	}
	for _, l := range []struct {
		variable string
		to       **os.File
	}{{"IBCONDUIT_SOCKET_FD", &rv.socketListener}, {"IBCONDUIT_LISTEN_FD", &rv.listener}} {
		spec := env.get(l.variable)
		if spec == "" {
			continue
		}
		if *l.to, err = adoptFD(l.variable, spec); err != nil {
			return err
		}
	}
	return nil
}

// listen opens rank 0's rendezvous, never at all addresses unless the configuration says so.
func (rv *rendezvous) listen(ctx context.Context) (listeners, error) {
	lns, err := rv.bind(ctx)
	for begun := time.Now(); later(err) && time.Since(begun) < stuckTime && ctx.Err() == nil; {
		time.Sleep(10 * dialFirst)
		lns, err = rv.bind(ctx)
	}
	if err != nil {
		where := rv.addr
		if rv.listenAt != "" {
			where = "IBCONDUIT_LISTEN=" + rv.listenAt
		}
		from := ""
		if rv.addrFrom != "" && rv.listenAt == "" {
			from = " (" + rv.addrFrom + ")"
		}
		return nil, fmt.Errorf("rank 0: listen at %s: %w%s%s", where, err, rv.listenRemedy(err), from)
	}
	for _, ln := range lns {
		if err := rv.trusts(ln.Addr()); err != nil {
			lns.Close()
			return nil, err
		}
	}
	return lns, nil
}

// later: an earlier job may be about to end, and a name to come.
func later(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.As(err, new(*net.DNSError))
}

func (rv *rendezvous) bind(ctx context.Context) (lns listeners, err error) {
	inherited := false
	for _, f := range []*os.File{rv.socketListener, rv.listener} {
		if f == nil {
			continue
		}
		inherited = true
		defer f.Close() // FileListener duplicates it
		ln, err := net.FileListener(f)
		if err != nil {
			lns.Close()
			return nil, err
		}
		lns = append(lns, ln)
	}
	if inherited {
		return lns, nil
	}
	host, port, err := net.SplitHostPort(rv.addr)
	if err != nil {
		return nil, err
	}
	var ips []string
	if rv.listenAt != "" {
		ips, port, err = listenAddresses(ctx, rv.listenAt, port)
	} else {
		ips, err = bindAddresses(ctx, host)
	}
	if err != nil {
		return nil, err
	}
	// Names have addresses of both families; a host may lack one. A taken one is never
	// passed over: the others would meet its owner.
	var failed error
	for _, ip := range ips {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ip, port))
		switch {
		case err == nil:
			lns = append(lns, ln)
		case errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT),
			errors.Is(err, syscall.EINVAL): // a link-local address of no interface, from /etc/hosts
			failed = errors.Join(failed, err)
		default:
			lns.Close()
			return nil, err
		}
	}
	if len(lns) == 0 {
		return nil, failed
	}
	return lns, nil
}

func (rv *rendezvous) listenRemedy(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return " (another job, or an earlier rank 0 that has not ended; choose another port)"
	case errors.Is(err, syscall.EADDRNOTAVAIL) && rv.listenAt != "":
		return " (this is " + hostname() + ": it names no address, or interface, of this host)"
	case errors.Is(err, syscall.EADDRNOTAVAIL) && rv.ownName():
		return " (the name is this host's, but leads to addresses that it does not have: mend /etc/hosts or DNS, " +
			"or set IBCONDUIT_ADDR to an address of " + hostname() + ")"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return " (rank 0 must run on the host that the address names; this is " + hostname() +
			". Where the address leads here all the same, as that of a NAT or a service does, " +
			"set IBCONDUIT_LISTEN=0.0.0.0 or to an address of this host)"
	case errors.Is(err, syscall.EACCES):
		return " (an ordinary user may not listen at ports below 1024; choose another port)"
	}
	return ""
}

// listenAddresses reads IBCONDUIT_LISTEN: an address, a name or an interface of this host, with a
// port or without.
func listenAddresses(ctx context.Context, spec, port string) (ips []string, _ string, err error) {
	host := strings.Trim(spec, "[]")
	if h, p, err := net.SplitHostPort(spec); err == nil {
		host, port = h, p
	}
	if host == "" {
		host = "0.0.0.0"
	}
	if i, err := net.InterfaceByName(host); err == nil {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, "", err
		}
		return global(addrs, i.Flags&net.FlagLoopback != 0), port, nil
	}
	ips, err = bindAddresses(ctx, host)
	return ips, port, err
}

// bindAddresses turns rank 0's own name into addresses of this host: all that the others may find
// behind it. In a pod the name appears in DNS after the process has started, and Debian maps a
// host's own name to 127.0.1.1, where ranks of this host find it and no others: for its own name
// rank 0 takes also the address that its default route uses, or without a route the addresses of
// its interfaces.
func bindAddresses(ctx context.Context, host string) (ips []string, err error) {
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{host}, nil
	}
	if strings.EqualFold(host, "localhost") {
		return []string{"127.0.0.1", "::1"}, nil
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	reachable := false
	for _, ip := range found {
		ips = append(ips, ip.Unmap().String())
		reachable = reachable || !ip.IsLoopback()
	}
	if !reachable && sameHost(host, hostname()) {
		own := []string{routedAddress()}
		if own[0] == "" {
			addrs, _ := net.InterfaceAddrs()
			own = global(addrs, false)
		}
		ips = append(own, ips...)
	}
	slices.Sort(ips)
	if ips = slices.Compact(ips); len(ips) > 0 {
		return ips, nil
	}
	return nil, err
}

// global are addresses that others can reach, at most as many as a sensible host has, or the
// loopback ones.
func global(addrs []net.Addr, loopback bool) (ips []string) {
	const most = 16
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && len(ips) < most && (n.IP.IsGlobalUnicast() || loopback && n.IP.IsLoopback()) {
			ips = append(ips, n.IP.String())
		}
	}
	return ips
}

// ownName: rank 0's address has this host's name.
func (rv *rendezvous) ownName() bool {
	host, _, err := net.SplitHostPort(rv.addr)
	return err == nil && sameHost(host, hostname())
}

// sameHost compares host names up to their domain; letters have no case in them.
func sameHost(a, b string) bool { return strings.EqualFold(firstLabel(a), firstLabel(b)) }

func firstLabel(name string) string {
	label, _, _ := strings.Cut(name, ".")
	return label
}

// routedAddress gets from the kernel the address it would send from; connecting
// a datagram socket sends nothing. 192.0.2.1 is for documents (RFC 5737).
func routedAddress() string {
	c, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		return ""
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String()
}
