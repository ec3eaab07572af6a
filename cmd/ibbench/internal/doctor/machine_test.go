package doctor

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ibconduit/conduit/internal/sysinfo"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/verbs"
)

var update = flag.Bool("update", false, "rewrite the reports in testdata")

// fixture is a machine described by a file of testdata: files of its own, the
// report expected of it, and before them one fact a line:
//
//	fabric ibv                            Options.Fabric
//	kernel RELEASE                        uname -r; arch is x86_64 unless "arch" says otherwise
//	user ID
//	cpus N
//	limit memlock SOFT HARD
//	env NAME=VALUE
//	link PATH TARGET                      a symbolic link
//	exec PATH                             a program
//	deny PATH ERRNO                       opening PATH fails
//	share TEXT                            shared memory fails so
//	pin BYTES [raised]                    more than that is refused with ENOMEM
//	library TEXT                          listing devices fails so
//	device NAME FIRMWARE
//	port NAME N STATE LINK LID MTU MAXMTU WIDTH SPEED
//	gid NAME N INDEX TYPE ADDRESS [NETDEV]
//	events NAME                           memevents.Status as testdata/events/NAME.txt; else all.txt
type fixture struct {
	m      *machine
	opts   Options
	fs     fstest.MapFS
	devs   []device
	err    error // of listing devices
	pinMax uint64
	raised bool
	denied map[string]error
	share  error
	limits map[string][2]uint64
	vars   map[string]string
	events string
}

func readFixture(t *testing.T, file string) (*fixture, *txtar.Archive) {
	t.Helper()
	a, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{events: "all", fs: fstest.MapFS{}, pinMax: 1 << 40, denied: map[string]error{}, vars: map[string]string{},
		limits: map[string][2]uint64{"memlock": {unlimited, unlimited}}}
	f.m = &machine{arch: "x86_64", cpus: 8, uid: 0, lookup: f.lookup, rlimit: f.rlimit, open: f.open,
		share: func() error { return f.share }, locked: func() (uint64, error) { return 70 << 20, nil }, devices: func() ([]device, error) { return slices.Clone(f.devs), f.err }, pin: f.pin}
	f.m.FS = f.fs
	f.m.events = func() memevents.Report { return recordedEvents(t, f.events) }
	for n, line := range slices.Collect(strings.Lines(string(a.Comment))) {
		if err := f.fact(strings.Fields(line)); err != nil {
			t.Fatalf("%s:%d: %v", file, n+1, err)
		}
	}
	for _, x := range a.Files {
		if strings.HasPrefix(x.Name, "/") {
			f.fs[x.Name[1:]] = &fstest.MapFile{Data: x.Data, Mode: 0o644}
		}
	}
	return f, a
}

func (f *fixture) fact(w []string) (err error) {
	if len(w) == 0 || strings.HasPrefix(w[0], "#") {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v: %v", w, r)
		}
	}()
	number := func(s string) uint64 {
		if s == "unlimited" {
			return unlimited
		}
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	rest := strings.Join(w[1:], " ")
	switch w[0] {
	case "fabric":
		f.opts.Fabric = rest
	case "kernel":
		f.m.kernel = rest
	case "arch":
		f.m.arch = rest
	case "user":
		f.m.uid = int(number(rest))
	case "cpus":
		f.m.cpus = int(number(rest))
	case "limit":
		f.limits[w[1]] = [2]uint64{number(w[2]), number(w[3])}
	case "env":
		k, v, _ := strings.Cut(rest, "=")
		f.vars[k] = v
	case "link":
		f.fs[w[1][1:]] = &fstest.MapFile{Data: []byte(w[2]), Mode: fs.ModeSymlink | 0o777}
	case "exec":
		f.fs[w[1][1:]] = &fstest.MapFile{Mode: 0o755}
	case "deny":
		f.denied[w[1]] = map[string]error{"EACCES": syscall.EACCES, "ENOENT": syscall.ENOENT, "EPERM": syscall.EPERM}[w[2]]
	case "share":
		f.share = errors.New(rest)
	case "pin":
		f.pinMax, f.raised = number(w[1]), len(w) > 2
	case "library":
		f.err = errors.New(rest)
	case "events":
		f.events = rest
	case "device":
		f.devs = append(f.devs, device{Name: w[1], Firmware: w[2]})
	case "port":
		d := f.device(w[1])
		d.Ports = append(d.Ports, port{Attr: verbs.PortAttr{
			Port:      int(number(w[2])),
			State:     map[string]verbs.PortState{"down": verbs.PortDown, "init": verbs.PortInit, "active": verbs.PortActive}[w[3]],
			LinkLayer: map[string]verbs.LinkLayer{"ib": verbs.LinkInfiniBand, "eth": verbs.LinkEthernet}[w[4]],
			LID:       uint16(number(w[5])), ActiveMTU: mtuCode(number(w[6])), MaxMTU: mtuCode(number(w[7])),
			ActiveWidth: uint8(number(w[8])), ActiveSpeed: uint8(number(w[9])),
		}})
	case "gid":
		e := verbs.GIDEntry{Index: int(number(w[3])), GID: netip.MustParseAddr(w[5]).As16(),
			Type: map[string]verbs.GIDType{"ib": verbs.GIDTypeIB, "v1": verbs.GIDTypeRoCEv1, "v2": verbs.GIDTypeRoCEv2}[w[4]]}
		if len(w) > 6 {
			e.Netdev = w[6]
		}
		p := &f.device(w[1]).Ports[number(w[2])-1]
		p.GIDs = append(p.GIDs, e)
	default:
		return fmt.Errorf("unknown fact %q", w[0])
	}
	return nil
}

