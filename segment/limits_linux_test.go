package segment

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeHost is a machine of which a test chooses the limits.
type fakeHost struct {
	limits_ limits
	raised  uint64
	refuse  error
}

func (h *fakeHost) limits() limits { return h.limits_ }
func (h *fakeHost) raiseMemlock(hard uint64) error {
	if h.refuse != nil {
		return h.refuse
	}
	h.raised = hard
	return nil
}

const mib = 1 << 20

// generous is a machine that refuses nothing a test asks for.
func generous() limits {
	return limits{memlock: unlimited, memlockHard: unlimited, addressSpace: unlimited, data: unlimited,
		fileSize: unlimited, available: 1 << 40, commitLeft: unlimited}
}

func TestEachLimitRefusesWithItsFigures(t *testing.T) {
	tests := []struct {
		which string
		limit uint64
		set   func(*limits, *Config)
	}{
		{"RLIMIT_AS", 3 * mib, func(l *limits, c *Config) { l.addressSpace, l.mapped = 5*mib, 2*mib }},
		{"RLIMIT_DATA", 1 * mib, func(l *limits, c *Config) { l.data, l.dataUsed = 2*mib, 1*mib }},
		{"RLIMIT_FSIZE", 2 * mib, func(l *limits, c *Config) { c.Shared = true; l.fileSize = 2 * mib }},
		{"RLIMIT_MEMLOCK", 2 * mib, func(l *limits, c *Config) { c.Locked = true; l.memlock, l.memlockHard, l.pinned = 3*mib, 3*mib, mib }},
		{"max_mr_size", 1 * mib, func(l *limits, c *Config) { c.DeviceMax = mib }},
		{"available memory", 3 * mib, func(l *limits, c *Config) { l.available = 3 * mib }},
		{"commit limit", 0, func(l *limits, c *Config) { l.commitLeft = 0 }},
		{"cgroup memory limit of /a/b", 2 * mib, func(l *limits, c *Config) {
			l.cgroups = []cgroupLimit{{"/a/b", "", 8 * mib, 7 * mib, 1 * mib}, {"/a", "", 80 * mib, 0, 0}}
		}},
		{"cgroup memory limit of /a", 0, func(l *limits, c *Config) {
			l.cgroups = []cgroupLimit{{"/a/b", "", 8 * mib, 0, 0}, {"/a", "", 8 * mib, 9 * mib, 0}}
		}},
		{"pool of huge pages", 2 * mib, func(l *limits, c *Config) {
			c.HugePages = Require
			l.hugePage, l.hugeFree = 2*mib, 2*mib
		}},
	}
	for _, tt := range tests {
		t.Run(tt.which, func(t *testing.T) {
			h := &fakeHost{limits_: generous()}
			c := Config{Size: 4 * mib, host: h}
			tt.set(&h.limits_, &c)
			_, err := Map(c)
			var le *LimitError
			if !errors.As(err, &le) {
				t.Fatalf("got %v, want a *LimitError", err)
			}
			if !strings.Contains(le.Which, tt.which) || le.Limit != tt.limit || le.Asked != 4*mib || le.Remedy == "" {
				t.Errorf("got %+v, want limit %d of %s", le, tt.limit, tt.which)
			}
		})
	}
}

func TestMemlockIsRaisedBeforeRefusing(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.memlock, h.limits_.memlockHard = mib, 8*mib
	m, err := Map(Config{Size: 4 * mib, Locked: true, host: h})
	must(t, err)
	defer m.Close()
	if h.raised != 8*mib {
		t.Errorf("soft limit raised to %d, want %d", h.raised, 8*mib)
	}
	h.refuse = unix.EPERM
	var le *LimitError
	if _, err := Map(Config{Size: 4 * mib, Locked: true, host: h}); !errors.As(err, &le) || le.Limit != mib {
		t.Errorf("after a refused raise: %v, want the soft limit", err)
	}
}

// A device's queues and the program's own memory are pinned later.
func TestMemlockIsRaisedBeyondTheSegment(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.memlock, h.limits_.memlockHard = 4*mib, 8*mib
	m, err := Map(Config{Size: mib, Locked: true, host: h})
	must(t, err)
	defer m.Close()
	if h.raised != 8*mib {
		t.Errorf("soft limit raised to %d, want %d", h.raised, 8*mib)
	}
}

func TestMemlockIsLeftAloneWhereNoneCounts(t *testing.T) {
	for _, ipc := range []bool{false, true} {
		h := &fakeHost{limits_: generous()}
		h.limits_.memlock, h.limits_.memlockHard, h.limits_.ipcLock = 4*mib, 8*mib, ipc
		m, err := Map(Config{Size: 16 * mib, Locked: ipc, host: h}) // CAP_IPC_LOCK lifts the limit
		must(t, err)
		m.Close()
		if h.raised != 0 {
			t.Errorf("the soft limit was raised to %d for nothing", h.raised)
		}
	}
}

