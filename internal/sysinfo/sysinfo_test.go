package sysinfo

import (
	"strconv"
	"testing"
	"testing/fstest"
)

func root(files map[string]string) Root {
	m := fstest.MapFS{}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	return Root{m}
}

func TestTheTightestGroupOnTheWayUpCounts(t *testing.T) {
	r := root(map[string]string{
		"proc/self/cgroup":                "0::/a/b\n",
		"proc/self/mountinfo":             "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/a/b/cpu.max":       "400000 100000\n",
		"sys/fs/cgroup/a/cpu.max":         "150000 100000\n",
		"sys/fs/cgroup/a/b/memory.max":    "max\n",
		"sys/fs/cgroup/a/memory.max":      "1000\n",
		"sys/fs/cgroup/a/memory.current":  "700\n",
		"sys/fs/cgroup/a/memory.stat":     "anon 1\ninactive_file 200\n",
		"sys/fs/cgroup/a/b/pids.max":      "50\n",
		"sys/fs/cgroup/a/b/pids.current":  "60\n", // a limit lowered later
		"sys/fs/cgroup/a/rdma.max":        "mlx5_0 hca_handle=max hca_object=max\nmlx5_1 hca_handle=2 hca_object=max\n",
		"sys/fs/cgroup/memory.max":        "5000\n",
		"sys/fs/cgroup/memory.current":    "6000\n", // more than the limit, all of it used
		"sys/fs/cgroup/other/memory.max":  "1\n",
		"sys/fs/cgroup/a/b/other/cpu.max": "1 100000\n",
	})
	if cpus, group := r.CPUQuota(); cpus != 1.5 || group.Path != "/a" {
		t.Errorf("quota %v of %s", cpus, group.Path)
	}
	if room, limit, group, ok := r.MemoryRoom(); room != 0 || limit != 5000 || group != "/" || !ok {
		t.Errorf("memory %d of %d in %s, %v", room, limit, group, ok)
	}
	if room, limit, _, ok := r.PidsRoom(); room != 0 || limit != 50 || !ok {
		t.Errorf("pids %d of %d, %v", room, limit, ok)
	}
	if l, _ := r.RDMALimit("mlx5_0"); l != "" {
		t.Errorf("mlx5_0 is limited to %s", l)
	}
	if l, group := r.RDMALimit("mlx5_1"); l != "hca_handle=2 hca_object=max" || group != "/a" {
		t.Errorf("mlx5_1 is limited to %q by %s", l, group)
	}
}

// Page cache is free memory whether it was used once or often, but not what is to be written first.
func TestCleanPageCacheIsRoom(t *testing.T) {
	const v1, v2 = "4:memory:/docker/abc\n", "0::/docker/abc\n"
	for _, c := range []struct {
		name, group, mount, stat string
		used, clean              uint64
	}{
		{"v1 used once", v1, "cgroup cgroup rw,memory", "inactive_file 9\ntotal_inactive_file 200\n", 700, 200},
		{"v1 used often", v1, "cgroup cgroup rw,memory", "active_file 9\ntotal_active_file 300\ntotal_inactive_file 200\n", 700, 500},
		{"v1 dirty", v1, "cgroup cgroup rw,memory", "total_dirty 30\ntotal_writeback 4\ntotal_active_file 300\ntotal_inactive_file 200\n", 700, 466},
		{"v2 used often", v2, "cgroup2 cgroup2 rw", "active_file 300\ninactive_file 200\ntotal_active_file 7\n", 700, 500},
		{"v2 dirty", v2, "cgroup2 cgroup2 rw", "file_dirty 30\nfile_writeback 4\nactive_file 300\ninactive_file 200\nshmem 90\n", 700, 466},
		{"all dirty", v2, "cgroup2 cgroup2 rw", "file_dirty 400\nfile_writeback 400\nactive_file 300\ninactive_file 200\n", 700, 0},
		{"more than is used", v2, "cgroup2 cgroup2 rw", "active_file 300\ninactive_file 200\n", 450, 450},
		{"no figures", v2, "cgroup2 cgroup2 rw", "", 700, 0},
	} {
		r := root(map[string]string{
			"proc/self/cgroup":         c.group,
			"proc/self/mountinfo":      "42 30 0:32 /docker/abc /cg ro - " + c.mount + "\n",
			"cg/memory.limit_in_bytes": "1000", "cg/memory.max": "1000",
			"cg/memory.usage_in_bytes": strconv.FormatUint(c.used, 10), "cg/memory.current": strconv.FormatUint(c.used, 10),
			"cg/memory.stat": c.stat,
		})
		want := MemoryLimit{"/docker/abc", "/cg", 1000, c.used, c.clean}
		if got := r.MemoryLimits(); len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, want)
		}
		if room, _, _, ok := r.MemoryRoom(); room != 1000-c.used+c.clean || !ok {
			t.Errorf("%s: room for %d bytes, %v", c.name, room, ok)
		}
	}
}

func TestV1WithoutALimitHasNone(t *testing.T) {
	r := root(map[string]string{
		"proc/self/cgroup":         "4:memory,cpu:/\n",
		"proc/self/mountinfo":      "42 30 0:32 / /cg rw - cgroup cgroup rw,memory,cpu\n",
		"cg/memory.limit_in_bytes": "9223372036854771712\n", "cg/cpu.cfs_quota_us": "-1\n", "cg/cpu.cfs_period_us": "100000\n",
	})
	if _, _, _, ok := r.MemoryRoom(); ok {
		t.Error("a memory limit was found")
	}
	if cpus, _ := r.CPUQuota(); cpus != 0 {
		t.Errorf("a quota of %v was found", cpus)
	}
}

func TestCapabilitiesOfAUserNamespaceAreNotInitial(t *testing.T) {
	status := "Name:\tx\nCapEff:\t0000000000004000\n"
	for uidMap, initial := range map[string]bool{
		"         0          0 4294967295": true,
		"         0       1000          1": false,
	} {
		c := root(map[string]string{"proc/thread-self/status": status, "proc/self/uid_map": uidMap}).Capabilities()
		if !c.Has(14) || c.Has(12) || c.Initial != initial {
			t.Errorf("%q: %+v", uidMap, c)
		}
	}
}

func TestOnlyProgramsAreFound(t *testing.T) {
	r := Root{fstest.MapFS{
		"usr/bin/srun":     {Mode: 0o644},
		"opt/bin/srun":     {Mode: 0o755},
		"usr/bin/mpiexec":  {Mode: 0o755},
		"relative/mpiexec": {Mode: 0o755},
	}}
	for program, want := range map[string]string{"srun": "/opt/bin/srun", "mpiexec": "/usr/bin/mpiexec", "ibrun": ""} {
		if got := r.Find("relative:/nowhere:/usr/bin:/opt/bin", program); got != want {
			t.Errorf("%s is %q, want %q", program, got, want)
		}
	}
}

func TestTheDistributionIsKnownByItsRelatives(t *testing.T) {
	d := root(map[string]string{"usr/lib/os-release": "PRETTY_NAME=\"Rocky Linux 9.4\"\nID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"}).Distro()
	if d.Name != "Rocky Linux 9.4" || !d.Is("fedora") || !d.Is("debian", "rocky") || d.Is("debian") {
		t.Errorf("%+v", d)
	}
}
