//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// long: tests that have a short form in the suite run their full one (IBCONDUIT_TEST_LONG=1).
func long() bool { return os.Getenv("IBCONDUIT_TEST_LONG") == "1" }

func split(s string) []string { return strings.Fields(s) }

func indexOf(refs []Ref, r Ref) int { return slices.Index(refs, r) }

func newRand(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// expired is a context that ends before anything else could happen.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// runHelper runs this binary as another process, with more environment, and returns what it printed.
func runHelper(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := tryHelper(t, env, name, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return out
}

func tryHelper(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	limit := time.Minute
	if long() {
		limit = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"helper", name}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// claimSoon claims the page at p, as soon as nobody of this process is changing memory there.
func claimSoon(w *Watcher, p uintptr, need Classes) (r Ref, err error) {
	for range 5000 {
		if r, err = w.Claim(p, p+pageSize, 0, need); !errors.Is(err, ErrChanging) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return r, err
}

// vmFlags are the kernel's flags of the mapping at p (proc_pid_smaps(5)), each with a blank before it.
func vmFlags(t *testing.T, p uintptr) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var lo, hi uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &lo, &hi); n == 2 {
			inside = lo <= p && p < hi
		} else if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			return flags
		}
	}
	t.Fatalf("no mapping at %#x", p)
	return ""
}

// forbidUserfaultfd installs a seccomp filter for all threads of this process: userfaultfd and the opening of
// its device by ioctl fail with EPERM, as under the usual filters of container runtimes.
func forbidUserfaultfd() error {
	const (
		load, jumpEqual, ret = 0x20, 0x15, 0x06 // BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
		allow, deny          = 0x7fff0000, 0x00050000 | uint32(unix.EPERM)
		argument1            = 16 + 8 // of struct seccomp_data: the low half, on little-endian machines
		newUserfaultfd       = 0xaa00 // USERFAULTFD_IOC_NEW
	)
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // the system call's number
		{Code: jumpEqual, K: unix.SYS_USERFAULTFD, Jt: 4},
		{Code: jumpEqual, K: unix.SYS_IOCTL, Jf: 2},
		{Code: load, K: argument1},
		{Code: jumpEqual, K: newUserfaultfd, Jt: 1},
		{Code: ret, K: allow},
		{Code: ret, K: deny},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}

// sliceRange are the arguments of a claim of the whole pages of Go memory.
func sliceRange(b []byte) (lo, hi uintptr, tag uint32, need Classes) {
	lo = (uintptr(unsafe.Pointer(&b[0])) + pageSize - 1) &^ (pageSize - 1)
	hi = (uintptr(unsafe.Pointer(&b[0])) + uintptr(len(b))) &^ (pageSize - 1)
	return lo, hi, 0, ForGoHeap
}
