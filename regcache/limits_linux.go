package regcache

import (
	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// defaultMaxBytes is a quarter of the memory, or half of what this process may lock if that is
// less.
func defaultMaxBytes() int64 {
	limit := int64(1 << 30)
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) == nil {
		limit = int64(uint64(s.Totalram) * uint64(s.Unit) / 4)
	}
	var r unix.Rlimit
	if !sysinfo.Host().Capabilities().LocksAll() && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil &&
		r.Cur/2 < uint64(limit) {
		limit = int64(r.Cur / 2)
	}
	return max(limit, 1)
}
