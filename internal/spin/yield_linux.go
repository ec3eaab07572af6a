package spin

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// yieldCore is sched_yield(2).
func yieldCore() { unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// processor is the beginning of /proc/cpuinfo; all of it takes milliseconds where there are many.
func processor() []byte {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, 1024)
	n, _ := f.Read(b)
	return b[:n]
}

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

// quotaGroup stands for the control group that bounds how many processors this process may use. A
// path would not do: each container sees its own as "/". 0: there is none, or it is not known.
func quotaGroup() uint64 {
	cpus, group := sysinfo.Host().CPUQuota()
	var st unix.Stat_t
	if cpus == 0 || unix.Stat(group.Dir, &st) != nil {
		return 0
	}
	return st.Ino
}
