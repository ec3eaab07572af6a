//go:build linux

package memtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ---- filters of system calls (seccomp(2)) ----

// What filters look at: struct seccomp_data, of the arguments the low half on little-endian
// machines.
const (
	CallNumber     = 0
	SecondArgument = 24
)

// FilterLoad loads the word at an offset of struct seccomp_data.
func FilterLoad(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

// FilterIf goes on so many steps later when the word is k, or is not.
func FilterIf(k uint32, equal, other uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: equal, Jf: other}
}

// FilterCalls installs a filter for all threads of this process. Behind its last step calls are
// allowed, and one step further they fail.
func FilterCalls(errno unix.Errno, steps ...unix.SockFilter) error {
	end := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	steps = append(steps, end(unix.SECCOMP_RET_ALLOW), end(unix.SECCOMP_RET_ERRNO|uint32(errno)))
	program := unix.SockFprog{Len: uint16(len(steps)), Filter: &steps[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}

// ForbidUserfaultfd makes userfaultfd and the opening of its device by ioctl fail with EPERM, as
// under the usual filters of container runtimes.
func ForbidUserfaultfd() error {
	const newUserfaultfd = 0xaa00 // USERFAULTFD_IOC_NEW
	return FilterCalls(unix.EPERM,
		FilterLoad(CallNumber), FilterIf(unix.SYS_USERFAULTFD, 4, 0), FilterIf(unix.SYS_IOCTL, 0, 2),
		FilterLoad(SecondArgument), FilterIf(newUserfaultfd, 1, 0))
}

// ---- the kernel's view of memory ----

// VMFlags are the kernel's flags of the mapping at p (proc_pid_smaps(5)), each with a blank before
// it.
func VMFlags(p uintptr) (string, error) {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return "", err
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var lo, hi uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &lo, &hi); n == 2 {
			inside = lo <= p && p < hi
		} else if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return flags, nil
		}
	}
	return "", fmt.Errorf("no mapping at %#x", p)
}

// Resident is how many bytes of this process have memory (proc_pid_statm(5)).
func Resident() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, pages int64
	_, err = fmt.Sscan(string(text), &size, &pages)
	return pages * int64(os.Getpagesize()), err
}

// ---- how tests run ----

// Stress is how long tests of races run: IBCONDUIT_STRESS, or short.
func Stress(short time.Duration) time.Duration {
	v := os.Getenv("IBCONDUIT_STRESS")
	if v == "" {
		return short
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		panic(err)
	}
	return d
}

// Jemalloc is the file of that allocator. It skips where there is none and need not be.
func Jemalloc(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/libjemalloc.so.2")
	if len(found) == 0 && os.Getenv("IBCONDUIT_REQUIRE_JEMALLOC") == "1" {
		t.Fatal("IBCONDUIT_REQUIRE_JEMALLOC=1, and there is no libjemalloc.so.2 (package libjemalloc2)")
	}
	if len(found) == 0 {
		t.Skip("no libjemalloc.so.2; IBCONDUIT_REQUIRE_JEMALLOC=1 makes this an error")
	}
	return found[0]
}

// ---- addresses for tests only ----

// arena are addresses that no other code maps while the tests run. Each is used once: what was
// discarded a moment ago is not cached for a while, and what a test unmaps leaves a hole of a few
// pages. Elsewhere that would be part of the free address space, where the next stack of a thread
// comes, to be unmapped by the end of the test.
var arena struct {
	mu sync.Mutex
	at uintptr // the end of what is taken
}

// ArenaEnd is where the addresses that TakeAddresses has given out end.
func ArenaEnd() uintptr {
	arena.mu.Lock()
	defer arena.mu.Unlock()
	return arena.at
}

// TakeAddresses returns addresses for n bytes, without memory. Hooks take more than requested at
// addresses that may be of huge pages: there is none in a range smaller than those.
func TakeAddresses(n uintptr) (uintptr, error) {
	const huge, bytes = 2 << 20, 1 << 40
	page := uintptr(os.Getpagesize())
	arena.mu.Lock()
	defer arena.mu.Unlock()
	if arena.at == 0 {
		p, err := unix.MmapPtr(-1, 0, nil, bytes, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return 0, err
		}
		arena.at = uintptr(p)
	}
	p := arena.at + page
	if last := (p + n) &^ (huge - 1); p <= last && n < huge {
		p = last + page
	} else if p%huge == 0 {
		p += page
	}
	arena.at = p + n
	return p, nil
}
