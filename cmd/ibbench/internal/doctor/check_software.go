package doctor

import (
	"strings"
)

// rxe is the state of Soft-RoCE in the kernel.
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
	switch {
	case x.Exists("/sys/module/rdma_rxe") || has("modules.builtin"):
		return rxeLoaded
	case has("modules.dep"):
		return rxeAvailable
	case x.Exists(dir + "/modules.dep"):
		return rxeAbsent
	}
	return rxeUnknown // perhaps a module of which this container does not see the files
}

const inVM = "hack/softroce/vm run COMMAND   (runs it in a VM that has a Soft-RoCE device)"

// softwareRemedy is the shortest way to a device on a machine without one.
func (x *examination) softwareRemedy() string {
	switch state := x.rxeState(); {
	case state == rxeLoaded || state == rxeAvailable:
		return x.sudo("hack/softroce/setup.sh") + "   (makes a Soft-RoCE device rxe0)"
	case !x.hasApt():
		return "use shared memory, or a kernel with rdma_rxe and then " + x.sudo("hack/softroce/setup.sh")
	}
	return inVM
}

// hasApt: the VM takes its kernel from the distribution, by apt.
func (x *examination) hasApt() bool { return x.Distro().Is("debian", "ubuntu") }

// software looks for ways to RDMA without hardware, where there is no device that works.
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
		x.warn("soft-roce", "this kernel ("+x.kernel+") has no rdma_rxe",
			"another kernel of the distribution, as linux-modules-extra of Ubuntu or linux-image-amd64 instead of Debian's cloud kernel; or "+x.softwareRemedy())
	case rxeUnknown:
		x.warn("soft-roce", "nothing here tells whether this kernel ("+x.kernel+") has rdma_rxe",
			x.sudo("modprobe rdma_rxe")+" tells; without it: "+x.softwareRemedy())
	}
}
