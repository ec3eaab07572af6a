package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// procStat is a line of /proc.
type procStat struct {
	pid, parent, group, session int
	flags                       uint64
}

// readStat reads /proc/PID/stat (proc(5)): pid (comm) state ppid pgrp session tty_nr tpgid flags
// ...; comm may hold blanks and brackets.
func readStat(pid int) (p procStat, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, false
	}
	p.pid = pid
	_, err = fmt.Sscanf(string(b[strings.LastIndexByte(string(b), ')')+1:]), " %c %d %d %d %d %d %d",
		new(rune), &p.parent, &p.group, &p.session, new(int), new(int), &p.flags)
	return p, err == nil
}

func processes() (all []procStat) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		if p, ok := readStat(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

// offspring are the child processes of this one.
func offspring() (all []procStat) {
	for _, p := range processes() {
		if p.parent == os.Getpid() {
			all = append(all, p)
		}
	}
	return all
}

// family are the descendants of a process that are in our process group.
func family(pid int) (all []int) {
	ours := syscall.Getpgrp()
	below := map[int]bool{pid: true}
	for list, more := processes(), true; more; {
		more = false
		for _, p := range list {
			if below[p.parent] && !below[p.pid] {
				below[p.pid], more = true, true
				if p.group == ours {
					all = append(all, p.pid)
				}
			}
		}
	}
	return all
}
