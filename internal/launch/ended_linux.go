package launch

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// endedList is a file that all ranks hold, with a line for each rank that has ended, as "2 exit
// status 3\n": package bootstrap ends a join by it for which a rank will never come.
type endedList struct {
	file *os.File
	size int64
}

// newEndedList returns nil where there can be no such file: then the ranks wait for those that do
// not come.
func newEndedList() *endedList {
	fd, err := unix.MemfdCreate("ibconduit-ended", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // MFD_NOEXEC_SEAL came with Linux 6.3
		fd, err = unix.MemfdCreate("ibconduit-ended", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil
	}
	return &endedList{file: os.NewFile(uintptr(fd), "ended ranks")}
}

// add writes the line of a rank that has been waited for.
func (l *endedList) add(number int, how string) {
	if l != nil {
		n, _ := l.file.WriteAt(fmt.Appendf(nil, "%d %v\n", number, how), l.size)
		l.size += int64(n)
	}
}

func (l *endedList) close() {
	if l != nil {
		_ = l.file.Close()
	}
}
