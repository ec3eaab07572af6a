package jobtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// withMemlock is the command of this test binary with so many bytes of lockable memory.
func withMemlock(t *testing.T, limit int) []string { return withMemlocks(t, limit, limit) }

// withMemlocks is withMemlock with a soft and a hard limit.
func withMemlocks(t *testing.T, soft, hard int) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{prlimit, fmt.Sprintf("--memlock=%d:%d", soft, hard)}
	if os.Getuid() == 0 { // others have no CAP_IPC_LOCK, which lifts the limit
		argv = append(argv, "setpriv", "--bounding-set=-ipc_lock")
	}
	return append(argv, exe)
}

// Shared memory is not pinned, and verbs are not asked for anything where all ranks are on one
// host.
func TestSharedMemoryNeedsNoLockableMemory(t *testing.T) {
	argv := withMemlock(t, 0)
	for _, fabric := range []string{"", conduit.FabricAuto, conduit.FabricSHM} {
		var out output
		code, err := launch.Run(testContext(t), launch.Config{
			N: 3, Path: argv[0], Args: argv[1:], Env: rankEnv("exchange", conduit.Config{Fabric: fabric}), Stdout: &out, Stderr: &out,
		})
		if err != nil || code != 0 || !strings.HasPrefix(out.String(), "size 3 sums [18 18 18]") {
			t.Errorf("fabric %q: exit code %d, %v\n%s", fabric, code, err, out.String())
		}
	}
}

// Without CAP_IPC_LOCK and with 64 KiB of memlock the segment cannot be pinned.
func TestTooLittleMemlockIsRefusedWithFigures(t *testing.T) {
	dev := rdmatest.Device(t)
	argv := withMemlock(t, 65536)
	cmd := exec.CommandContext(testContext(t), argv[0], argv[1:]...)
	cmd.Env = rankEnv("exchange", conduit.Config{Fabric: conduit.FabricIBV, Device: dev})
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("a rank with 64 KiB of memlock joined:\n%s", out)
	}
	for _, want := range []string{"memlock", "65536", "ulimit -l"} {
		if !strings.Contains(strings.ToLower(string(out)), want) {
			t.Errorf("the error does not mention %q:\n%s", want, out)
		}
	}
}

// apart has rank 1 run where shared memory does not reach it, as under another kernel: ranks as
// root or as an ordinary user with these limits of lockable memory.
func apart(t *testing.T, soft, hard int, user bool) []string {
	t.Helper()
	if out, err := exec.Command("unshare", "-m", "true").CombinedOutput(); err != nil {
		t.Skipf("unshare -m: %v %s", err, out)
	}
	argv := withMemlocks(t, soft, hard)
	boot := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(boot, []byte("01234567-89ab-cdef-0123-456789abcdef\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	as := ""
	if user {
		as = "setpriv --reuid=65534 --regid=65534 --clear-groups "
	}
	script := `if [ "$IBCONDUIT_RANK" = 1 ]; then mount --bind ` + boot + ` /proc/sys/kernel/random/boot_id || exit 99; fi; exec ` + as + `"$0"`
	return append(argv[:len(argv)-1], "unshare", "-m", "sh", "-c", script, forAll(t))
}

// Whether verbs were asked for or are needed, memory is locked up to the hard limit.
func TestVerbsGetMemlockUpToTheHardLimit(t *testing.T) {
	dev := rdmatest.Device(t)
	users := []bool{false}
	if strings.HasPrefix(dev, "rxe") { // a device in user space is its user's alone
		users = append(users, true)
	}
	for _, user := range users {
		for _, fabric := range []string{conduit.FabricIBV, conduit.FabricAuto} {
			argv := apart(t, 65536, 8<<20, user)
			var out output
			code, err := launch.Run(testContext(t), launch.Config{
				N: 2, Path: argv[0], Args: argv[1:], Env: rankEnv("exchange", conduit.Config{Fabric: fabric, Device: dev}), Stdout: &out, Stderr: &out,
			})
			if err != nil || code != 0 || !strings.HasPrefix(out.String(), "size 2 sums [6 6]") {
				t.Errorf("fabric %q, ordinary user %v: exit code %d, %v\n%s", fabric, user, code, err, out.String())
			}
		}
	}
}

// Buffers count: with those a segment does not fit that would alone. All ranks say which are
// short.
func TestRanksShortOfMemlockAreNamedByAll(t *testing.T) {
	dev := rdmatest.Device(t)
	argv := apart(t, 65536, 5<<20, false)
	var out output
	code, err := launch.Run(testContext(t), launch.Config{
		N: 2, Path: argv[0], Args: argv[1:], Env: rankEnv("exchange", conduit.Config{Fabric: conduit.FabricAuto, Device: dev}), Stdout: &out, Stderr: &out,
	})
	if err != nil || code == 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, want := range []string{"ranks 0,1 cannot take part: segment: ", "RLIMIT_MEMLOCK of 5242880, less 0 that are pinned and ", "ulimit -l"} {
		if n := strings.Count(out.String(), want); n != 2 {
			t.Errorf("%d ranks say %q, want 2:\n%s", n, want, out.String())
		}
	}
}

// Config.LockedMemory is the limit that Join needs, to the byte.
func TestLockedMemoryIsWhatJoinNeeds(t *testing.T) {
	dev := rdmatest.Device(t)
	need, err := conduit.Config{SegmentSize: 1 << 20}.LockedMemory(2)
	if err != nil {
		t.Fatal(err)
	}
	for short, joins := range map[int]bool{0: true, 1: false} {
		argv := apart(t, 65536, int(need)-short, false)
		var out output
		code, err := launch.Run(testContext(t), launch.Config{
			N: 2, Path: argv[0], Args: argv[1:], Env: rankEnv("exchange", conduit.Config{Fabric: conduit.FabricAuto, Device: dev}), Stdout: &out, Stderr: &out,
		})
		if refused := strings.Contains(out.String(), "RLIMIT_MEMLOCK"); err != nil || (code == 0) != joins || refused == joins {
			t.Errorf("%d bytes below %d: exit code %d, %v\n%s", short, need, code, err, out.String())
		}
	}
}
