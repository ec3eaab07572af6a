//go:build linux && cgo

package softverbs

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// An ordinary user's /dev is made of the files of the old one, which others own.
func TestAnOrdinaryUserWritesToDevNull(t *testing.T) {
	usable(t) // it builds the device, which the user may not
	as := func(name string, arg ...string) *exec.Cmd {
		cmd, err := Command(t.Context(), name, arg...)
		if err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			const nobody = 65534
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
		cmd.Env = ordinary()
		return cmd
	}
	if out, err := as("true").CombinedOutput(); err != nil {
		t.Skipf("no user can come here, or make namespaces: %v: %s", err, strings.TrimSpace(string(out)))
	}
	if out, err := as("sh", "-c", "echo text >/dev/null && ls /dev/infiniband").CombinedOutput(); err != nil || string(out) != "uverbs_sv0\n" {
		t.Errorf("%v: %s", err, out)
	}
}
