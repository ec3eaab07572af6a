//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

// A call that waits for the reader must not be let go by the end of the descriptor: it would find
// the entry valid until the reader has seen the end too.
func TestClosedDescriptorEndsEntriesFirst_17(t *testing.T) {
	needUffd(t)
	for range 30 {
		runHelper(t, nil, "closerace")
	}
}

var _ = helper("closerace", func(t testing.TB, _ []string) error {
	var one unix.CPUSet
	one.Set(0)
	for tid := range threads() { // the reader and the caller take turns on one processor
		unix.SchedSetaffinity(tid, &one)
	}
	w := newWatcher(t, WatcherConfig{})
	for tid := range threads() {
		unix.SchedSetaffinity(tid, &one)
	}
	p := newPages(1)
	r := watchPage(t, w, p, ForGoMap)
	closeUffd(t)
	unix.RawSyscall(unix.SYS_MUNMAP, p, pageSize, 0)
	if r.Acquire() {
		return errors.New("a hit on what was unmapped")
	}
	return nil
})

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

// A program that closes all descriptors has often forked before. The child must not keep the
// descriptor open: no reader would be left more, and the parent's next call on watched memory would
// wait until the child ends.
func TestForkedChildClosesTheDescriptor_21(t *testing.T) {
	needUffd(t)
	runHelper(t, nil, "closefork", artifact(t, "foreign.so"))
	runHelper(t, []string{preload(t, "libmemevents.so")}, "closefork", artifact(t, "foreign.so"))
}

var _ = helper("closefork", func(t testing.TB, args []string) error {
	load(t, args[0])
	w := newWatcher(t, WatcherConfig{})
	p := newPages(2)
	watchPage(t, w, p, ForGoMap)
	noError(t, forkUntilExit())
	closeUffd(t)
	return unmapReturns(p)
})

// forkUntilExit forks a child that ends with this process. It is one of C: Go hangs in a child that
// has no other thread, where another had the only processor.
func forkUntilExit() error {
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		return err
	}
	if pid := int32(memtest.Func("ibc_foreign_fork_until", uintptr(pipe[0]), uintptr(pipe[1]))); pid < 0 {
		return errors.New("fork failed")
	}
	return unix.Close(pipe[0])
}
