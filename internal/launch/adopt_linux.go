package launch

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adopt makes this process the parent of what its descendants leave behind.
func adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("launch: prctl PR_SET_CHILD_SUBREAPER: %w", err)
	}
	return nil
}

// endOrphans kills processes that the ranks left outside their groups. Killing one
// hands its children to us, so it goes on until there are none; the bound is
// for a tree that grows faster than it is cut. A process of another user, as of a
// setuid program, is neither killed nor waited for.
func (c *children) endOrphans(which func(procStat) bool) {
	for range 100 {
		var killed []int
		c.mu.Lock()
		for _, p := range offspring() {
			if which(p) && !c.own[p.pid] && !c.before[p.pid] && syscall.Kill(p.pid, syscall.SIGKILL) == nil {
				killed = append(killed, p.pid)
			}
		}
		c.mu.Unlock()
		if len(killed) == 0 {
			return
		}
		for _, pid := range killed {
			var ws syscall.WaitStatus
			for _, err := syscall.Wait4(pid, &ws, 0, nil); err == syscall.EINTR; {
				_, err = syscall.Wait4(pid, &ws, 0, nil)
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func anyProcess(procStat) bool { return true }

// inOurGroup: what rank 0 leaves in our process group.
func inOurGroup(p procStat) bool { return p.group == syscall.Getpgrp() }
