package proctest

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// HeldAddr is a loopback address on which no process listens. A socket that does not listen holds
// its port until the test ends. A process that knows the address can listen on it: both sockets
// have SO_REUSEADDR, which net.Listen sets. The kernel does not choose the port for any other.
func HeldAddr(t testing.TB) string {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(s)
	t.Cleanup(func() { unix.Close(s) })
	err = errors.Join(unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(s, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, nameless := unix.Getsockname(s)
	if err := errors.Join(err, nameless); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}
