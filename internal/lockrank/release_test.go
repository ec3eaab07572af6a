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

// Nothing else in the gate builds with the tag.
func TestTheOtherBuildsPassTheirTests(t *testing.T) {
	for _, tags := range []string{"biglock", "biglock,debug"} {
		if out, err := exec.Command("go", "test", "-count=1", "-tags", tags, ".").CombinedOutput(); err != nil {
			t.Errorf("go test -tags %s: %v\n%s", tags, err, out)
		}
	}
	for _, arch := range []string{"arm64", "riscv64"} { // g from assembly, and not
		cmd := exec.Command("go", "vet", "-tags", "biglock", ".")
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("GOARCH=%s go vet: %v\n%s", arch, err, out)
		}
	}
}

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
