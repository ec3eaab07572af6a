//go:build linux

package verbs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/remedy"
	"github.com/ibconduit/conduit/internal/sysinfo"
)

// Memlock is what limits how much memory this process may pin (man setrlimit, RLIMIT_MEMLOCK).
type Memlock struct {
	Limit     uint64 // bytes; Unlimited when there is none
	Pinned    uint64 // bytes pinned already (VmPin: the kernel adds pages pinned for DMA there)
	CapIPCLck bool   // CAP_IPC_LOCK of the initial user namespace: the limit does not apply
}

// Unlimited is RLIM_INFINITY.
const Unlimited = unix.RLIM_INFINITY

// ReadMemlock reads this process's figures from the kernel.
func ReadMemlock() Memlock {
	host := sysinfo.Host()
	m := Memlock{Limit: Unlimited, CapIPCLck: host.Capabilities().LocksAll(),
		Pinned: sysinfo.KB(host.Table("/proc/thread-self/status")["VmPin"])}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil {
		m.Limit = r.Cur
	}
	return m
}

// Allows reports whether that many more bytes may be pinned.
func (m Memlock) Allows(bytes uint64) bool {
	return m.CapIPCLck || m.Limit == Unlimited || m.Pinned+bytes <= m.Limit
}

// Explain says why pinning that many bytes failed with ENOMEM, and what to do.
func (m Memlock) Explain(bytes uint64) (detail, todo string) {
	if m.Allows(bytes) {
		return fmt.Sprintf("%s asked; the memlock limit allows that (limit %s, pinned %s, CAP_IPC_LOCK %v)",
				size(bytes), limit(m.Limit), size(m.Pinned), m.CapIPCLck),
			"the machine, its cgroup or the device is out of memory or of regions"
	}
	return fmt.Sprintf("%s asked, %s pinned already, and RLIMIT_MEMLOCK is %s without CAP_IPC_LOCK",
			size(bytes), size(m.Pinned), limit(m.Limit)),
		"raise the limit where the process is started: " + remedy.Memlock(remedy.Unknown)
}

func limit(v uint64) string {
	if v == Unlimited {
		return "unlimited"
	}
	return size(v)
}

// size prints bytes with the largest binary unit of which they are whole ones, so that what differs
// is shown to.
func size(v uint64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if v > 0 && v%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d %s", v>>u.shift, u.name)
		}
	}
	return errtext.Count(v, "byte")
}
