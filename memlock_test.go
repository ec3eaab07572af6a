package conduit

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/launch"
)

// withMemlock is the command of this test binary with so many bytes of lockable memory.
func withMemlock(t *testing.T, limit int) []string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{prlimit, fmt.Sprintf("--memlock=%d:%[1]d", limit)}
	if os.Getuid() == 0 { // others have no CAP_IPC_LOCK, which lifts the limit
		argv = append(argv, "setpriv", "--bounding-set=-ipc_lock")
	}
	return append(argv, exe)
}

// Shared memory is not pinned, and verbs are not asked for anything where all ranks are on one
// host.
func TestWithoutLockableMemoryRanksOfOneHostMeetOverSharedMemory(t *testing.T) {
	argv := withMemlock(t, 0)
	for _, fabric := range []string{"", FabricAuto, FabricSHM} {
		var out output
		code, err := launch.Run(testContext(t), launch.Config{
			N: 3, Path: argv[0], Args: argv[1:], Env: rankEnv("exchange", Config{Fabric: fabric}), Stdout: &out, Stderr: &out,
		})
		if err != nil || code != 0 || !strings.HasPrefix(out.String(), "size 3 sums [18 18 18]") {
			t.Errorf("fabric %q: exit code %d, %v\n%s", fabric, code, err, out.String())
		}
	}
}
