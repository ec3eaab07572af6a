package doctor

import (
	"fmt"
	"strings"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/remedy"
	"github.com/ibconduit/conduit/internal/sysinfo"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/verbs"
)

// machine is everything that checks look at. Tests put another in its place.
type machine struct {
	sysinfo.Root
	lookup func(name string) (string, bool) // environment
	uid    int
	kernel string // uname -r
	arch   string // uname -m
	cpus   int    // that the process may run on

	rlimit  func(resource int) (soft, hard uint64, err error)
	open    func(path string) error // may this process open it to read and write?
	share   func() error            // has two ranks meet through shared memory
	devices func() ([]device, error)
	events  func() memevents.Report // which monitors see changes of the address space
	locked  func() (uint64, error)  // what a rank of two locks, with this environment
	// pin registers memory. raised says that the soft limit was raised for it.
	pin func(device string, bytes uint64) (raised bool, err error)
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

// libraryPackages have libibverbs and its providers, by the command that installs them.
var libraryPackages = []struct {
	distro  []string
	install string
}{
	{[]string{"debian", "ubuntu"}, "apt-get install rdma-core ibverbs-providers"},
	{[]string{"fedora", "rhel", "centos"}, "dnf install rdma-core libibverbs"},
	{[]string{"suse", "opensuse", "sles"}, "zypper install rdma-core libibverbs1"},
	{[]string{"arch"}, "pacman -S rdma-core"}, {[]string{"alpine"}, "apk add rdma-core"},
}

// installLibrary is the command for this distribution.
func (m *machine) installLibrary() string {
	for _, p := range libraryPackages {
		if m.Distro().Is(p.distro...) {
			return m.sudo(p.install)
		}
	}
	return "install what Debian calls rdma-core and ibverbs-providers"
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
