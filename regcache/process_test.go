//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/memevents"
)

// The tests of this package in other processes, under other conditions.

var noUserfaultfd = flag.Bool("no-userfaultfd", false, "forbid userfaultfd first, as container runtimes do")

// prepare runs before the tests.
func prepare() {
	flag.Parse()
	if !*noUserfaultfd {
		return
	}
	if err := memtest.ForbidUserfaultfd(); err != nil {
		panic(err)
	}
	if fd, _, errno := unix.RawSyscall(unix.SYS_USERFAULTFD, 1, 0, 0); errno != unix.EPERM {
		panic(fmt.Sprintf("userfaultfd is not forbidden: %d, %v", fd, errno))
	}
}

// mustWatch reports whether this process has to be able to watch memory of the origin: by its own
// hooks, or by a userfaultfd that a plain call of it gets.
func mustWatch(o Origin) bool {
	if os.Getenv(memevents.EnvEvents) != "" || os.Getenv(memevents.EnvMonitors) != "" {
		return false
	}
	if o == Mapped {
		return true
	}
	// UFFD_USER_MODE_ONLY
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1, 0, 0)
	if errno != 0 {
		return false
	}
	unix.Close(int(fd))
	return true
}

// again runs tests in a process of their own, and returns what it printed.
func again(t *testing.T, binary string, env []string, tests string, flags ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"-test.run", tests, "-test.count=1", "-test.timeout=5m", "-test.v"}, flags...)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Acceptance tests that must hold whatever else is in the process.
const everywhere = `^TestEveryLibcChange.*_01_02|_0[4567]$|_09$|_19$`

func holdsEverywhere(t *testing.T, binary string, env []string, flags ...string) {
	t.Helper()
	out, err := again(t, binary, env, everywhere, flags...)
	if err != nil || !strings.Contains(out, "--- PASS: TestEveryLibcChangeEndsRegistration_01_02") ||
		!strings.Contains(out, "--- PASS: TestGoHeapMemoryIsNeverStale_04") {
		t.Errorf("%v\n%s", err, out)
	}
}

func self(t *testing.T) string { return must(os.Executable())(t) }

func TestInterposersOfOthersChangeNothing_16(t *testing.T) {
	t.Run("one that counts", func(t *testing.T) {
		if inVM() {
			t.Skip("in a virtual machine, where compiling takes a minute; the host's run has it")
		}
		holdsEverywhere(t, self(t), []string{"LD_PRELOAD=" + library(t, "../memevents/testdata/counter.c")})
	})
	t.Run("jemalloc", func(t *testing.T) {
		holdsEverywhere(t, self(t), []string{"LD_PRELOAD=" + memtest.Jemalloc(t)})
	})
	t.Run("libmemevents", func(t *testing.T) {
		holdsEverywhere(t, self(t), []string{"LD_PRELOAD=" + memeventsLibrary(t)})
	})
}

// memeventsLibrary builds libmemevents.so with more flags of the compiler.
func memeventsLibrary(t *testing.T, flags ...string) string {
	t.Helper()
	if inVM() {
		t.Skip("in a virtual machine, where compiling takes a minute; the host's run has it")
	}
	out := t.TempDir() + "/libmemevents.so"
	cmd := exec.Command("./build.sh", append([]string{"-o", out}, flags...)...)
	cmd.Dir = "../memevents"
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

func TestWithoutUserfaultfdNothingIsStale_17(t *testing.T) {
	holdsEverywhere(t, self(t), nil, "-no-userfaultfd")
	out, err := again(t, self(t), nil, "^TestModesWithoutUserfaultfd$", "-no-userfaultfd")
	if err != nil || !strings.Contains(out, "--- PASS: TestModesWithoutUserfaultfd") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Only in a process where it is forbidden: what only the kernel reports is registered per
// operation, or kept alive, and the status says why.
func TestModesWithoutUserfaultfd(t *testing.T) {
	if !*noUserfaultfd {
		t.Skip("runs as a part of TestWithoutUserfaultfdNothingIsStale_17")
	}
	c := newCache(t, newFake())
	for o, want := range map[Origin]Mode{Any: PerOperation, GoMapped: PerOperation, GoHeap: KeptAlive, Mapped: Cached} {
		if s := c.Status().Origins[o]; s.Mode != want || want != Cached && !strings.Contains(s.Why, "raw-") {
			t.Errorf("%v: %v, %q; want %v", o, s.Mode, s.Why, want)
		}
	}
}

func TestPositionIndependentExecutable_17(t *testing.T) {
	gocmd, err := exec.LookPath("go")
	if err != nil || testing.Short() || inVM() {
		t.Skip("short, no go command, or in a virtual machine, where building takes minutes")
	}
	binary := t.TempDir() + "/pie.test"
	if out, err := exec.Command(gocmd, "test", "-c", "-buildmode=pie", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	holdsEverywhere(t, binary, nil)
}

// ---- the order of notice and change ----

var order = flag.Int("order", -1, "of notice and change, in a process with a test build of the hooks")

// The orders that look right and are not are caught, the shipped one is not.
func TestOnlyTheShippedOrderSurvives_08(t *testing.T) {
	lib := memeventsLibrary(t, "-DIBC_MEM_TEST_MODES")
	for i, name := range []string{"shipped", "before only", "after only", "before and after"} {
		t.Run(name, func(t *testing.T) {
			out, err := again(t, self(t), []string{"LD_PRELOAD=" + lib, "IBCONDUIT_MEM_MONITORS=symbols"}, "^TestOrderOfNoticeAndChange$", fmt.Sprint("-order=", i))
			switch caught := strings.Contains(out, "stale hit"); {
			case caught != (i != 0):
				t.Errorf("caught: %v; %v\n%s", caught, err, out)
			case i == 0 && (err != nil || !strings.Contains(out, "--- PASS: TestOrderOfNoticeAndChange")):
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// Another thread gets the range between the notice and the change, and after the change before the
// call returns.
func TestOrderOfNoticeAndChange(t *testing.T) {
	if *order < 0 {
		t.Skip("runs as a part of TestOnlyTheShippedOrderSurvives_08")
	}
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 1)
	getPut(t, c, p, 8, LocalWrite)
	memtest.SetOrder(uint32(*order))
	memtest.StopAt(p)
	done := make(chan struct{})
	go func() { defer close(done); call(t, memtest.Munmap, p, page) }()
	look := func(when string) {
		r, err := c.Get(ptr(p), 8, LocalWrite)
		if errors.Is(err, ErrStale) { // a build with -tags debug looks itself
			t.Errorf("stale hit %s: %v", when, err)
			return
		}
		noError(t, err)
		if !f.mr(t, r).lands(p, 8) {
			t.Errorf("stale hit %s", when)
		}
		mustPut(t, c, r)
	}
	stage := func(n uint32) {
		for end := time.Now().Add(testTimeout); memtest.Stopped() != n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				panic("the hook does not stop") // the other thread may stand in it
			}
		}
	}
	stage(1)
	look("before the change")
	memtest.GoOnFrom(1)
	stage(2)
	remap(t, p, p+page)
	look("before the call returns")
	memtest.GoOnFrom(2)
	<-done
	look("after the call")
}
