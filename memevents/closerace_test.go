//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A call that waits for the reader must not be let go by the end of the descriptor: whoever it told would find the entry valid
// until the reader has seen the end too.
func TestClosingTheDescriptorLetsNobodyGoBeforeTheEntryEnds_17(t *testing.T) {
	needUffd(t)
	for range 30 {
		runHelper(t, nil, "closerace")
	}
}

func init() {
	helpers["closerace"] = func([]string) error {
		var one unix.CPUSet
		one.Set(0)
		for tid := range threads() { // the reader and the caller take turns on one processor
			unix.SchedSetaffinity(tid, &one)
		}
		w, err := NewWatcher(WatcherConfig{})
		if err != nil {
			return err
		}
		for tid := range threads() {
			unix.SchedSetaffinity(tid, &one)
		}
		p := newPages(1)
		r, err := published(w, p, ForGoMap)
		if err != nil {
			return err
		}
		if err := unix.Close(int(i32(&table().uffd).Load()) - 1); err != nil {
			return err
		}
		unix.RawSyscall(unix.SYS_MUNMAP, p, pageSize, 0)
		if r.Acquire() {
			return errors.New("a hit on what was unmapped")
		}
		return nil
	}
}

func threads() map[int]bool {
	all := map[int]bool{}
	entries, _ := os.ReadDir("/proc/self/task")
	for _, e := range entries {
		if tid, err := strconv.Atoi(e.Name()); err == nil {
			all[tid] = true
		}
	}
	return all
}
