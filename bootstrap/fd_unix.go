//go:build unix

package bootstrap

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// connFromFD makes a connection with deadlines of an inherited socket, which
// stays open itself.
func connFromFD(fd int) (net.Conn, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	f := os.NewFile(uintptr(dup), "PMI_FD")
	defer f.Close()
	return net.FileConn(f)
}
