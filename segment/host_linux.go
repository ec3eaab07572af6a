package segment

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine reads the limits of this process on this machine. root is put before
// every path; it is empty but in tests.
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
			return l, fmt.Errorf("segment: getrlimit(%d): %w", r.which, err)
		}
		*r.soft = lim.Cur // RLIM_INFINITY is unlimited: both are all ones
		if r.hard != nil {
			*r.hard = lim.Max
		}
	}
	if err := m.readMeminfo(&l); err != nil {
		return l, err
	}
	if err := m.readStatus(&l); err != nil {
		return l, err
	}
	var err error
	l.cgroups, err = m.cgroups()
	return l, err
}

// raiseMemlock raises the soft limit of the whole process to the hard one.
func (machine) raiseMemlock(hard uint64) error {
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: hard, Max: hard})
}

// readMeminfo reads what the machine has (proc_meminfo(5)).
func (m machine) readMeminfo(l *limits) error {
	v, err := m.table("/proc/meminfo")
	if err != nil {
		return err
	}
	avail, ok := v["MemAvailable"]
	if !ok {
		return errors.New("segment: /proc/meminfo has no MemAvailable")
	}
	l.available = avail
	l.hugePage = v["Hugepagesize"]
	// Reserved pages belong to mappings that have not touched them yet.
	l.hugeFree = left(v["HugePages_Free"], v["HugePages_Rsvd"]) * l.hugePage
	l.commitLeft = unlimited
	mode, err := os.ReadFile(m.root + "/proc/sys/vm/overcommit_memory")
	if err == nil && string(bytes.TrimSpace(mode)) == "2" {
		l.commitLeft = left(v["CommitLimit"], v["Committed_AS"])
	}
	return nil
}

// readStatus reads what the process uses already (proc_pid_status(5)).
func (m machine) readStatus(l *limits) error {
	v, err := m.table("/proc/self/status")
	if err != nil {
		return err
	}
	l.mapped, l.dataUsed = v["VmSize"], v["VmData"]
	// Registered memory is counted as pinned, not as locked, and compared with
	// RLIMIT_MEMLOCK on its own (kernel drivers/infiniband/core/umem.c, ib_umem_get).
	l.pinned = v["VmPin"]
	l.ipcLock = v["CapEff"]>>unix.CAP_IPC_LOCK&1 == 1 && m.initialUserNamespace()
	return nil
}

// initialUserNamespace reports whether capabilities count for capable() in the
// kernel: those of another user namespace do not lift RLIMIT_MEMLOCK.
func (m machine) initialUserNamespace() bool {
	b, err := os.ReadFile(m.root + "/proc/self/uid_map")
	f := strings.Fields(string(b))
	return err != nil || len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}

// table reads lines "Name:  figure [kB]" into bytes. Cap lines are hexadecimal.
func (m machine) table(name string) (map[string]uint64, error) {
	b, err := os.ReadFile(m.root + name)
	if err != nil {
		return nil, fmt.Errorf("segment: limits of the machine: %w", err)
	}
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
	return v, nil
}

// cgroups returns the memory limits that are set, from the process's own
// cgroup up to the root that this mount namespace sees.
func (m machine) cgroups() ([]cgroupLimit, error) {
	mounts, err := m.cgroupMounts()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(m.root + "/proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // kernel without cgroups
	} else if err != nil {
		return nil, fmt.Errorf("segment: cgroup of the process: %w", err)
	}
	var found []cgroupLimit
	for line := range strings.Lines(string(b)) {
		// hierarchy:controllers:path, cgroups(7)
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		v2 := f[0] == "0" && f[1] == ""
		if !v2 && !hasWord(f[1], "memory") {
			continue
		}
		for _, mt := range mounts {
			if mt.v2 == v2 {
				found = append(found, m.walk(mt, f[2])...)
			}
		}
	}
	return found, nil
}

type cgroupMount struct {
	root, point string
	v2          bool
}

// cgroupMounts finds the hierarchies that have memory limits in mountinfo
// (proc_pid_mountinfo(5)): "id parent dev root point options [tags] - type source superoptions".
func (m machine) cgroupMounts() ([]cgroupMount, error) {
	b, err := os.ReadFile(m.root + "/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("segment: mounts of the process: %w", err)
	}
	var out []cgroupMount
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		switch {
		case r[0] == "cgroup2":
			out = append(out, cgroupMount{l[3], l[4], true})
		case r[0] == "cgroup" && hasWord(r[2], "memory"):
			out = append(out, cgroupMount{l[3], l[4], false})
		}
	}
	return out, s.Err()
}

// walk reads the limits from dir, a path in the hierarchy, up to its mount.
func (m machine) walk(mt cgroupMount, dir string) []cgroupLimit {
	// A container sees the mount's root as "/", its own path perhaps in full.
	if mt.root != "/" {
		dir = strings.TrimPrefix(dir, mt.root)
	}
	dir = path.Clean("/" + dir)
	limitFile, usedFile, cacheKey := "memory.max", "memory.current", "inactive_file"
	if !mt.v2 {
		limitFile, usedFile, cacheKey = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	}
	var out []cgroupLimit
	for {
		at := m.root + path.Join(mt.point, dir)
		// v1 writes "no limit" as the largest multiple of a page below 1<<63.
		if limit, ok := readFigure(path.Join(at, limitFile)); ok && limit < 1<<62 {
			used, _ := readFigure(path.Join(at, usedFile))
			out = append(out, cgroupLimit{dir, limit, used, readStat(path.Join(at, "memory.stat"), cacheKey)})
		}
		if dir == "/" {
			return out
		}
		dir = path.Dir(dir)
	}
}

// readFigure reads a file that holds one number; "max" and absence are not ok.
func readFigure(name string) (uint64, bool) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// readStat reads one line "key figure" of a memory.stat; 0 when there is none.
func readStat(name, key string) uint64 {
	b, _ := os.ReadFile(name)
	for line := range strings.Lines(string(b)) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			n, _ := strconv.ParseUint(v, 10, 64)
			return n
		}
	}
	return 0
}

// hasWord reports whether a comma-separated list holds word.
func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}
