package bootstrap

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Attempts go on for as long as more of them may succeed, and not longer.
func TestOnlyErrorsThatPassAreTriedAgain(t *testing.T) {
	const far, near = "192.0.2.7:7777", "127.0.0.1:7777"
	for _, x := range []struct {
		addr   string
		err    syscall.Errno
		tried  time.Duration
		passes bool
		remedy string
	}{
		{far, syscall.ECONNREFUSED, time.Hour, true, ""},
		{far, syscall.ENFILE, time.Hour, true, ""}, // the machine's limit: others may give files back
		{far, syscall.EMFILE, 0, false, "raise ulimit -n"},
		{far, syscall.EPERM, 0, false, "a firewall or a sandbox"},
		{far, syscall.ENETUNREACH, stuckTime / 2, true, ""},
		{far, syscall.ENETUNREACH, 2 * stuckTime, false, "which has no route there"},
		{near, syscall.ENETUNREACH, 0, false, "ip link set lo up"},
	} {
		rv := lone(1, x.addr, time.Second)
		err := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", x.err)}
		if got := rv.passing(err, x.tried); got != x.passes {
			t.Errorf("%s, %v after %v: passing %v", x.addr, x.err, x.tried, got)
		}
		if got := rv.dialRemedy(err); !x.passes && (x.remedy == "" || !strings.Contains(got, x.remedy)) {
			t.Errorf("%s, %v: %q", x.addr, x.err, got)
		}
	}
}