// recordedEvents reads what a program printed of memevents.Status.
func recordedEvents(t *testing.T, name string) (r memevents.Report) {
	t.Helper()
	text, err := os.ReadFile("testdata/events/" + name + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	classes := map[string]memevents.Class{}
	for c := memevents.Class(0); c.String() != "unknown class"; c++ {
		classes[c.String()] = c
	}
	for line := range strings.Lines(string(text)) {
		w := strings.Fields(line)
		why := strings.Join(w[3:], " ")
		switch c, known := classes[w[1]]; {
		case w[0] == "monitor":
			r.Monitors = append(r.Monitors, memevents.Monitor{Name: w[1], Active: w[2] == "on", Why: why})
		case !known:
			t.Fatalf("%s: there is no class %s", name, w[1])
		default:
			r.Classes = append(r.Classes, memevents.Coverage{Class: c, By: strings.TrimPrefix(w[2], "-"), Why: why})
		}
	}
	if len(r.Classes) != len(classes) {
		t.Fatalf("%s: %d of %d classes; record it again", name, len(r.Classes), len(classes))
	}
	return r
}

func mtuCode(bytes uint64) verbs.MTU {
	for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
		if m.Bytes() == int(bytes) {
			return m
		}
	}
	panic("no such MTU")
}

func (f *fixture) device(name string) *device {
	for i := range f.devs {
		if f.devs[i].Name == name {
			return &f.devs[i]
		}
	}
	panic("no such device")
}

func (f *fixture) lookup(name string) (string, bool) {
	v, ok := f.vars[name]
	return v, ok
}

func (f *fixture) rlimit(resource int) (soft, hard uint64, err error) {
	l := f.limits[map[int]string{rlimitMemlock: "memlock"}[resource]]
	return l[0], l[1], nil
}

func (f *fixture) open(path string) error {
	if err := f.denied[path]; err != nil {
		return err
	}
	return nil
}

func (f *fixture) pin(_ string, bytes uint64) (bool, error) {
	if f.pinMax < bytes {
		return f.raised, &verbs.Error{Op: "ibv_reg_mr", Errno: syscall.ENOMEM}
	}
	return f.raised, nil
}

// Every file of testdata is a machine and the report that it must get.
func TestEachMachineGetsItsReport(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d machines, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			f, a := readFixture(t, file)
			r := examine(t.Context(), f.m, f.opts)
			got := fmt.Sprintf("%sexit code %d\n", r.Text(), r.Code)
			last := len(a.Files) - 1
			if a.Files[last].Name != "report" {
				t.Fatal("the last file must be the report")
			}
			if got == string(a.Files[last].Data) {
				return
			}
			if *update {
				a.Files[last].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("the report differs (-want +got):\n%s", cmp.Diff(string(a.Files[last].Data), got))
		})
	}
}

