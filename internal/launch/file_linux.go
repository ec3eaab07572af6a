package launch

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// file is w if that is a file.
func file(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		return f
	}
	return nil
}

// available is how many bytes of a pipe can be read at once.
func available(f *os.File) (n int) {
	control(f, func(fd int) { n, _ = unix.IoctlGetInt(fd, unix.TIOCINQ) })
	return n
}

// readNow reads the data that are there, whatever the deadline; 0 where there is nothing.
func readNow(f *os.File, buf []byte) (n int) {
	control(f, func(fd int) {
		var err error
		for n, err = unix.Read(fd, buf); errors.Is(err, unix.EINTR); {
			n, err = unix.Read(fd, buf)
		}
	})
	return n
}

// writable waits, for some time at most, until a file would not block.
func writable(f *os.File, atMost time.Duration) (ready bool) {
	control(f, func(fd int) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(atMost.Milliseconds()))
		ready = err == nil && n > 0
	})
	return ready
}

func control(f *os.File, do func(fd int)) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}
