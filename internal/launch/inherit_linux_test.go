package launch

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// A process may run several jobs: its own descriptors stay open, and are inherited each time.
func TestDescriptorsOfTheProcessOutliveAJob(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD, 20) // not closed on exec
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if r := sh(t, 2, fmt.Sprintf("echo text >/proc/self/fd/%d", fd), nil); r.code != 0 {
			t.Errorf("%+v", r)
		}
		for range 3 {
			runtime.GC()
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		t.Errorf("descriptor %d after the jobs: %v", fd, err)
	}
	_ = users.files[fd].Close()
	delete(users.files, fd)
}
