package segment

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// machine reads the limits of this process on this machine. One that cannot be read, as in a
// container with processes only in /proc, is unknown: it limits nothing, and a segment that it
// would have refused fails when it is tried. root is put before every path; it is empty but in
// tests.
type machine struct{ root string }

func (m machine) files() sysinfo.Root { return sysinfo.Root{FS: os.DirFS(m.root + "/")} }

func (m machine) limits() limits {
	memlock := rlimit(unix.RLIMIT_MEMLOCK)
	l := limits{memlock: memlock.Cur, memlockHard: memlock.Max, addressSpace: rlimit(unix.RLIMIT_AS).Cur,
		data: rlimit(unix.RLIMIT_DATA).Cur, fileSize: rlimit(unix.RLIMIT_FSIZE).Cur, machine: m.name()}
	m.readMeminfo(&l)
	v := m.files().Table("/proc/thread-self/status") // proc_pid_status(5)
	l.mapped, l.dataUsed = sysinfo.KB(v["VmSize"]), sysinfo.KB(v["VmData"])
	// Registered memory is counted as pinned, not as locked, and compared with
	// RLIMIT_MEMLOCK on its own (kernel drivers/infiniband/core/umem.c, ib_umem_get).
	l.pinned = sysinfo.KB(v["VmPin"])
	l.ipcLock = m.files().Capabilities().LocksAll()
	l.cgroups = m.cgroups()
	return l
}

// rlimit is a limit of the process. RLIM_INFINITY is unlimited: both are all ones.
func rlimit(which int) unix.Rlimit {
	var lim unix.Rlimit
	if unix.Getrlimit(which, &lim) != nil {
		return unix.Rlimit{Cur: unlimited, Max: unlimited}
	}
	return lim
}

// raiseMemlock raises the soft limit of the whole process to the hard one.
func (machine) raiseMemlock(hard uint64) error {
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: hard, Max: hard})
}

// readMeminfo reads the machine's memory (proc_meminfo(5)).
func (m machine) readMeminfo(l *limits) {
	v := m.files().Table("/proc/meminfo")
	pages := func(name string) uint64 {
		n, _ := strconv.ParseUint(v[name], 10, 64)
		return n
	}
	l.available, l.commitLeft = unlimited, unlimited
	if avail, ok := v["MemAvailable"]; ok {
		l.available = sysinfo.KB(avail)
	}
	l.hugePage = sysinfo.KB(v["Hugepagesize"])
	// Reserved pages belong to mappings that have not touched them yet.
	l.hugeFree = left(pages("HugePages_Free"), pages("HugePages_Rsvd")) * l.hugePage
	if limit, ok := v["CommitLimit"]; ok && m.files().Text("/proc/sys/vm/overcommit_memory") == "2" {
		l.commitLeft = left(sysinfo.KB(limit), sysinfo.KB(v["Committed_AS"]))
	}
}

// cgroups returns the memory limits that are set, from the process's own
// cgroup up to the root that this mount namespace sees.
func (m machine) cgroups() (set []cgroupLimit) {
	for _, l := range m.files().MemoryLimits() {
		set = append(set, cgroupLimit{l.Group, m.inode(l.Dir), l.Limit, l.Used, l.Reclaimable})
	}
	return set
}

// name is the machine's: by the kernel's boot, as its containers have names of their own;
// where that is not known by its name.
func (m machine) name() string {
	if boot := m.files().Text("/proc/sys/kernel/random/boot_id"); boot != "" {
		return boot
	}
	name, _ := os.Hostname()
	return name
}

// inode names a directory of the machine whatever its path in a container.
func (m machine) inode(dir string) string {
	var st unix.Stat_t
	if unix.Stat(m.root+dir, &st) != nil {
		return dir
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}
