package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/sysinfo"
)

// defaultSegment is what a rank maps by default (conduit.Config.SegmentSize).
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

// sharedMemory has two ranks meet, with the default segment.
func (x *examination) sharedMemory() {
	if err := x.share(); err != nil {
		x.fail("shared-memory", strings.ReplaceAll(err.Error(), "\n", "; "),
			"as said there; ranks of a host hand memory to each other (memfd_create, abstract unix sockets, SCM_RIGHTS): allow these in the seccomp profile of the container or service. A smaller segment: export IBCONDUIT_SEGMENT_SIZE=16M")
		return
	}
	free := sysinfo.KB(x.Table("/proc/meminfo")["MemAvailable"])
	x.ok("shared-memory", fmt.Sprintf("two ranks of user %d with segments of %s work in this network namespace (%s); %s of memory are free", x.uid, size(defaultSegment), x.Link("/proc/self/ns/net"), size(free)))
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
		x.warn("launcher", "a program that is started here is refused: "+err.Error(),
			"as said there, or: export IBCONDUIT_BOOTSTRAP=self")
	case err != nil:
		x.fail("launcher", "Join would refuse these variables: "+err.Error(),
			"as said there, or: export IBCONDUIT_BOOTSTRAP=self")
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
	if usable >= 2 {
		x.ok("cpu", detail)
		return
	}
	remedy := "give the machine or the process 2 processors or more: taskset, srun -c 2, docker run --cpus=2, CPUQuota=200% of the service"
	if x.Container(x.env) == "Kubernetes pod" {
		remedy = "resources.limits.cpu: 2 or more in the pod"
	}
	x.warn("cpu", detail+": ranks that wait spin, and starve each other", remedy)
}

func (x *examination) cgroups() {
	var parts []string
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
	case tight:
		x.warn("cgroup", detail+": two ranks with the default segment do not fit",
			"ask for more (srun --mem, docker run --memory, MemoryMax=, resources.limits.memory of a pod), or export IBCONDUIT_SEGMENT_SIZE=16M")
	case okPids && pids < 64:
		x.warn("cgroup", detail+": few for Go's threads", "raise pids.max (docker run --pids-limit, TasksMax=)")
	default:
		x.ok("cgroup", detail)
	}
}
