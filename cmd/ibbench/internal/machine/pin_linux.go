package machine

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Pin binds every thread of this process, and those to come, to cpus. Threads
// started meanwhile inherit the mask of the thread that starts them, hence a second
// look until no new one is found.
func Pin(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	done := make(map[int]bool)
	for again := true; again; {
		again = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("pin to processors %v: %w", cpus, err)
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[tid] {
				continue
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("pin to processors %v: %w; see which ones this process may use: taskset -p $$", cpus, err)
			}
			done[tid], again = true, true
		}
	}
	return nil
}
