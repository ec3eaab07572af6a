package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ibconduit/conduit/internal/remedy"
	"github.com/ibconduit/conduit/internal/sysinfo"
	"github.com/ibconduit/conduit/verbs"
)

// sysInfiniband is where the kernel shows RDMA devices
// (Documentation/ABI/stable/sysfs-class-infiniband).
const sysInfiniband = "/sys/class/infiniband"

// library looks for libibverbs and its providers without loading them. A later check lists
// devices; then it is loaded.
func (x *examination) library() {
	if file := x.env(verbs.EnvLibrary); file != "" {
		if strings.Contains(file, "/") && !x.Exists(file) {
			x.missing("libibverbs", verbs.EnvLibrary+" names "+file+", which is not there", "correct or unset "+verbs.EnvLibrary)
			return
		}
		x.ok("libibverbs", file+", which "+verbs.EnvLibrary+" names")
		return
	}
	dir, version := x.findLibrary()
	if dir == "" {
		x.missing("libibverbs", "not installed", x.installLibrary())
		return
	}
	x.ok("libibverbs", fmt.Sprintf("%s in %s", version, dir))
	providers := x.providers(dir)
	if len(providers) == 0 {
		x.missing("providers", "none in "+dir+"/libibverbs: no device can be used", x.installLibrary())
		return
	}
	x.ok("providers", strings.Join(providers, " "))
}

var libraryVersion = regexp.MustCompile(`^libibverbs\.so\.(\d+\.\d+\.(\d+)\.\d+)$`)

// findLibrary returns the directory of libibverbs.so.1 and its version. The third number of the
// file's name is rdma-core's (its CMakeLists.txt: IBVERBS_PABI..., PACKAGE_VERSION).
func (x *examination) findLibrary() (dir, version string) {
	dirs := strings.Split(x.env("LD_LIBRARY_PATH"), ":")
	dirs = append(dirs, "/usr/lib/"+x.arch+"-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64", "/lib", "/usr/local/lib",
		"/usr/local/lib64")
	for _, d := range dirs {
		if !strings.HasPrefix(d, "/") || !x.Exists(d+"/libibverbs.so.1") {
			continue
		}
		for _, n := range x.Names(d) {
			if m := libraryVersion.FindStringSubmatch(n); m != nil {
				return d, fmt.Sprintf("%s (rdma-core %s)", m[1], m[2])
			}
		}
		return d, "of unknown version"
	}
	return "", ""
}

// providers are named libmlx5-rdmav34.so, or libmlx5.so.1 where they are libraries too.
func (x *examination) providers(dir string) (names []string) {
	for _, n := range x.Names(dir + "/libibverbs") {
		if name, _, ok := strings.Cut(strings.TrimPrefix(n, "lib"), "-rdmav"); ok && strings.HasSuffix(n, ".so") {
			names = append(names, name)
		}
	}
	return names
}

// devices examines what libibverbs shows, and what only the kernel shows.
func (x *examination) devices() {
	devs, err := x.machine.devices()
	inKernel := x.Names(sysInfiniband)
	if x.opts.Device != "" {
		if devs = slices.DeleteFunc(devs, func(d device) bool { return d.Name != x.opts.Device }); err == nil &&
			len(devs) == 0 {
			x.missing("device", fmt.Sprintf("there is no device %s; the kernel has: %s", x.opts.Device,
				cmp.Or(strings.Join(inKernel, ", "), "none")), "name one of those, or none")
			return
		}
	}
	if err != nil {
		x.libraryFailed(err, inKernel)
		return
	}
	if len(devs) == 0 && len(inKernel) == 0 {
		x.missing("device", "no RDMA device on this machine", x.softwareRemedy())
		return
	}
	for _, name := range inKernel {
		if x.opts.Device == "" && !slices.ContainsFunc(devs, func(d device) bool { return d.Name == name }) {
			x.unseen(name)
		}
	}
	for _, d := range devs {
		x.device(d)
	}
}

