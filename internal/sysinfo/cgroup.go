package sysinfo

import (
	"path"
	"strconv"
	"strings"
)

// Cgroup is one group on the way from the process's own to the root that its
// mount namespace shows.
type Cgroup struct {
	Path string // in the hierarchy
	Dir  string // where its files are
	V2   bool
}

// Cgroups lists the groups of this process that can have files of a
// controller ("memory", "cpu", "pids", "rdma"), its own first (cgroups(7)).
func (r Root) Cgroups(controller string) []Cgroup {
	var out []Cgroup
	for line := range strings.Lines(r.Text("/proc/self/cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		v2 := f[0] == "0" && f[1] == ""
		if !v2 && !hasWord(f[1], controller) {
			continue
		}
		for _, m := range r.cgroupMounts(controller) {
			if m.v2 == v2 {
				out = append(out, m.groups(f[2])...)
			}
		}
	}
	return out
}

type cgroupMount struct {
	root, point string
	v2          bool
}

// cgroupMounts finds the hierarchies in mountinfo (proc_pid_mountinfo(5)).
func (r Root) cgroupMounts(controller string) []cgroupMount {
	var out []cgroupMount
	for line := range strings.Lines(r.Text("/proc/self/mountinfo")) {
		left, right, ok := strings.Cut(line, " - ")
		l, t := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(t) < 3 {
			continue
		}
		switch {
		case t[0] == "cgroup2":
			out = append(out, cgroupMount{l[3], l[4], true})
		case t[0] == "cgroup" && hasWord(t[2], controller):
			out = append(out, cgroupMount{l[3], l[4], false})
		}
	}
	return out
}

// groups lists dir and the groups above it, as far as the mount shows them.
func (m cgroupMount) groups(dir string) []Cgroup {
	// A container sees the mount's root as "/", its own path perhaps in full.
	if m.root != "/" {
		dir = strings.TrimPrefix(dir, m.root)
	}
	var out []Cgroup
	for dir = path.Clean("/" + dir); ; dir = path.Dir(dir) {
		out = append(out, Cgroup{Path: path.Join(m.root, dir), Dir: path.Join(m.point, dir), V2: m.v2})
		if dir == "/" {
			return out
		}
	}
}

// CPUQuota is how many processors the process may use at a time, 0 when
// nothing limits it, and the group that says so.
func (r Root) CPUQuota() (cpus float64, group Cgroup) {
	for _, g := range r.Cgroups("cpu") {
		quota, period := r.Text(g.Dir+"/cpu.cfs_quota_us"), r.Text(g.Dir+"/cpu.cfs_period_us")
		if g.V2 {
			quota, period, _ = strings.Cut(r.Text(g.Dir+"/cpu.max"), " ")
		}
		q, err1 := strconv.ParseFloat(quota, 64)
		p, err2 := strconv.ParseFloat(period, 64)
		if err1 != nil || err2 != nil || q <= 0 || p <= 0 {
			continue // "max", -1, or no such controller
		}
		if cpus == 0 || q/p < cpus {
			cpus, group = q/p, g
		}
	}
	return cpus, group
}

// MemoryLimit is the memory limit of one group, in bytes.
type MemoryLimit struct {
	Group       string
	Dir         string // of the group's files
	Limit, Used uint64
	Reclaimable uint64 // part of Used that is clean page cache
}

// MemoryLimits are the limits that are set, of the process's own group first.
func (r Root) MemoryLimits() (set []MemoryLimit) {
	for _, g := range r.Cgroups("memory") {
		max := "memory.limit_in_bytes"
		if g.V2 {
			max = "memory.max"
		}
		// v1 writes "no limit" as the largest multiple of a page below 1<<63.
		if limit, ok := r.Figure(g.Dir + "/" + max); ok && limit < 1<<62 {
			used, clean := r.MemoryUse(g)
			set = append(set, MemoryLimit{g.Path, g.Dir, limit, used, clean})
		}
	}
	return set
}

// MemoryUse is how much memory a group with its children uses, and how much of that is clean page
// cache, used once or often: the kernel frees it before it refuses memory. Pages dirty or on their
// way to the disk are not free at once; shared memory is in none of these figures
// (cgroup-v2.rst, cgroup-v1/memory.rst).
func (r Root) MemoryUse(g Cgroup) (used, clean uint64) {
	usage, prefix, kind := "memory.usage_in_bytes", "total_", ""
	if g.V2 {
		usage, prefix, kind = "memory.current", "", "file_"
	}
	stat := map[string]uint64{}
	for line := range strings.Lines(r.Text(g.Dir + "/memory.stat")) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), " ")
		stat[k], _ = strconv.ParseUint(v, 10, 64)
	}
	used, _ = r.Figure(g.Dir + "/" + usage)
	cache := stat[prefix+"active_file"] + stat[prefix+"inactive_file"]
	busy := stat[prefix+kind+"dirty"] + stat[prefix+kind+"writeback"]
	return used, min(cache-min(busy, cache), used)
}

// MemoryRoom is how many bytes the tightest memory limit leaves, clean page
// cache counted as free. ok is false when there is no limit.
func (r Root) MemoryRoom() (room, limit uint64, group string, ok bool) {
	for _, l := range r.MemoryLimits() {
		left := l.Limit - min(l.Used-l.Reclaimable, l.Limit)
		if !ok || left < room {
			room, limit, group, ok = left, l.Limit, l.Group, true
		}
	}
	return room, limit, group, ok
}

// PidsRoom is how many more threads the tightest pids limit allows.
func (r Root) PidsRoom() (room, limit uint64, group string, ok bool) {
	for _, g := range r.Cgroups("pids") {
		l, set := r.Figure(g.Dir + "/pids.max")
		if !set {
			continue
		}
		u, _ := r.Figure(g.Dir + "/pids.current")
		left := l - min(u, l)
		if !ok || left < room {
			room, limit, group, ok = left, l, g.Path, true
		}
	}
	return room, limit, group, ok
}

// RDMALimit is the first limit of the rdma controller on a device that some
// group sets ("hca_handle=2 hca_object=2000"), "" when none does (cgroup-v2.rst, RDMA).
func (r Root) RDMALimit(device string) (limit, group string) {
	for _, g := range r.Cgroups("rdma") {
		for line := range strings.Lines(r.Text(g.Dir + "/rdma.max")) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != device {
				continue
			}
			for _, kv := range f[1:] {
				if _, v, _ := strings.Cut(kv, "="); v != "max" {
					return strings.Join(f[1:], " "), g.Path
				}
			}
		}
	}
	return "", ""
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// MemoryKills is how many processes of a memory group the kernel has killed for want of memory,
// with version 2 its children's too. ok is false where the group does not count them.
func (r Root) MemoryKills(g Cgroup) (n uint64, ok bool) {
	file := "/memory.oom_control"
	if g.V2 {
		file = "/memory.events"
	}
	for line := range strings.Lines(r.Text(g.Dir + file)) {
		if v, found := strings.CutPrefix(line, "oom_kill "); found {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