func TestSizesThatOverflowAreRefused(t *testing.T) {
	most := mustPlace(t, Region{Name: "most", Size: math.MaxInt64 - 1<<17})
	for _, c := range []Config{
		{Size: math.MaxInt64},
		{Size: math.MaxInt64, Layout: most},
		{Size: 1, Layout: most},
		{Size: math.MaxInt64 - 1<<30, Align: 1 << 40},
	} {
		c.host = &fakeHost{limits_: generous()}
		var le *LimitError
		if _, err := Map(c); !errors.As(err, &le) || le.Regions[len(le.Regions)-1] != (Region{Name: User, Size: uint64(c.Size)}) {
			t.Errorf("%+v: got %v, want a *LimitError", c, err)
		}
	}
}

func TestInvalidConfigIsRefused(t *testing.T) {
	for _, c := range []Config{
		{}, {Size: -1}, {Share: 1.1}, {Share: math.NaN()}, {Share: 0.5, Size: 1},
		{Size: 1, Align: 3}, {Size: 1, Align: -8}, {Size: 1, Align: 1 << 41}, {Size: 1, HugePages: 7},
	} {
		if m, err := Map(c); err == nil {
			m.Close()
			t.Errorf("%+v was accepted", c)
		}
	}
}

func TestShareIsOfTheTightestLimit(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.available = 64 * mib
	h.limits_.cgroups = []cgroupLimit{{"/job", "", 32 * mib, 0, 0}}
	l := mustPlace(t, Region{Name: "a", Size: 100_000})
	m, err := Map(Config{Share: 0.5, Layout: l, host: h})
	must(t, err)
	defer m.Close()
	if n := len(m.User()); n > 16*mib || n < 16*mib-128<<10-4096 {
		t.Errorf("half of 32 MiB gave %d bytes", n)
	}
	all, err := Map(Config{Share: 1, Layout: l, host: h})
	must(t, err)
	defer all.Close()
	if all.Len() > 32*mib {
		t.Errorf("the whole share gave %d bytes of %d", all.Len(), 32*mib)
	}
}

func TestALimitSaysWhichRegionAsksHowMuch(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.available = mib
	l := mustPlace(t, Region{Name: "heap", Size: 2 * mib}, Region{Name: "coll", Size: 100})
	_, err := Map(Config{Size: 3000, Layout: l, host: h})
	if want := "(heap 2097152, coll 100, the user's 3000)"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %s", err, want)
	}
	if _, err = Map(Config{Size: 2 * mib, host: h}); err == nil || strings.Contains(err.Error(), "(") && strings.Contains(err.Error(), User) {
		t.Errorf("a segment of one region: %v", err)
	}
}

func TestMissingHugePagesAreNotedUnderAuto(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.hugePage = 2 * mib
	m, err := Map(Config{Size: 4 * mib, host: h})
	must(t, err)
	defer m.Close()
	if m.HugePages() || len(m.Notes()) == 0 || !strings.Contains(m.Notes()[0], "huge") {
		t.Errorf("huge %v, notes %q", m.HugePages(), m.Notes())
	}
}

// write makes a file below root.
func write(t *testing.T, root, name, text string) {
	t.Helper()
	p := filepath.Join(root, name)
	must(t, os.MkdirAll(filepath.Dir(p), 0o755))
	must(t, os.WriteFile(p, []byte(text), 0o644))
}

