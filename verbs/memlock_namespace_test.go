//go:build linux

package verbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/proctest"
)

// Root of a user namespace has CAP_IPC_LOCK there, which lifts no limit: ENOMEM of a registration
// is explained by it.
func TestMemlockHoldsInAUserNamespace(t *testing.T) {
	if !proctest.InUserNamespace(t) {
		return
	}
	const limit = 1 << 20
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	if m := ReadMemlock(); m.CapIPCLck || m.Allows(2*limit) || !m.Allows(limit/2-m.Pinned) {
		t.Errorf("%+v allows %d: %t", m, 2*limit, m.Allows(2*limit))
	}
}
