package launch

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// memoryKills watches the memory group of this process, which is also its ranks' group, for
// processes that the kernel kills for want of memory.
type memoryKills struct {
	root   sysinfo.Root
	group  *sysinfo.Cgroup // nil: there is none
	before uint64
}

func watchMemoryKills(root sysinfo.Root) *memoryKills {
	m := &memoryKills{root: root}
	for _, g := range root.Cgroups("memory") { // its own first, which need not have the controller
		if n, ok := root.MemoryKills(g); ok {
			m.group, m.before = &g, n
			break
		}
	}
	return m
}

// text says that the kernel has killed; empty if it has not.
func (m *memoryKills) text() string {
	if m.group == nil {
		return ""
	}
	if n, _ := m.root.MemoryKills(*m.group); n <= m.before {
		return ""
	}
	if _, limit, group, ok := m.root.MemoryRoom(); ok {
		return fmt.Sprintf("; the kernel has killed for want of memory in memory group %s, whose limit is %d MiB: "+
			"raise it, or start fewer ranks here, with less memory each", group, limit>>20)
	}
	return "; the kernel has killed for want of memory: start fewer ranks here, with less memory each"
}

// cause is the machine's reason why a signal has ended a rank, or a program of a shell that is
// the rank. killed says that it was sent from here.
func (m *memoryKills) cause(state *os.ProcessState, killed bool) string {
	status := state.Sys().(syscall.WaitStatus)
	s := status.Signal()
	switch {
	case status.Exited() && status.ExitStatus() == 128+int(syscall.SIGKILL):
		return m.text()
	case s == syscall.SIGKILL && !killed:
		var limit unix.Rlimit
		// The kernel limits by samples, which on a busy machine say more than the times of a process.
		took := (state.UserTime() + state.SystemTime()) * 3 / 2
		if unix.Getrlimit(unix.RLIMIT_CPU, &limit) == nil && uint64(took/time.Second) >= limit.Max {
			return fmt.Sprintf("; it has had the %d s of processor time that are allowed (ulimit -t, RLIMIT_CPU)", limit.Max)
		}
		return m.text()
	case s == syscall.SIGBUS:
		return "; memory that is mapped could not be had, mostly since a file system (df /dev/shm), " +
			"the huge pages (/proc/meminfo) or a memory group is full, or a mapped file was cut short"
	case s == syscall.SIGXCPU:
		return "; its processor time is limited (ulimit -t, RLIMIT_CPU)"
	}
	return ""
}
