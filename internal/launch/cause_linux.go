package launch

import (
	"fmt"
	"syscall"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// memoryKills watches the memory group of this process, which is that of its ranks, for processes
// that the kernel kills for want of memory.
type memoryKills struct {
	root   sysinfo.Root
	group  *sysinfo.Cgroup // nil: there is none
	before uint64
}

func watchMemoryKills(root sysinfo.Root) *memoryKills {
	m := &memoryKills{root: root}
	if groups := root.Cgroups("memory"); len(groups) > 0 {
		m.group = &groups[0]
		m.before = root.MemoryKills(*m.group)
	}
	return m
}

// text says that the kernel has killed; empty if it has not.
func (m *memoryKills) text() string {
	if m.group == nil || m.root.MemoryKills(*m.group) <= m.before {
		return ""
	}
	if _, limit, group, ok := m.root.MemoryRoom(); ok {
		return fmt.Sprintf("; the kernel has killed for want of memory in memory group %s, whose limit is %d MiB: raise it, or start fewer ranks here, with less memory each", group, limit>>20)
	}
	return "; the kernel has killed for want of memory: start fewer ranks here, with less memory each"
}

// cause is what the machine knows of why a signal has ended a rank. killed says that it was sent
// from here.
func (m *memoryKills) cause(s syscall.Signal, killed bool) string {
	switch {
	case s == syscall.SIGKILL && !killed:
		return m.text()
	case s == syscall.SIGBUS:
		return "; memory that is mapped could not be had, mostly since a file system (df /dev/shm), the huge pages (/proc/meminfo) or a memory group is full, or a mapped file was cut short"
	case s == syscall.SIGXCPU:
		return "; its processor time is limited (ulimit -t, RLIMIT_CPU)"
	}
	return ""
}
