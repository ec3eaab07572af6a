package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// endAdopted kills processes that the ranks left outside their groups. Killing one
// hands its children to us, so it goes on until there are none; the bound is
// for a tree that grows faster than it is cut. A process of another user, as of a
// setuid program, is neither killed nor waited for.
func (c *children) endAdopted() {
	for range 100 {
		var killed []int
		for _, pid := range offspring() {
			if !c.before[pid] && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed = append(killed, pid)
			}
		}
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

// offspring are the child processes of this one.
func offspring() (pids []int) {
	for _, p := range processes() {
		if p.parent == os.Getpid() {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// processes reads /proc/PID/stat (proc(5)): pid (comm) state ppid pgrp session ...; comm may
// hold blanks and brackets.
func processes() (all []procStat) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		text := string(b)
		f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(f) < 4 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, _ := strconv.Atoi(f[1])
		group, _ := strconv.Atoi(f[2])
		session, _ := strconv.Atoi(f[3])
		all = append(all, procStat{pid, parent, group, session})
	}
	return all
}
