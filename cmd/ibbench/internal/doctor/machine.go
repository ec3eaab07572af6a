package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/remedy"
	"github.com/ibconduit/conduit/internal/sysinfo"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/verbs"
)

// machine is everything the checks ask. Tests put another in its place.
type machine struct {
	sysinfo.Root
	lookup func(name string) (string, bool) // environment
	uid    int
	kernel string // uname -r
	arch   string // uname -m
	cpus   int    // that the process may run on

	rlimit  func(resource int) (soft, hard uint64, err error)
	open    func(path string) error // may this process open it to read and write?
	share   func() error            // tries what package shm needs
	mapping func(bytes int64) error // maps a segment of that size
	clock   func() time.Duration    // cost of one reading
	devices func() ([]device, error)
	events  func() memevents.Report // which monitors see changes of the address space
	locked  func() (uint64, error)  // what a rank of two locks, with this environment
	// pin registers up to max bytes and returns how many went.
	pin func(device string, max uint64) (pinned uint64, raised bool, err error)
}

// device is what libibverbs knows of one.
type device struct {
	Name     string
	Firmware string
	Err      error // it could not be opened or asked
	Ports    []port
}

type port struct {
	Attr verbs.PortAttr
	GIDs []verbs.GIDEntry
	Err  error
}

func (m *machine) env(name string) string {
	v, _ := m.lookup(name)
	return v
}

// find looks for a program where the shell would, and where administrators' programs are.
func (m *machine) find(program string) string {
	return m.Find(m.env("PATH")+":/usr/sbin:/sbin:/usr/local/sbin", program)
}

// starter guesses what decides this process's limits.
func (m *machine) starter() remedy.Starter {
	switch c := m.Container(m.env); {
	case strings.HasPrefix(c, "Kubernetes"):
		return remedy.Kubernetes
	case m.env("SLURM_JOB_ID") != "":
		return remedy.Slurm
	case c != "":
		return remedy.Docker
	case m.env("INVOCATION_ID") != "" && m.env("SSH_CONNECTION") == "" && m.env("TERM") == "":
		return remedy.Systemd
	}
	return remedy.Shell
}

// software names of the distributions, by what is needed.
type software struct{ deb, rpm, suse, arch, alpine string }

var (
	libraryPackages  = software{"rdma-core ibverbs-providers", "rdma-core libibverbs", "rdma-core libibverbs1", "rdma-core", "rdma-core"}
	perftestPackages = software{"perftest", "perftest", "perftest", "", ""}
	numactlPackages  = software{"numactl", "numactl", "numactl", "numactl", "numactl-tools"}
)

// install is the command that installs packages on this distribution.
func (m *machine) install(s software) string {
	d := m.Distro()
	var cmd, packages string
	switch {
	case d.Is("debian", "ubuntu"):
		cmd, packages = "apt-get install", s.deb
	case d.Is("fedora", "rhel", "centos"):
		cmd, packages = "dnf install", s.rpm
	case d.Is("suse", "opensuse", "sles"):
		cmd, packages = "zypper install", s.suse
	case d.Is("arch"):
		cmd, packages = "pacman -S", s.arch
	case d.Is("alpine"):
		cmd, packages = "apk add", s.alpine
	}
	if packages == "" {
		return fmt.Sprintf("install what Debian calls %s", s.deb)
	}
	return m.sudo(cmd + " " + packages)
}

// sudo is the command as this user must give it.
func (m *machine) sudo(cmd string) string {
	if m.uid == 0 {
		return cmd
	}
	return "sudo " + cmd
}

// size prints bytes with a binary unit.
func size(n uint64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB"}
	if n < 1024 {
		return errtext.Count(n, "byte")
	}
	v := float64(n) / 1024
	for _, u := range units {
		if v < 1024 || u == "TiB" {
			return strings.Replace(fmt.Sprintf("%.1f %s", v, u), ".0 ", " ", 1)
		}
		v /= 1024
	}
	return ""
}

// limit prints a resource limit.
func limit(n uint64) string {
	if n == unlimited {
		return "unlimited"
	}
	return size(n)
}

const unlimited = ^uint64(0) // RLIM_INFINITY