func (x *examination) libraryFailed(err error, inKernel []string) {
	var ve *verbs.Error
	detail, todo := err.Error(), ""
	if errors.As(err, &ve) {
		todo = ve.Remedy
		switch {
		case errors.Is(err, verbs.ErrNotSupported):
			detail = ve.Detail + ": no RDMA"
		case errors.Is(err, verbs.ErrNoLibrary):
			detail = "libibverbs cannot be loaded: " + ve.Detail
			if x.env(verbs.EnvLibrary) == "" {
				todo = x.installLibrary()
			}
		}
	}
	if len(inKernel) > 0 {
		detail += "; the kernel has " + strings.Join(inKernel, ", ")
	}
	x.missing("device", detail, todo)
}

// unseen is a device of the kernel's that libibverbs does not list: either
// programs cannot reach it, or no provider knows it.
func (x *examination) unseen(name string) {
	what := name + ": the kernel has it, libibverbs does not"
	switch uverbs := x.uverbs(name); {
	case uverbs == "" && x.Container(x.env) != "":
		x.missing("device", what+": /sys/class/infiniband_verbs has no device for it",
			"pass /dev/infiniband into the container")
	case uverbs == "":
		x.missing("device", what+": the module ib_uverbs is not loaded", x.sudo("modprobe ib_uverbs"))
	default:
		x.missing("device", what+": no provider knows it"+x.driverOf(name), x.installLibrary())
	}
}

// uverbs is the character device of an RDMA device.
func (x *examination) uverbs(name string) string {
	for _, u := range x.Names("/sys/class/infiniband_verbs") {
		if x.Text("/sys/class/infiniband_verbs/"+u+"/ibdev") == name {
			return "/dev/infiniband/" + u
		}
	}
	return ""
}

func (x *examination) driverOf(name string) string {
	if d := x.Link(sysInfiniband + "/" + name + "/device/driver"); d != "" {
		return " (its driver is " + path.Base(d) + ")"
	}
	return ""
}

// isSoftware reports whether the processor does the device's work.
func (x *examination) isSoftware(name string) bool {
	return strings.HasPrefix(name, "rxe") || strings.HasPrefix(name, "siw") || x.isPreloaded(name) ||
		strings.Contains(x.Link(sysInfiniband+"/"+name), "/virtual/")
}

// isPreloaded reports whether the device is hack/softverbs, a library in this process.
func (x *examination) isPreloaded(name string) bool {
	return x.Text(sysInfiniband+"/"+name+"/hca_type") == "softverbs"
}

func (x *examination) device(d device) {
	if u := x.uverbs(d.Name); u != "" {
		if err := x.open(u); err != nil {
			x.missing("device", fmt.Sprintf("%s: %s cannot be opened: %v", d.Name, u, err), x.openRemedy(err, u))
			return
		}
	}
	if d.Err != nil {
		x.missing("device", fmt.Sprintf("%s: %v", d.Name, d.Err), "")
		return
	}
	detail := d.Name
	if x.isPreloaded(d.Name) {
		detail += ", softverbs: a preloaded library, for tests and for measuring what is above a device; it reaches processes of this host only"
	} else if x.isSoftware(d.Name) {
		detail += ", software: its figures say nothing about hardware"
	} else if d.Firmware != "" {
		detail += ", firmware " + d.Firmware
	}
	if u := x.uverbs(d.Name); u != "" {
		detail += ", " + u + " can be opened"
	}
	if l, group := x.RDMALimit(d.Name); l != "" {
		x.warn("device", fmt.Sprintf("%s; cgroup %s limits it to %s", detail, group, l),
			"raise rdma.max of the group, or use fewer workers (IBCONDUIT_WORKERS)")
	} else {
		x.ok("device", detail)
	}
	for _, p := range d.Ports {
		x.port(d.Name, p)
	}
}

func (x *examination) openRemedy(err error, path string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist) || x.Container(x.env) != "":
		switch x.Container(x.env) {
		case "Kubernetes pod":
			return "let a device plugin give it to the pod: resources.limits of rdma/..."
		case "":
			return x.sudo("udevadm trigger --subsystem-match=infiniband_verbs")
		}
		return "docker run --device=/dev/infiniband ..."
	case errors.Is(err, fs.ErrPermission):
		return x.sudo("chmod 0666 "+path) + "   (rdma-core's udev rules do so for good)"
	}
	return ""
}

