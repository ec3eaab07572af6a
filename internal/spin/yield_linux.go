package spin

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// yieldCore is sched_yield(2).
func yieldCore() { unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// sleepBriefly is nanosleep(2): time.Sleep comes back about a millisecond late.
func sleepBriefly(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}

// allowed are the processors that this thread may use, 64 a word (sched_getaffinity(2)).
func allowed() []uint64 {
	var set [maxWords]uint64
	n, _, errno := unix.Syscall(unix.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(set), uintptr(unsafe.Pointer(&set)))
	if errno != 0 {
		return nil
	}
	last := int(n) / 8
	for last > 0 && set[last-1] == 0 {
		last--
	}
	return set[:last]
}
