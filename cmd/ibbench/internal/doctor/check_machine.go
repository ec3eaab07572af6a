package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/sysinfo"
)

// defaultSegment is what a rank maps by default
// (conduit.Config.SegmentSize).
const defaultSegment = 64 << 20

func (x *examination) system() {
	parts := []string{x.Distro().Name, "kernel " + x.kernel, x.arch}
	switch {
	case sysinfo.WSL(x.kernel):
		parts = append(parts, "Windows Subsystem for Linux")
	case x.Container(x.env) != "":
		parts = append(parts, "in a "+x.Container(x.env))
	}
	if x.kernel == "unknown" {
		x.fail("system", strings.Join(parts, ", "), "run it on Linux")
		return
	}
	x.ok("system", strings.Join(parts, ", "))
}

func (x *examination) sharedMemory() {
	if err := x.share(); err != nil {
		x.fail("shared-memory", err.Error(), "ranks of a host hand memory to each other (memfd_create, abstract unix sockets, SCM_RIGHTS): allow these in the seccomp profile of the container or service")
		return
	}
	x.ok("shared-memory", fmt.Sprintf("works between processes of user %d in this network namespace (%s)", x.uid, x.Link("/proc/self/ns/net")))
}

func (x *examination) segment() {
	if err := x.mapping(defaultSegment); err != nil {
		x.fail("segment", fmt.Sprintf("the default segment of %s cannot be mapped: %v", size(defaultSegment), err), "as said there; or a smaller one: export IBCONDUIT_SEGMENT_SIZE=16M")
		return
	}
	free := sysinfo.KB(x.Table("/proc/meminfo")["MemAvailable"])
	x.ok("segment", fmt.Sprintf("the default of %s can be mapped; %s of memory are free", size(defaultSegment), size(free)))
}

func (x *examination) launcher() {
	var have []string
	for _, p := range []string{"srun", "mpiexec.hydra", "mpiexec", "mpirun", "ibrun"} {
		if x.find(p) != "" {
			have = append(have, p)
		}
	}
	installed := "no launcher installed; ibrun is part of this project"
	if len(have) > 0 {
		installed = "installed: " + strings.Join(have, ", ")
	}
	found, err := bootstrap.Detect(bootstrap.Options{Lookup: x.lookup})
	switch {
	case errors.Is(err, bootstrap.ErrAlone): // to be expected where ranks are started from here
		x.warn("launcher", "a program that is started here is refused: "+err.Error(), "as said there, or: export IBCONDUIT_BOOTSTRAP=self")
	case err != nil:
		x.fail("launcher", "Join would refuse these variables: "+err.Error(), "as said there, or: export IBCONDUIT_BOOTSTRAP=self")
	case found.Name == "self":
		x.ok("launcher", "this process was not launched: it is a job of one rank; "+installed)
	default:
		x.ok("launcher", "Join would use "+found.Name+"; "+installed)
	}
}

// processors: ranks spin while they wait, and one that spins holds the
// processor that its peer needs.
func (x *examination) processors() {
	quota, group := x.CPUQuota()
	detail := errtext.Count(x.cpus, "processor")
	usable := float64(x.cpus)
	if quota > 0 && quota < usable {
		usable = quota
		detail += fmt.Sprintf(", but the quota of cgroup %s allows %.4g", group.Path, quota)
	}
	if x.cpus == 1 {
		detail += sysinfo.OneProcessor
	}
	switch {
	case usable >= 2:
		x.ok("cpu", detail)
	case quota > 0 && quota == usable && x.Container(x.env) == "Kubernetes pod":
		x.warn("cpu", detail+": ranks that wait spin, and starve each other", "resources.limits.cpu: 2 or more in the pod")
	case quota > 0 && quota == usable:
		x.warn("cpu", detail+": ranks that wait spin, and starve each other", "ask for 2 processors or more: docker run --cpus=2, CPUQuota=200% of the service, srun -c 2")
	default:
		x.warn("cpu", detail+": ranks that wait spin, and starve each other", "give the machine or the process (taskset, srun -c 2) 2 processors or more")
	}
	if g := x.Text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); g != "" && g != "performance" {
		x.warn("governor", "processors are clocked by "+g+": figures vary", x.sudo("cpupower frequency-set -g performance"))
	}
}

