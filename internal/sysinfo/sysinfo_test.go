package sysinfo

import (
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
	if cpus, group := r.CPUQuota(); cpus != 1.5 || group != "/a" {
		t.Errorf("quota %v of %s", cpus, group)
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

func TestCleanPageCacheIsRoom(t *testing.T) {
	r := root(map[string]string{
		"proc/self/cgroup":                           "4:memory:/docker/abc\n",
		"proc/self/mountinfo":                        "42 30 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "1000",
		"sys/fs/cgroup/memory/memory.usage_in_bytes": "700",
		"sys/fs/cgroup/memory/memory.stat":           "total_inactive_file 200\n",
	})
	if room, _, group, ok := r.MemoryRoom(); room != 500 || group != "/docker/abc" || !ok {
		t.Errorf("%d bytes left in %s, %v", room, group, ok)
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
