//go:build linux && cgo

package verbs

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func TestGoLayoutsEqualThoseOfTheCLibrary(t *testing.T) {
	for _, f := range layout() {
		if f.got != f.has {
			t.Errorf("%s: at %d in Go, at %d in C", f.name, f.got, f.has)
		}
	}
}

func TestUnknownDeviceListsTheOthersAndSaysWhatToDo(t *testing.T) {
	err := unknownDevice("mlx5_7", []string{"mlx5_0", "rxe0"})
	if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "mlx5_0, rxe0") {
		t.Errorf("%v", err)
	}
	err = unknownDevice("mlx5_7", nil)
	if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "hack/softroce/setup.sh") || !strings.Contains(err.Error(), "ibbench doctor") {
		t.Errorf("%v", err)
	}
	_, err = Open("no-such-device")
	if !errors.Is(err, ErrNoDevice) || !strings.Contains(err.Error(), "no-such-device") {
		t.Errorf("Open: %v", err)
	}
}

func TestGuardLetsNobodyInOnceShutAndIsNotShutWhileInUse(t *testing.T) {
	var g guard
	if !g.enter() || g.shut() {
		t.Fatal("shut while in use")
	}
	g.leave()
	if !g.shut() || g.enter() || g.enter() {
		t.Fatal("entered after shut")
	}
	g.reopen()
	if !g.enter() {
		t.Fatal("did not reopen")
	}
	g.leave()

	// Under contention shutting succeeds in the end, and ends everybody.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for g.enter() {
				g.leave()
				runtime.Gosched()
			}
		})
	}
	for !g.shut() {
		runtime.Gosched()
	}
	wg.Wait()
}
