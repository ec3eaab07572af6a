package segment

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// machine reads the limits of this process on this machine. One that cannot be read, as in a
// container with processes only in /proc, is unknown: it limits nothing, and a segment that it
// would have refused fails when it is tried. root is put before every path; it is empty but in
// tests.
type machine struct{ root string }

func (m machine) limits() (limits, error) {
	var l limits
	for _, r := range []struct {
		which      int
		soft, hard *uint64
	}{
		{unix.RLIMIT_MEMLOCK, &l.memlock, &l.memlockHard},
		{unix.RLIMIT_AS, &l.addressSpace, nil},
		{unix.RLIMIT_DATA, &l.data, nil},
		{unix.RLIMIT_FSIZE, &l.fileSize, nil},
	} {
		var lim unix.Rlimit
		if err := unix.Getrlimit(r.which, &lim); err != nil {
			lim = unix.Rlimit{Cur: unlimited, Max: unlimited}
		}
		*r.soft = lim.Cur // RLIM_INFINITY is unlimited: both are all ones
		if r.hard != nil {
			*r.hard = lim.Max
		}
	}
	l.machine = m.name()
	m.readMeminfo(&l)
	m.readStatus(&l)
	l.cgroups = m.cgroups()
	return l, nil
}

// raiseMemlock raises the soft limit of the whole process to the hard one.
func (machine) raiseMemlock(hard uint64) error {
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: hard, Max: hard})
}

// readMeminfo reads the machine's memory (proc_meminfo(5)).
func (m machine) readMeminfo(l *limits) {
	v := m.table("/proc/meminfo")
	l.available, l.commitLeft = unlimited, unlimited
	if avail, ok := v["MemAvailable"]; ok {
		l.available = avail
	}
	l.hugePage = v["Hugepagesize"]
	// Reserved pages belong to mappings that have not touched them yet.
	l.hugeFree = left(v["HugePages_Free"], v["HugePages_Rsvd"]) * l.hugePage
	mode, err := os.ReadFile(m.root + "/proc/sys/vm/overcommit_memory")
	if limit, ok := v["CommitLimit"]; ok && err == nil && string(bytes.TrimSpace(mode)) == "2" {
		l.commitLeft = left(limit, v["Committed_AS"])
	}
}

// readStatus reads the memory that the process uses already (proc_pid_status(5)).
func (m machine) readStatus(l *limits) {
	v := m.table("/proc/thread-self/status")
	l.mapped, l.dataUsed = v["VmSize"], v["VmData"]
	// Registered memory is counted as pinned, not as locked, and compared with
	// RLIMIT_MEMLOCK on its own (kernel drivers/infiniband/core/umem.c, ib_umem_get).
	l.pinned = v["VmPin"]
	l.ipcLock = v["CapEff"]>>unix.CAP_IPC_LOCK&1 == 1 && m.initialUserNamespace()
}

// initialUserNamespace reports whether capabilities count for capable() in the
// kernel: capabilities of another user namespace do not lift RLIMIT_MEMLOCK.
func (m machine) initialUserNamespace() bool {
	b, err := os.ReadFile(m.root + "/proc/self/uid_map")
	f := strings.Fields(string(b))
	return err != nil || len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}

// table reads lines "Name:  figure [kB]" into bytes. Cap lines are hexadecimal. Of a file that
// cannot be read it has none.
func (m machine) table(name string) map[string]uint64 {
	b, _ := os.ReadFile(m.root + name)
	v := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		key, rest, _ := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		base := 10
		if strings.HasPrefix(key, "Cap") {
			base = 16
		}
		n, err := strconv.ParseUint(f[0], base, 64)
		if err != nil {
			continue // a line of text
		}
		if len(f) > 1 && f[1] == "kB" {
			n *= 1024
		}
		v[key] = n
	}
	return v
}

// cgroups returns the memory limits that are set, from the process's own
// cgroup up to the root that this mount namespace sees.
func (m machine) cgroups() (set []cgroupLimit) {
	for _, l := range (sysinfo.Root{FS: os.DirFS(m.root + "/")}).MemoryLimits() {
		set = append(set, cgroupLimit{l.Group, m.inode(l.Dir), l.Limit, l.Used, l.Reclaimable})
	}
	return set
}

// name is the machine's: by the kernel's boot, as its containers have names of their own;
// where that is not known by its name.
func (m machine) name() string {
	if boot, err := os.ReadFile(m.root + "/proc/sys/kernel/random/boot_id"); err == nil {
		return string(boot)
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
