package launch

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pipe is a rank's standard output or standard error on its way.
type pipe struct {
	fd   int      // of the rank: 1 or 2
	ours *os.File // the end that is read here
	to   outputWriter
}

// copy passes on what comes until the end of the pipe, or until a deadline. Data written
// by then are still taken, however long the destination lets them wait, but no more: a process that
// goes on writing may be no rank's.
func (p *pipe) copy(s outputWriter) {
	takeAll(s, p.ours)
	for left := available(p.ours); left > 0; {
		buf := make([]byte, min(left, 32<<10))
		n := readNow(p.ours, buf)
		if n <= 0 {
			break
		}
		left -= n
		s.take(buf[:n])
	}
	s.flush()
}

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
