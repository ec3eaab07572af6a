//go:build !debug && !biglock

package lockrank

import (
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

func TestTheReleaseMutexIsASyncMutex(t *testing.T) {
	if got, want := unsafe.Sizeof(Mutex{}), unsafe.Sizeof(sync.Mutex{}); got != want {
		t.Errorf("%d bytes, sync.Mutex has %d", got, want)
	}
	// The compiler's word on it; the go command replays it from its cache.
	cmd := exec.Command("go", "build", "-gcflags=-m", ".")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, f := range []string{
		"(*Mutex).Init", "(*Mutex).Lock", "(*Mutex).TryLock", "(*Mutex).Unlock",
		"MustHoldNone", "EnterHandler", "LeaveHandler", "CheckCommunication",
	} {
		if !regexp.MustCompile(`can inline ` + regexp.QuoteMeta(f) + `\n`).Match(out) {
			t.Errorf("%s is not inlined", f)
		}
	}
	// The fast path of sync.Mutex is within ours.
	for _, f := range []string{"sync.(*Mutex).Lock", "sync.(*Mutex).Unlock"} {
		if !strings.Contains(string(out), "inlining call to "+f) {
			t.Errorf("a call of %s is left", f)
		}
	}
}