// port examines a port: is it up, by which address, with which MTU.
func (x *examination) port(dev string, p port) {
	a := p.Attr
	name := fmt.Sprintf("%s port %d", dev, a.Port)
	if p.Err != nil {
		x.missing("port", fmt.Sprintf("%s: %v", name, p.Err), "")
		return
	}
	detail := fmt.Sprintf("%s: %s, %s", name, a.State, a.LinkLayer)
	if mbps := verbs.LinkRate(a.ActiveWidth, a.ActiveSpeed); mbps > 0 && !x.isSoftware(dev) {
		detail += fmt.Sprintf(", %.4g Gb/s", float64(mbps)/1000)
	}
	netdev := x.netdev(dev, p)
	if netdev != "" {
		detail += ", on " + netdev
	}
	if a.State != verbs.PortActive {
		x.missing("port", detail, x.portRemedy(a, netdev))
		return
	}
	x.ok("port", detail)
	if x.gid(name, p, netdev) {
		if x.usable == "" {
			x.usable = dev
		}
		x.mtu(name, a, netdev)
	}
}

// netdev is the Ethernet interface of a port.
func (x *examination) netdev(dev string, p port) string {
	for _, g := range p.GIDs {
		if g.Netdev != "" {
			return g.Netdev
		}
	}
	if p.Attr.LinkLayer != verbs.LinkEthernet {
		return ""
	}
	if parent := x.Text(sysInfiniband + "/" + dev + "/parent"); parent != "" { // of rdma_rxe
		return parent
	}
	if n := x.Names(sysInfiniband + "/" + dev + "/device/net"); len(n) > 0 {
		return n[0]
	}
	return ""
}

func (x *examination) portRemedy(a verbs.PortAttr, netdev string) string {
	switch {
	case a.LinkLayer == verbs.LinkEthernet:
		if netdev == "" {
			netdev = "INTERFACE"
		}
		return x.sudo("ip link set "+netdev+" up") + "; then look at the cable and the switch"
	case a.State == verbs.PortInit || a.State == verbs.PortArmed:
		return "no subnet manager has activated it: start opensm on one host, or ask the switch's administrator"
	}
	return "look at the cable (ibstat says what the port sees)"
}

// gid says which address is used and why.
func (x *examination) gid(name string, p port, netdev string) bool {
	index := verbs.AutoGID
	if n, err := strconv.Atoi(x.opts.GID); err == nil {
		index = n
	}
	c, err := verbs.ChooseGID(p.Attr, p.GIDs, index)
	if err != nil {
		var ve *verbs.Error
		detail, todo := err.Error(), ""
		if errors.As(err, &ve) {
			detail, todo = ve.Detail, ve.Remedy
		}
		if p.Attr.LinkLayer == verbs.LinkEthernet && index == verbs.AutoGID && netdev != "" {
			todo = x.sudo("ip addr add ADDRESS/PREFIX dev " + netdev)
		}
		x.missing("gid", name+": "+detail, todo)
		return false
	}
	detail := name + ": " + strings.Join(brief(c.Reasons), "; ")
	if x.lostAddress(c, netdev) {
		x.missing("gid", fmt.Sprintf("%s; but %s has no such address any more: it cannot be reached", detail, netdev),
			x.sudo(fmt.Sprintf("ip addr add ADDRESS/PREFIX dev %s", netdev)))
		return false
	}
	local := c.GID.Addr().IsLinkLocalUnicast() || c.Type == verbs.GIDTypeRoCEv1
	if p.Attr.LinkLayer == verbs.LinkEthernet && local {
		x.warn("gid", detail, x.sudo(fmt.Sprintf("ip addr add ADDRESS/PREFIX dev %s", cmp.Or(netdev, "INTERFACE"))))
		return true
	}
	x.ok("gid", detail)
	return true
}

// lostAddress: the kernel keeps a port's link-local GID, which it makes of the hardware address, in
// the table whether or not the interface has that address (default GIDs,
// drivers/infiniband/core/roce_gid_mgmt.c). All others go with their address.
func (x *examination) lostAddress(c verbs.GIDChoice, netdev string) bool {
	a := c.GID.Addr()
	if c.Type != verbs.GIDTypeRoCEv2 || !a.Is6() || !a.IsLinkLocalUnicast() || !x.Exists("/sys/class/net/"+netdev) {
		return false
	}
	own := fmt.Sprintf("%x", a.As16())
	for line := range strings.Lines(x.Text("/proc/net/if_inet6")) { // address, index, prefix, scope, flags, interface
		if w := strings.Fields(line); len(w) == 6 && w[0] == own && w[5] == netdev {
			return false
		}
	}
	return true
}

