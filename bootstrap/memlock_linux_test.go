package bootstrap

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/proctest"
)

// Root of a user namespace has CAP_IPC_LOCK there, which lifts no limit: the ranks hear of it
// before they lock anything.
func TestALimitHoldsInAUserNamespace(t *testing.T) {
	if !proctest.InUserNamespace(t) {
		return
	}
	const limit = 1 << 20
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit / 2, Max: limit}); err != nil {
		t.Fatal(err)
	}
	if got := raiseMemlock(0); got != limit/2 {
		t.Errorf("may lock %d bytes, want %d", got, limit/2)
	}
	if got := raiseMemlock(limit); got != limit {
		t.Errorf("may lock %d bytes after raising, want %d", got, limit)
	}
}
