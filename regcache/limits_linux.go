package regcache

import "golang.org/x/sys/unix"

// defaultMaxBytes is a quarter of the memory, or half of what this process may lock if that is
// less.
func defaultMaxBytes() int64 {
	limit := int64(1 << 30)
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) == nil {
		limit = int64(uint64(s.Totalram) * uint64(s.Unit) / 4)
	}
	var r unix.Rlimit
	if !mayLockAll() && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil && r.Cur/2 < uint64(limit) {
		limit = int64(r.Cur / 2)
	}
	return max(limit, 1)
}

// mayLockAll: with CAP_IPC_LOCK the limit does not apply (capabilities(7)).
func mayLockAll() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	return unix.Capget(&h, &d[0]) == nil && d[0].Effective>>unix.CAP_IPC_LOCK&1 != 0
}