// The lines that matter are written here too, so that -update cannot lose them.
func TestTheRemedyFitsTheMachine(t *testing.T) {
	for _, c := range []struct {
		machine, check string
		status         Status
		detail, remedy string // parts
	}{
		{"infiniband", "gid", OK, "LID 0x7", ""},
		{"infiniband", "launcher", OK, "pmi1 (PMI_FD)", ""},
		{"infiniband", "memlock", OK, "registered 70 MiB, which a rank of a job of two locks, on mlx5_0", ""},
		{"roce", "gid", OK, "GID 3 10.1.0.5 RoCEv2: chosen", ""},
		{"roce", "mtu", Warn, "1024 of 4096 bytes, ens1f0np0 has 1500", "sudo ip link set ens1f0np0 mtu 4200"},
		{"kubernetes", "memlock", Warn, "RLIMIT_MEMLOCK is 8 MiB (hard limit 8 MiB): 62 MiB less than the 70 MiB", "containerd.service.d"},
		{"kubernetes", "cpu", Warn, "allows 1.5", "resources.limits.cpu"},
		{"kubernetes-ibv", "memlock", Fail, "RLIMIT_MEMLOCK is 8 MiB", "setcap cap_ipc_lock=ep"},
		{"wsl", "soft-roce", Warn, "has no rdma_rxe", "hack/softroce/vm"},
		{"no-library", "libibverbs", Warn, "not installed", "dnf install rdma-core libibverbs"},
		{"no-library-ibv", "libibverbs", Fail, "not installed", "dnf install"},
		{"no-provider", "device", Warn, "mlx5_0: the kernel has it, libibverbs does not: no provider knows it (its driver is mlx5_core)", "apt-get install rdma-core ibverbs-providers"},
		{"port-down", "port", Warn, "mlx5_0 port 1: init, InfiniBand", "opensm"},
		{"port-down", "port", Warn, "mlx5_1 port 1: down, Ethernet", "ip link set ens2 up"},
		{"no-gid", "gid", Warn, "none of the 0 entries", "ip addr add ADDRESS/PREFIX dev ens1"},
		{"batch-script", "cpu", Warn, "1 processor (Join raises GOMAXPROCS from 1 to 2, unless it is set", "srun -c 2"},
		{"quota", "cpu", Warn, "the quota of cgroup /docker/abc allows 1", "docker run --cpus=2"},
		{"denied", "device", Warn, "/dev/infiniband/uverbs0 cannot be opened: permission denied", "sudo chmod 0666 /dev/infiniband/uverbs0"},
		{"softroce-module", "device", Warn, "no RDMA device", "sudo hack/softroce/setup.sh"},
		{"no-rxe", "device", Warn, "no RDMA device", "use shared memory, or a kernel with rdma_rxe"},
		{"cloud-kernel", "soft-roce", Warn, "has no rdma_rxe", "linux-image-amd64"},
		{"no-shared-memory", "shared-memory", Fail, "operation not permitted", "seccomp"},
		{"half-launched", "launcher", Fail, "only one of RANK and WORLD_SIZE is set", "IBCONDUIT_BOOTSTRAP=self"},
		{"batch-script", "launcher", Warn, "SLURM_NTASKS=4 is set", "IBCONDUIT_BOOTSTRAP=self"},
		{"infiniband", "events-c", OK, "munmap mmap-fixed mremap madvise brk shm remap_file_pages by symbols", ""},
		{"infiniband", "events-go", OK, "raw-unmap raw-discard by userfaultfd", ""},
		{"infiniband", "events-rare", OK, "guard by symbols; raw-guard raw-shm", ""},
		{"kubernetes", "events-malloc", Warn, "no monitor sees libc-free libc-brk (userfaultfd: operation not permitted)", "seccompProfile"},
		{"kubernetes", "events-malloc", Warn, "registered for each operation", "IBCONDUIT_MEM_MONITORS=auto,patch"},
		{"kubernetes", "events-go", Warn, "no monitor sees raw-unmap raw-discard", "Unconfined"},
		{"quota", "events-go", Warn, "operation not permitted", "docker run --device /dev/userfaultfd"},
		{"old-kernel", "events-go", Warn, "operation not permitted", "sudo sysctl -w vm.unprivileged_userfaultfd=1"},
		{"old-kernel", "events-malloc", OK, "libc-free libc-brk by patch", ""},
		{"service", "events-go", Warn, "operation not permitted", "sudo chmod 0666 /dev/userfaultfd"},
		{"events-off", "events", Warn, "switched off (IBCONDUIT_MEM_EVENTS=no)", "unset IBCONDUIT_MEM_EVENTS"},
		{"events-zero", "events", Warn, "switched off (IBCONDUIT_MEM_EVENTS=no)", "unset IBCONDUIT_MEM_EVENTS"},
		{"events-misspelt", "events-env", Fail, `IBCONDUIT_MEM_EVENTS="nein" means nothing: jobs do not start`, "unset IBCONDUIT_MEM_EVENTS, or set it to yes or no"},
		{"events-misspelt", "events-env", Fail, `IBCONDUIT_MEM_LOG_LEVEL="loud"`, "off, error, warn, info or debug"},
		{"events-misspelt", "events", Warn, `IBCONDUIT_MEM_EVENTS="nein"`, "unset IBCONDUIT_MEM_EVENTS"},
		{"events-symbols", "events-go", Warn, "not chosen", "add userfaultfd to it"},
		{"events-static", "events", Warn, "not built", "CGO_ENABLED=1"},
		{"events-library", "events-c", Warn, "no monitor sees shm remap_file_pages", "ibrun --preload"},
		{"softverbs", "device", OK, "sv0, softverbs: a preloaded library, for tests", ""},
		{"memlock-raised", "memlock", OK, "registered 70 MiB, which a rank of a job of two locks, on rxe0 with the soft limit raised", ""},
	} {
		f, _ := readFixture(t, "testdata/"+c.machine+".txtar")
		r := examine(t.Context(), f.m, f.opts)
		if !slices.ContainsFunc(r.Checks, func(x Check) bool {
			return x.Name == c.check && x.Status == c.status && strings.Contains(x.Detail, c.detail) && strings.Contains(x.Remedy, c.remedy) &&
				(c.remedy == "") == (x.Remedy == "")
		}) {
			t.Errorf("%s: no line %s %s with %q and remedy %q in:\n%s", c.machine, c.status, c.check, c.detail, c.remedy, r.Text())
		}
	}
}

