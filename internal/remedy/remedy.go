// Package remedy holds what to do about limits that several packages meet, so
// that an error and ibbench doctor say the same.
package remedy

import "strings"

// Starter is what started a process, as far as it decides where its limits
// come from.
type Starter int

const (
	// Unknown stands for all the others.
	Unknown Starter = iota
	// Shell is an interactive login, and launchers that go through ssh.
	Shell
	// Slurm is a step or a batch script.
	Slurm
	// Kubernetes is a pod.
	Kubernetes
	// Docker is docker, podman and their like.
	Docker
	// Systemd is a service of it.
	Systemd
)

// memlock is how to raise RLIMIT_MEMLOCK. Slurm hands the limit of the submitting
// shell to the job by default (slurm.conf(5), PropagateResourceLimits); Kubernetes
// has no field for it, containers inherit containerd's, and the capability
// IPC_LOCK reaches root only.
var memlock = map[Starter]string{
	Shell: "ulimit -l unlimited in the shell, and 'memlock unlimited' in /etc/security/limits.conf for ssh and mpiexec",
	Slurm: "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and LimitMEMLOCK=infinity in slurmd's unit",
	Kubernetes: "securityContext.capabilities.add: [IPC_LOCK] for a pod that runs as root; for other users " +
		"LimitMEMLOCK=infinity in " +
		"/etc/systemd/system/containerd.service.d/10-memlock.conf on the node, or setcap cap_ipc_lock=ep on the program",
	Docker:  "docker run --ulimit memlock=-1, or --cap-add=IPC_LOCK for root",
	Systemd: "LimitMEMLOCK=infinity in the unit",
}

// Memlock says how to raise RLIMIT_MEMLOCK.
func Memlock(s Starter) string {
	if how, ok := memlock[s]; ok {
		return how
	}
	return strings.Join([]string{memlock[Shell], "in Slurm " + memlock[Slurm], "in a service " + memlock[Systemd],
		"in a container " + memlock[Docker], "in Kubernetes " + memlock[Kubernetes]}, "; ")
}
