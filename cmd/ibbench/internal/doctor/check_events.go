package doctor

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/ibconduit/conduit/memevents"
)

// eventGroups are the classes that stand and fall together, as a user meets them, and what follows
// where none is seen. Few monitors or none see the classes of no group.
var eventGroups = []struct {
	name    string
	calls   string
	classes memevents.Classes
	without string
}{
	{"events-c", "calls of C code through the libc", memevents.CalledFromC,
		"nothing can be cached, each operation registers"},
	{"events-malloc", "what free and malloc_trim give back", memevents.Set(memevents.LibcFree, memevents.LibcBrk),
		"buffers from malloc are registered for each operation"},
	{
		"events-go", "calls of Go's runtime and of package syscall", memevents.Set(memevents.RawUnmap, memevents.RawDiscard),
		"mappings of package syscall and memory of unknown origin are registered for each operation; the Go heap's are kept alive with their registrations",
	},
}

// memoryEvents reports, for each group of calls that can take registered memory away, which monitor
// reports them to the registration cache. It speaks of this program: others are seen alike if they
// were built alike.
func (x *examination) memoryEvents() {
	for _, v := range memevents.Variables() {
		if !v.Valid(x.env(v.Name)) {
			x.fail("events-env", fmt.Sprintf("%s=%q means nothing: jobs do not start", v.Name, x.env(v.Name)),
				"unset "+v.Name+", or set it to "+v.Want)
		}
	}
	r := x.events()
	if why, off := nothingWatched(r); off {
		x.warn("events", "changes of the address space are not watched ("+why+"): nothing can be cached, each operation on the program's own memory registers it",
			x.eventRemedy(r, memevents.CalledFromC, memevents.CalledFromC))
		return
	}
	rest := ^memevents.Classes(0)
	for _, g := range eventGroups {
		rest &^= g.classes
		seen, missing := divide(r, g.classes)
		if missing == 0 {
			x.ok(g.name, g.calls+": "+seen)
			continue
		}
		detail := fmt.Sprintf("%s: no monitor sees %v (%s): %s", g.calls, missing, x.whyUnseen(r, missing), g.without)
		x.warn(g.name, detail, x.eventRemedy(r, g.classes, missing))
	}
	seen, missing := divide(r, rest)
	if seen != "" {
		seen += "; "
	}
	x.ok("events-rare", fmt.Sprintf("%s%v: seen by no monitor, not to be done to registered memory", seen, missing))
}

// divide says which monitor sees which of the classes, and which are not seen.
func divide(r memevents.Report, of memevents.Classes) (seen string, missing memevents.Classes) {
	var names []string
	by := map[string]memevents.Classes{}
	for _, c := range r.Classes {
		switch one := memevents.Set(c.Class); {
		case !of.Has(one):
		case c.By == "":
			missing |= one
		default:
			if by[c.By] == 0 {
				names = append(names, c.By)
			}
			by[c.By] |= one
		}
	}
	for i, n := range names {
		names[i] = fmt.Sprintf("%v by %s", by[n], n)
	}
	return strings.Join(names, ", "), missing
}

// nothingWatched says why nothing is seen, if so.
func nothingWatched(r memevents.Report) (why string, off bool) {
	for _, c := range r.Classes {
		if c.By != "" {
			return "", false
		}
	}
	if len(r.Classes) > 0 {
		why = r.Classes[0].Why
	}
	return why, true
}

func monitor(r memevents.Report, name string) memevents.Monitor {
	i := slices.IndexFunc(r.Monitors, func(m memevents.Monitor) bool { return m.Name == name })
	if i < 0 {
		return memevents.Monitor{Name: name, Why: "not there"}
	}
	return r.Monitors[i]
}

// whyUnseen gives one reason, short: the remedy is said apart.
func (x *examination) whyUnseen(r memevents.Report, missing memevents.Classes) string {
	if missing&memevents.CalledFromC != 0 {
		for _, c := range r.Classes {
			if missing.Has(memevents.Set(c.Class)) {
				return c.Why
			}
		}
	}
	why, _, _ := strings.Cut(monitor(r, memevents.MonitorUserfaultfd).Why, " (grant")
	name := memevents.MonitorUserfaultfd + ": "
	return name + strings.TrimPrefix(why, name)
}

