package bootstrap

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An earlier job ends a little later than the next one begins.
func TestRankZeroWaitsForItsPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { _ = taken.Close() })
	lns, err := (&rendezvous{addr: taken.Addr().String()}).listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = lns.Close()
}

func TestANameServerIsAskedAgain(t *testing.T) {
	launcher, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer launcher.Close()
	var asked atomic.Int32
	before := net.DefaultResolver
	defer func() { net.DefaultResolver = before }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		asked.Add(1)
		return nil, &net.OpError{Op: "dial", Net: "udp", Err: syscall.ECONNREFUSED}
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _ = dialLauncher(ctx, "launcher.invalid:1", "me")
	first := asked.Load()
	asked.Store(0)
	_, _ = new(net.Dialer).DialContext(t.Context(), "tcp", "launcher.invalid:1")
	if once := asked.Load(); once == 0 || first < 2*once {
		t.Errorf("%d questions, and %d for one try", first, once)
	}
}

// What the socket cannot take yet does not go the way of those that do not see it, which may not
// be there.
func TestAFullBacklogOfTheSocketPasses(t *testing.T) {
	name := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	rv := &rendezvous{socket: name, addr: "127.0.0.1:1"}
	for range 8 {
		c, err := rv.dial(t.Context())
		if err != nil {
			if !errors.Is(err, syscall.EAGAIN) || !rv.passing(err, stuckTime) {
				t.Errorf("%v", err)
			}
			return
		}
		defer c.Close()
	}
	t.Error("the backlog is never full")
}
