package segment

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestASandboxThatForbidsMemfdIsNamed(t *testing.T) {
	for err, want := range map[error]string{unix.EPERM: "seccomp", unix.ENOSYS: "seccomp", unix.EMFILE: "ulimit -n"} {
		if got := memfdRemedy(err); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if got := memfdRemedy(unix.ENOMEM); got != "" {
		t.Errorf("%v has the remedy %q", unix.ENOMEM, got)
	}
}
