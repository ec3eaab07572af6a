package regcache

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/proctest"
)

// Root of a user namespace has CAP_IPC_LOCK there, which lifts no limit: no more is kept than half
// of it.
func TestTheLimitHoldsInAUserNamespace(t *testing.T) {
	if !proctest.InUserNamespace(t) {
		return
	}
	const limit = 1 << 20
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	if got := defaultMaxBytes(); got != limit/2 {
		t.Errorf("keeps %d bytes, want %d", got, limit/2)
	}
}
