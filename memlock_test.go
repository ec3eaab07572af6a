package conduit

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/launch"
)

// Shared memory is not pinned, and verbs are not asked for anything where all ranks are on one host.
func TestWithoutLockableMemoryRanksOfOneHostMeetOverSharedMemory(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prlimit, err := exec.LookPath("prlimit")
	if err != nil {
		t.Fatal(err)
	}
	poor := []string{"--memlock=0:0", exe}
	if os.Getuid() == 0 { // else there is no capability to take away
		poor = []string{"--memlock=0:0", "setpriv", "--bounding-set=-ipc_lock", exe}
	}
	for _, fabric := range []string{"", FabricAuto, FabricSHM} {
		var out output
		code, err := launch.Run(testContext(t), launch.Config{
			N: 3, Path: prlimit, Args: poor, Env: rankEnv("exchange", Config{Fabric: fabric}), Stdout: &out, Stderr: &out,
		})
		if err != nil || code != 0 || !strings.HasPrefix(out.String(), "size 3 sums [18 18 18]") {
			t.Errorf("fabric %q: exit code %d, %v\n%s", fabric, code, err, out.String())
		}
	}
}