// clock: reading some sources is a system call, or a trip to a device.
func (x *examination) clock() {
	source := x.Text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	cost := x.machine.clock()
	detail := fmt.Sprintf("%s, %d ns a reading", source, cost.Nanoseconds())
	fast := []string{"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "xen"}
	switch {
	case source == "":
		x.ok("clock", fmt.Sprintf("%d ns a reading", cost.Nanoseconds()))
	case slices.Contains(fast, source):
		x.ok("clock", detail)
	case strings.Contains(x.Text("/sys/devices/system/clocksource/clocksource0/available_clocksource"), "tsc"):
		x.warn("clock", detail+": each is a system call", x.sudo("sh -c 'echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource'"))
	default:
		x.warn("clock", detail+": each is a system call", "there is no faster one on this machine: figures below a microsecond contain it")
	}
}

func (x *examination) cgroups() {
	var parts []string
	remedies := x.Container(x.env) == "Kubernetes pod"
	room, most, group, ok := x.MemoryRoom()
	if ok {
		parts = append(parts, fmt.Sprintf("memory %s of %s left in %s", size(room), size(most), group))
	}
	tight := ok && room < 2*defaultSegment
	pids, mostPids, pidGroup, okPids := x.PidsRoom()
	if okPids {
		parts = append(parts, fmt.Sprintf("%d of %d threads left in %s", pids, mostPids, pidGroup))
	}
	if len(parts) == 0 {
		x.ok("cgroup", "no limit of memory or threads")
		return
	}
	detail := strings.Join(parts, "; ")
	switch {
	case tight && remedies:
		x.warn("cgroup", detail+": two ranks with the default segment do not fit", "resources.limits.memory of the pod, or export IBCONDUIT_SEGMENT_SIZE=16M")
	case tight:
		x.warn("cgroup", detail+": two ranks with the default segment do not fit", "ask for more (srun --mem, docker run --memory, MemoryMax=), or export IBCONDUIT_SEGMENT_SIZE=16M")
	case okPids && pids < 64:
		x.warn("cgroup", detail+": few for Go's threads", "raise pids.max (docker run --pids-limit, TasksMax=)")
	default:
		x.ok("cgroup", detail)
	}
}

func (x *examination) hugePages() {
	var pools []string
	const dir = "/sys/kernel/mm/hugepages"
	for _, n := range x.Names(dir) {
		kb, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(n, "hugepages-"), "kB"), 10, 64)
		total, _ := x.Figure(dir + "/" + n + "/nr_hugepages")
		if err != nil || total == 0 {
			continue
		}
		free, _ := x.Figure(dir + "/" + n + "/free_hugepages")
		pools = append(pools, fmt.Sprintf("%d of %d pages of %s free", free, total, size(kb<<10)))
	}
	thp := x.Text("/sys/kernel/mm/transparent_hugepage/enabled")
	mode := "off in this kernel"
	if _, rest, ok := strings.Cut(thp, "["); ok {
		mode, _, _ = strings.Cut(rest, "]")
	}
	switch {
	case len(pools) > 0:
		x.ok("huge-pages", strings.Join(pools, ", ")+"; transparent ones: "+mode)
	case mode == "always" || mode == "madvise":
		x.ok("huge-pages", "no pool is reserved; transparent ones: "+mode)
	default:
		x.warn("huge-pages", "no pool is reserved; transparent ones: "+mode+": segments use small pages", x.sudo("sysctl -w vm.nr_hugepages=512")+"   (1 GiB; in /etc/sysctl.d to keep it)")
	}
}

func (x *examination) numa() {
	nodes := 0
	for _, n := range x.Names("/sys/devices/system/node") {
		if rest, ok := strings.CutPrefix(n, "node"); ok && rest != "" && strings.Trim(rest, "0123456789") == "" {
			nodes++
		}
	}
	if nodes < 2 {
		x.ok("numa", "one node")
		return
	}
	cpus := func(list string) []int { // "0-3,8" (cpuset(7))
		all, _ := plan.CPUs(strings.TrimSpace(list)) // of what is no list nothing is known
		return all
	}
	allowed := cpus(x.Table("/proc/thread-self/status")["Cpus_allowed_list"])
	detail := errtext.Count(nodes, "node")
	for _, d := range x.Names(sysInfiniband) {
		node := x.Text(sysInfiniband + "/" + d + "/device/numa_node")
		if node == "" || node == "-1" {
			continue
		}
		detail += fmt.Sprintf(", %s at node %s", d, node)
		local := cpus(x.Text("/sys/devices/system/node/node" + node + "/cpulist"))
		if len(allowed) > 0 && len(local) > 0 && !slices.ContainsFunc(allowed, func(c int) bool { return slices.Contains(local, c) }) {
			remedy := "numactl --cpunodebind=" + node + " --preferred=" + node + " ..."
			if x.find("numactl") == "" {
				remedy += "   (" + x.install(numactlPackages) + ")"
			}
			x.warn("numa", detail+", but this process may only run elsewhere", remedy)
			return
		}
	}
	x.ok("numa", detail)
}

// files: every peer of the host costs a connection and a memfd (package
// internal/fabric/shm).
func (x *examination) files() {
	const least, comfortable = 32, 1024
	soft, hard, err := x.rlimit(rlimitNofile)
	switch {
	case err != nil:
		x.warn("files", "getrlimit: "+err.Error(), "")
	case soft < least:
		x.fail("files", fmt.Sprintf("only %s may be open", errtext.Count(soft, "file")), "ulimit -n 1024")
	case soft < comfortable:
		x.warn("files", fmt.Sprintf("only %s may be open (hard limit %d); each peer on the host takes two", errtext.Count(soft, "file"), hard), "ulimit -n "+strconv.FormatUint(min(hard, 65536), 10))
	default:
		x.ok("files", fmt.Sprintf("%d may be open", soft))
	}
}

// Numbers of linux/capability.h.
const (
	capNetAdmin  = 12
	capIPCLock   = 14
	capSysPtrace = 19
)

func (x *examination) capabilities() {
	c := x.Capabilities()
	var have, lack []string
	for _, k := range []struct {
		bit  int
		name string
	}{{capIPCLock, "IPC_LOCK"}, {capNetAdmin, "NET_ADMIN"}, {capSysPtrace, "SYS_PTRACE"}} {
		if c.Has(k.bit) {
			have = append(have, k.name)
		} else {
			lack = append(lack, k.name)
		}
	}
	var parts []string
	if len(have) > 0 {
		parts = append(parts, "effective: "+strings.Join(have, ", "))
	}
	if len(lack) > 0 {
		parts = append(parts, "not effective: "+strings.Join(lack, ", ")+" (no job needs them where memlock suffices)")
	}
	if len(have) > 0 && !c.Initial {
		parts = append(parts, "in a user namespace, where they do not lift limits of the machine")
	}
	x.ok("capabilities", strings.Join(parts, "; "))
}