// brief keeps a line readable where a port has hundreds of addresses.
func brief(reasons []string) []string {
	const most = 4
	if len(reasons) <= most {
		return reasons
	}
	return append(slices.Clone(reasons[:most]), fmt.Sprintf("and %d more", len(reasons)-most))
}

// roceMTU is the interface's MTU that carries 4096 bytes of payload with all
// headers of RoCEv2 (drivers/infiniband/sw/rxe/rxe_param.h, RXE_MAX_HDR_LENGTH 80, and its like).
const roceMTU = 4200

// mtu compares the bytes of a packet with the most that the port could carry.
func (x *examination) mtu(name string, a verbs.PortAttr, netdev string) {
	detail := fmt.Sprintf("%s: %s of %s bytes", name, a.ActiveMTU, a.MaxMTU)
	if netdev != "" {
		if n := x.Text("/sys/class/net/" + netdev + "/mtu"); n != "" {
			detail += fmt.Sprintf(", %s has %s", netdev, n)
		}
	}
	switch {
	case a.ActiveMTU >= a.MaxMTU:
		x.ok("mtu", detail)
	case a.LinkLayer == verbs.LinkEthernet:
		x.warn("mtu", detail+": more packets than need be",
			x.sudo(fmt.Sprintf("ip link set %s mtu %d", cmp.Or(netdev, "INTERFACE"), roceMTU))+
				"   (9000 where the switch allows; on all hosts)")
	default:
		x.warn("mtu", detail+": more packets than need be", "mtu=5 for the partition in opensm's partitions.conf")
	}
}

// memlock compares the limit with what a rank locks, and registers as much where there is a device.
func (x *examination) memlock() {
	soft, hard, err := x.rlimit(rlimitMemlock)
	if err != nil {
		x.missing("memlock", "getrlimit: "+err.Error(), "")
		return
	}
	caps := x.Capabilities()
	exempt := caps.LocksAll()
	need, err := x.locked()
	if err != nil {
		x.missing("memlock", "Join would refuse this environment: "+err.Error(), "")
		return
	}
	figures := fmt.Sprintf("RLIMIT_MEMLOCK is %s (hard limit %s)", limit(soft), limit(hard))
	if exempt {
		figures += ", which CAP_IPC_LOCK lifts"
	} else if caps.Has(capIPCLock) {
		figures += ", and CAP_IPC_LOCK of a user namespace does not lift it"
	}
	pinned := sysinfo.KB(x.Table("/proc/thread-self/status")["VmPin"])
	if pinned > 0 {
		figures += fmt.Sprintf(", %s are pinned", size(pinned))
	}
	short := ""
	if room := hard - min(pinned, hard); !exempt && hard != unlimited && room < need {
		short = fmt.Sprintf(": %s less than the %s that a rank of a job of two locks", size(need-room), size(need))
	}
	todo := remedy.Memlock(x.starter())
	switch {
	case short != "":
		x.unpins = x.usable != ""
		x.missing("memlock", figures+short, todo)
	case x.usable == "":
		x.ok("memlock", figures+" (nothing to register memory with here)")
	default:
		x.memlockByTrying(x.usable, need, figures, todo)
	}
}

// capIPCLock is CAP_IPC_LOCK of linux/capability.h.
const capIPCLock = 14

// memlockByTrying registers as much memory as a rank locks.
func (x *examination) memlockByTrying(dev string, need uint64, figures, todo string) {
	raised, err := x.pin(dev, need)
	detail := fmt.Sprintf("%s, which a rank of a job of two locks, on %s", size(need), dev)
	if raised {
		detail += " with the soft limit raised to the hard one, as Join does where a rank needs verbs"
	}
	if err == nil {
		x.ok("memlock", "registered "+detail+"; "+figures)
		return
	}
	if x.unpins = true; !errors.Is(err, syscall.ENOMEM) {
		todo = ""
	}
	x.missing("memlock", "cannot register "+detail+": "+err.Error()+"; "+figures, todo)
}
