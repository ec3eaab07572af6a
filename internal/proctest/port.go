package proctest

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// HeldAddr is an address of the loopback at which nobody listens and a process that is told of it
// can. Until the test ends its port is held by a socket that does not listen: with SO_REUSEADDR,
// which net.Listen sets as well, who names the port may bind it too, and the kernel gives it to
// nobody who does not.
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
