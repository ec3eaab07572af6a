package proctest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

const namespaceVar = "IBCONDUIT_TEST_NAMESPACE"

// InUserNamespace runs the calling test again in a user namespace of its own, in which it is root
// with all capabilities, as in a rootless container. There it returns true; here false, once that
// has ended well.
func InUserNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(namespaceVar) == t.Name() {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), namespaceVar+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) { // forbidden; too many (user_namespaces(7))
		t.Skipf("no user namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("in a user namespace: %v\n%s", err, out)
	}
	return false
}
