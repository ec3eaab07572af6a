// Package sysinfo reads what Linux publishes about itself in files: /proc, /sys,
// /etc. It reads them through a file system that stands for the root directory,
// so that another machine can be put in its place.
package sysinfo

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Root is the root directory of a machine.
type Root struct{ FS fs.FS }

// OneProcessor is what reports say of a rank that may use a single processor.
const OneProcessor = " (Join raises GOMAXPROCS from 1 to 2, unless it is set, or IBCONDUIT_KEEP_GOMAXPROCS is)"

// Host is this machine.
func Host() Root { return Root{os.DirFS("/")} }

func rel(name string) string { return strings.TrimPrefix(name, "/") }

// Text is the content of a file without white space around it, "" when it
// cannot be read.
func (r Root) Text(name string) string {
	b, err := fs.ReadFile(r.FS, rel(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Figure is the number that a file holds. "max" is not one.
func (r Root) Figure(name string) (uint64, bool) {
	n, err := strconv.ParseUint(r.Text(name), 10, 64)
	return n, err == nil
}

// Exists reports whether there is a file or directory of that name.
func (r Root) Exists(name string) bool {
	_, err := fs.Stat(r.FS, rel(name))
	return err == nil
}

// Names lists a directory in order; nothing when it cannot be read.
func (r Root) Names(dir string) []string {
	entries, _ := fs.ReadDir(r.FS, rel(dir))
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Link is where a symbolic link points to, "" when it is none.
func (r Root) Link(name string) string {
	to, _ := fs.ReadLink(r.FS, rel(name))
	return to
}

// Table reads lines "Name: value" into a map, as /proc/meminfo and
// /proc/thread-self/status have them.
func (r Root) Table(name string) map[string]string {
	out := make(map[string]string)
	for line := range strings.Lines(r.Text(name)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			out[k] = strings.TrimSpace(v)
		}
	}
	return out
}

// KB is a value of a Table in bytes: "16384 kB".
func KB(v string) uint64 {
	n, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(v, "kB")), 10, 64)
	return n << 10
}

// Find looks for a program in the directories of a PATH.
func (r Root) Find(path, program string) string {
	for dir := range strings.SplitSeq(path, ":") {
		if name := dir + "/" + program; strings.HasPrefix(dir, "/") && r.executable(name) {
			return name
		}
	}
	return ""
}

func (r Root) executable(name string) bool {
	st, err := fs.Stat(r.FS, rel(name))
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// Capabilities are the effective ones of the calling thread: each thread has its own
// (capabilities(7)), and the kernel looks at the calling thread's.
type Capabilities struct {
	Bits uint64
	// Initial reports whether the process is in the initial user namespace.
	// Elsewhere its capabilities do not lift limits of the machine, RLIMIT_MEMLOCK for one.
	Initial bool
}

// Has reports whether the capability with that number of linux/capability.h is effective.
func (c Capabilities) Has(bit int) bool { return c.Bits>>bit&1 == 1 }

// capIPCLock is CAP_IPC_LOCK of linux/capability.h.
const capIPCLock = 14

// LocksAll reports whether RLIMIT_MEMLOCK does not bind the process (mlock(2)): with CAP_IPC_LOCK
// of the initial user namespace. The kernel checks that one (capable() of mm/mlock.c and of
// ib_umem_get), which root in a rootless container has not, whatever CapEff says.
func (c Capabilities) LocksAll() bool { return c.Has(capIPCLock) && c.Initial }

// Capabilities reads /proc/thread-self/status and uid_map (user_namespaces(7)).
func (r Root) Capabilities() Capabilities {
	bits, _ := strconv.ParseUint(r.Table("/proc/thread-self/status")["CapEff"], 16, 64)
	f := strings.Fields(r.Text("/proc/self/uid_map"))
	return Capabilities{Bits: bits, Initial: len(f) == 0 || len(f) == 3 && f[0] == "0" && f[1] == "0" &&
		f[2] == "4294967295"}
}
