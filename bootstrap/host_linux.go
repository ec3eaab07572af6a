package bootstrap

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout bounds how long sent bytes may stay without acknowledgement
// (tcp(7), TCP_USER_TIMEOUT, milliseconds): keep-alives do not cover that.
func userTimeout(c *net.TCPConn, ms int) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms)
		})
	}
}

// adoptFD takes a descriptor that the launcher left for us and checks that it is the one that was
// meant: spec is "4" or, as our launcher writes it, "4:inode". Our children do not get it. It gets
// another number: for a second job of this process the one in the environment is closed.
func adoptFD(variable, spec string) (*os.File, error) {
	num, inode, tagged := strings.Cut(spec, ":")
	fd, err := strconv.Atoi(num)
	if err != nil || fd < 0 {
		return nil, fmt.Errorf("%s=%q is not a file descriptor", variable, spec)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("%s=%s: fstat: %w (%s)", variable, spec, err, whyGone)
	}
	if tagged && strconv.FormatUint(st.Ino, 10) != inode {
		return nil, fmt.Errorf("%s=%s: descriptor %d is another file by now: %w (%s)",
			variable, spec, fd, unix.EBADF, whyGone)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	_ = unix.Close(fd)
	if err != nil {
		return nil, fmt.Errorf("%s=%s: fcntl F_DUPFD_CLOEXEC: %w", variable, spec, err)
	}
	return os.NewFile(uintptr(own), variable), nil
}

// inherited reads from a descriptor that was adopted, for some time at most. It may be a blocking
// one, which has no deadlines, and must stay so: other processes may share it.
func inherited(f *os.File, timeout time.Duration) io.Reader {
	return &pollReader{f, time.Now().Add(timeout)}
}

type pollReader struct {
	f     *os.File
	until time.Time
}

func (p *pollReader) Read(b []byte) (int, error) {
	ready := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}}
	for {
		left := time.Until(p.until)
		if left <= 0 {
			return 0, os.ErrDeadlineExceeded
		}
		switch n, err := unix.Poll(ready, int(left.Milliseconds())+1); {
		case err == unix.EINTR || err == nil && n == 0:
		case err != nil:
			return 0, os.NewSyscallError("poll", err)
		default:
			return p.f.Read(b)
		}
	}
}

// closeOnExec keeps an inherited descriptor from our children; a number that
// is not open does no harm.
func closeOnExec(spec string) {
	if fd, err := strconv.Atoi(spec); err == nil && fd > 2 {
		unix.CloseOnExec(fd)
	}
}