// eventRemedy is what makes a group of classes seen.
func (x *examination) eventRemedy(r memevents.Report, group, missing memevents.Classes) string {
	uffd := monitor(r, memevents.MonitorUserfaultfd)
	switch {
	case strings.HasPrefix(uffd.Why, "not built"):
		return "build programs with cgo (CGO_ENABLED=1 and a C compiler) for linux/amd64 or linux/arm64: a static binary has no libc whose calls could be seen"
	case x.env(memevents.EnvEvents) != "" && len(r.Classes) > 0 && strings.Contains(r.Classes[0].Why, memevents.EnvEvents):
		return "unset " + memevents.EnvEvents
	case group == memevents.CalledFromC && x.env(memevents.EnvMonitors) != "":
		return "unset " + memevents.EnvMonitors
	case group == memevents.CalledFromC:
		return "start the program with libmemevents.so, of the same version: ibrun --preload, or LD_PRELOAD=/path/to/libmemevents.so"
	case x.env(memevents.EnvMonitors) != "" && strings.HasPrefix(uffd.Why, "not chosen"):
		return "unset " + memevents.EnvMonitors + ", or add " + memevents.MonitorUserfaultfd + " to it"
	}
	todo := x.userfaultfdRemedy(uffd.Why)
	if missing.Has(memevents.Set(memevents.LibcFree)) && x.arch == "x86_64" {
		todo += "; or, for this line only, export " + memevents.EnvMonitors + "=auto,patch"
	}
	return todo
}

// userfaultfdRemedy: the restricted mode, which suffices, is open to all users since Linux 5.11
// (Documentation/ admin-guide/sysctl/vm.rst, unprivileged_userfaultfd); /dev/userfaultfd exists
// since 6.1 and needs its file's permissions only. The default profiles of container runtimes
// leave userfaultfd out of what they allow, and allow ioctl, which is how the device is used.
func (x *examination) userfaultfdRemedy(why string) string {
	container := x.Container(x.env)
	switch {
	case strings.Contains(why, syscall.ENOSYS.Error()):
		return "a kernel with CONFIG_USERFAULTFD=y"
	case strings.Contains(why, syscall.EINVAL.Error()):
		return "Linux 5.7 or later (on arm64 6.10 or later), with CONFIG_USERFAULTFD=y"
	case !strings.Contains(why, syscall.EPERM.Error()) && !strings.Contains(why, syscall.EACCES.Error()):
		return "as said there"
	case strings.HasPrefix(container, "Kubernetes"):
		return "securityContext.seccompProfile of the pod: {type: Localhost, localhostProfile: ...} with a profile that allows userfaultfd, or {type: Unconfined}"
	case container != "":
		return "docker run --device /dev/userfaultfd (Linux 6.1 or later; root in the container), or --security-opt seccomp=PROFILE.json with userfaultfd allowed"
	case x.Text("/proc/sys/vm/unprivileged_userfaultfd") == "0" && x.olderThan(5, 11):
		return x.sudo("sysctl -w vm.unprivileged_userfaultfd=1") + "   (in /etc/sysctl.d to keep it), or " + x.sudo("setcap cap_sys_ptrace=ep PROGRAM")
	case x.Exists("/dev/userfaultfd"):
		return "allow userfaultfd in the seccomp filter of the service (SystemCallFilter=), or " + x.sudo("chmod 0666 /dev/userfaultfd")
	}
	return "allow userfaultfd in the seccomp filter of the service (SystemCallFilter=), or " + x.sudo("setcap cap_sys_ptrace=ep PROGRAM")
}

// olderThan reads the release, "5.10.0-30-amd64".
func (x *examination) olderThan(major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(x.kernel, "%d.%d", &a, &b); n < 2 {
		return false
	}
	return a < major || a == major && b < minor
}