func TestEveryProblemHasARemedyAndNoSuccessHasOne(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		f, _ := readFixture(t, file)
		for _, c := range examine(t.Context(), f.m, f.opts).Checks {
			if (c.Status == OK) != (c.Remedy == "") {
				t.Errorf("%s: %+v", file, c)
			}
			if c.Detail == "" || strings.ContainsAny(c.Detail+c.Remedy, "\n") {
				t.Errorf("%s: not one line: %+v", file, c)
			}
		}
	}
}

func TestTheExitCodeSaysWhetherAJobCanRun(t *testing.T) {
	for machine, want := range map[string]int{"no-library": 0, "no-library-ibv": 1, "no-shared-memory": 1, "infiniband": 0, "half-launched": 1} {
		f, _ := readFixture(t, "testdata/"+machine+".txtar")
		if r := examine(t.Context(), f.m, f.opts); r.Code != want {
			t.Errorf("%s: exit code %d, want %d", machine, r.Code, want)
		}
	}
}

func TestWithoutFabricIBVNothingIsSaidOfRDMA(t *testing.T) {
	f, _ := readFixture(t, "testdata/no-library.txtar")
	f.opts.Fabric = "shm"
	r := examine(t.Context(), f.m, f.opts)
	for _, c := range r.Checks {
		if slices.Contains([]string{"libibverbs", "device", "memlock", "events-c", "events-go", "soft-roce"}, c.Name) {
			t.Errorf("with fabric shm: %+v", c)
		}
	}
	if r.Fabric != "shm" || r.Code != 0 {
		t.Errorf("fabric %q, code %d", r.Fabric, r.Code)
	}
}

func TestADeviceThatIsNotThereIsNamed(t *testing.T) {
	f, _ := readFixture(t, "testdata/infiniband.txtar")
	f.opts.Device = "mlx5_9"
	r := examine(t.Context(), f.m, f.opts)
	if !strings.Contains(r.Text(), "there is no device mlx5_9; the kernel has: mlx5_0") {
		t.Error(r.Text())
	}
}

func TestTheHostsRootIsReadThroughSysinfo(t *testing.T) {
	if m := thisMachine(); m.Root != sysinfo.Host() || m.kernel == "" || m.arch == "" {
		t.Errorf("this machine is %+v", m)
	}
}