func TestCgroupLimitsAreFoundUpToTheRoot(t *testing.T) {
	root := t.TempDir()
	write(t, root, "proc/self/cgroup", "9:name=systemd:/\n4:memory:/docker/x/job\n0::/slice/job.scope\n")
	write(t, root, "proc/self/mountinfo",
		"31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"+
			"32 24 0:28 /docker/x /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"+
			"33 24 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n")
	write(t, root, "sys/fs/cgroup/unified/slice/memory.max", "1000\n")
	write(t, root, "sys/fs/cgroup/unified/slice/memory.current", "700\n")
	write(t, root, "sys/fs/cgroup/unified/slice/memory.stat", "anon 5\ninactive_file 60\n")
	write(t, root, "sys/fs/cgroup/unified/slice/job.scope/memory.max", "max\n")
	write(t, root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n")
	write(t, root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n")
	write(t, root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "10\n")
	got := machine{root}.cgroups()
	inode := machine{root}.inode
	want := []cgroupLimit{{"/docker/x", inode("/sys/fs/cgroup/memory"), 2000, 10, 0}, {"/slice", inode("/sys/fs/cgroup/unified/slice"), 1000, 700, 60}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMachineIsReadInBytes(t *testing.T) {
	root := t.TempDir()
	write(t, root, "proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   50 kB\nCommitLimit: 30 kB\nCommitted_AS: 10 kB\n"+
		"HugePages_Free:  7\nHugePages_Rsvd: 2\nHugepagesize: 2048 kB\n")
	write(t, root, "proc/sys/vm/overcommit_memory", "2\n")
	write(t, root, "proc/thread-self/status", "Name:\tx\nVmPin:\t 3 kB\nVmSize:\t 9 kB\nVmData: 4 kB\nCapEff:\t0000000000004000\n")
	write(t, root, "proc/self/uid_map", "0 0 4294967295\n")
	write(t, root, "proc/self/mountinfo", "")
	l := machine{root}.limits()
	if l.available != 50<<10 || l.commitLeft != 20<<10 || l.hugeFree != 5*2<<20 || l.pinned != 3<<10 ||
		l.mapped != 9<<10 || l.dataUsed != 4<<10 || !l.ipcLock {
		t.Errorf("got %+v", l)
	}
	write(t, root, "proc/self/uid_map", "0 1000 1\n")
	if (machine{root}).limits().ipcLock {
		t.Error("CAP_IPC_LOCK of a user namespace was taken for the real one")
	}
}

func TestTheRealMachineCanBeRead(t *testing.T) {
	l := machine{}.limits()
	if l.available == 0 || l.mapped == 0 || l.memlock == 0 && l.memlockHard == 0 {
		t.Errorf("got %+v", l)
	}
}

// The soft limit is raised when a segment is mapped, not while ranks ask what it would be.
func TestAPlanLeavesTheMachineAlone(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.memlock, h.limits_.memlockHard = mib/16, 8*mib
	p, err := Prepare(Config{Size: 4 * mib, Locked: true, host: h, HugePages: Off})
	must(t, err)
	if h.raised != 0 || p.Base() != 4*mib || p.Huge() != 0 || len(p.Pools()) == 0 {
		t.Errorf("raised to %d; %+v", h.raised, p)
	}
	m, err := p.Map()
	must(t, err)
	defer m.Close()
	if h.raised != 8*mib {
		t.Errorf("soft limit raised to %d, want %d", h.raised, 8*mib)
	}
}

func TestBuffersCountAsPinned(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.memlock, h.limits_.memlockHard, h.limits_.pinned = 5*mib, 8*mib, mib
	c := Config{Size: 4 * mib, Locked: true, Buffers: 3 * mib, host: h, HugePages: Off}
	m, err := Map(c)
	must(t, err)
	must(t, m.Close())
	if h.raised != 8*mib {
		t.Errorf("soft limit raised to %d, want %d", h.raised, 8*mib)
	}
	c.Buffers++
	var le *LimitError
	if _, err := Map(c); !errors.As(err, &le) || le.Limit != 4*mib-1 || !strings.Contains(le.Which, "RLIMIT_MEMLOCK of 8388608, less 1048576 that are pinned and 3145729 for buffers") {
		t.Errorf("%v", err)
	}
	c.Size, c.Share = 0, 1
	if m, err = Map(c); err != nil || m.Len() > 4*mib {
		t.Fatalf("a share of what buffers leave: %v", err)
	}
	must(t, m.Close())
}

// Groups are told apart by their directories, whatever the path in a container.
func TestPoolsAreToldApartByDirectories(t *testing.T) {
	of := func(machine, dir, path string) uint64 {
		l := generous()
		l.machine, l.cgroups = machine, []cgroupLimit{{path, dir, mib, 0, 0}}
		p, err := Prepare(Config{Size: 4096, host: &fakeHost{limits_: l}, HugePages: Off})
		must(t, err)
		return p.Pools()[1].ID
	}
	if of("m", "1:2", "/a") != of("m", "1:2", "/") {
		t.Error("one directory is two pools")
	}
	if of("m", "1:2", "/") == of("m", "1:3", "/") || of("m", "1:2", "/") == of("n", "1:2", "/") {
		t.Error("two directories are one pool")
	}
}

func TestPlansFallBackToBasePages(t *testing.T) {
	h := &fakeHost{limits_: generous()}
	h.limits_.hugePage, h.limits_.hugeFree = 2*mib, 8*mib
	p, err := Prepare(Config{Size: 3 * mib, host: h})
	must(t, err)
	if p.Huge() != 4*mib || p.Base() != 3*mib || p.Pools()[0].Kind != PoolHuge || p.Pools()[0].Room != 8*mib {
		t.Errorf("%+v", p)
	}
	p.WithoutHugePages("others have them")
	m, err := p.Map()
	must(t, err)
	defer m.Close()
	if m.HugePages() || len(m.Notes()) == 0 || !strings.Contains(m.Notes()[0], "others have them") {
		t.Errorf("huge %v, notes %q", m.HugePages(), m.Notes())
	}
}
