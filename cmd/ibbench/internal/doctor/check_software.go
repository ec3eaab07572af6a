package doctor

import (
	"compress/gzip"
	"io"
	"strings"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// rxe is what the kernel has of Soft-RoCE.
type rxe int

const (
	rxeUnknown rxe = iota // nothing tells
	rxeAbsent
	rxeAvailable // as a module
	rxeLoaded
)

// rxeState reads the kernel's lists; nothing is loaded.
func (x *examination) rxeState() rxe {
	dir := "/lib/modules/" + x.kernel
	if !x.Exists(dir) {
		dir = "/usr" + dir
	}
	has := func(file string) bool { return strings.Contains(x.Text(dir+"/"+file), "/rdma_rxe.ko") }
	config := x.kernelConfig()
	switch {
	case x.Exists("/sys/module/rdma_rxe") || has("modules.builtin"):
		return rxeLoaded
	case has("modules.dep"):
		return rxeAvailable
	case x.Exists(dir+"/modules.dep") || config != "" && !strings.Contains(config, "CONFIG_RDMA_RXE="):
		return rxeAbsent
	case strings.Contains(config, "CONFIG_RDMA_RXE=y"):
		return rxeLoaded
	}
	return rxeUnknown // perhaps a module of which this container does not see the files
}

// kernelConfig is the kernel's configuration, "" when it does not tell.
func (x *examination) kernelConfig() string {
	if f, err := x.FS.Open("proc/config.gz"); err == nil {
		defer f.Close()
		if z, err := gzip.NewReader(f); err == nil {
			const most = 4 << 20
			if b, err := io.ReadAll(io.LimitReader(z, most)); err == nil {
				return string(b)
			}
		}
	}
	return x.Text("/boot/config-" + x.kernel)
}

// moduleRemedy says how to get Soft-RoCE into this kernel, "" where there is no way.
func (x *examination) moduleRemedy() string {
	d := x.Distro()
	switch {
	case sysinfo.WSL(x.kernel), x.Container(x.env) != "":
		return "" // the kernel is not this distribution's
	case d.Is("ubuntu"):
		return x.sudo("apt-get install linux-modules-extra-" + x.kernel)
	case d.Is("debian") && strings.Contains(x.kernel, "-cloud-"):
		return x.sudo("apt-get install linux-image-"+debianArch(x.arch)) + " and boot it: the cloud kernel leaves it out"
	}
	return ""
}

func debianArch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

const inVM = "hack/softroce/vm run COMMAND   (runs it in a VM that has a Soft-RoCE device)"

// softwareRemedy is the shortest way to a device on a machine without one.
func (x *examination) softwareRemedy() string {
	switch state := x.rxeState(); {
	case state == rxeLoaded || state == rxeAvailable:
		return x.sudo("hack/softroce/setup.sh") + "   (makes a Soft-RoCE device rxe0)"
	case !x.hasApt():
		return orWord(x.moduleRemedy(), "use shared memory, or a kernel with rdma_rxe and then "+x.sudo("hack/softroce/setup.sh"))
	}
	return inVM
}

// hasApt: the VM takes its kernel from the distribution, by apt.
func (x *examination) hasApt() bool { return x.Distro().Is("debian", "ubuntu") }

// software looks for ways to RDMA without hardware, where there is no device
// that works.
func (x *examination) software() {
	if x.usable != "" {
		return
	}
	switch x.rxeState() {
	case rxeLoaded:
		x.ok("soft-roce", "this kernel has rdma_rxe, loaded")
	case rxeAvailable:
		x.ok("soft-roce", "this kernel has rdma_rxe as a module, not loaded")
	case rxeAbsent:
		x.warn("soft-roce", "this kernel ("+x.kernel+") has no rdma_rxe", orWord(x.moduleRemedy(), x.softwareRemedy()))
	case rxeUnknown:
		x.warn("soft-roce", "nothing here tells whether this kernel ("+x.kernel+") has rdma_rxe", x.sudo("modprobe rdma_rxe")+" tells; without it: "+x.softwareRemedy())
	}
	x.vm()
}

// vm: the RDMA tests run in one where there is no device.
func (x *examination) vm() {
	if !x.hasApt() {
		return
	}
	qemu := "qemu-system-x86_64"
	if x.arch == "aarch64" {
		qemu = "qemu-system-aarch64"
	}
	if x.find(qemu) == "" {
		x.warn("vm", qemu+" is not installed: hack/softroce/vm cannot make a machine with Soft-RoCE", x.sudo("hack/softroce/packages.sh install"))
		return
	}
	kvm := "no /dev/kvm, so it emulates: slow, but right"
	if x.Exists("/dev/kvm") {
		kvm = "/dev/kvm can be opened"
		if err := x.open("/dev/kvm"); err != nil {
			kvm = "/dev/kvm cannot be opened (" + err.Error() + "), so it emulates: slow, but right"
		}
	}
	x.ok("vm", qemu+" is installed; "+kvm)
}
