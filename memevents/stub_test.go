//go:build !linux || !cgo || !(amd64 || arm64)

package memevents

import (
	"errors"
	"strings"
	"testing"
)

func TestWithoutCgoEverythingIsRefused_17(t *testing.T) {
	w, err := NewWatcher(WatcherConfig{})
	noError(t, err)
	if r, err := w.Claim(4096, 8192, 0, 0); !errors.Is(err, ErrUnwatched) || r.Acquire() {
		t.Error("claim:", err)
	}
	if r, err := w.ClaimLive(4096, 8192, 0, 0); !errors.Is(err, ErrUnwatched) || r.Acquire() {
		t.Error("claim of live memory:", err)
	}
	if len(w.Drain(nil)) != 0 || w.Close() != nil {
		t.Error("drain or close")
	}
	if _, err := Protect(4096, 8192); !errors.Is(err, ErrNotSupported) {
		t.Error("protect:", err)
	}
	if everywhere, somewhere := Status().Covered(); everywhere|somewhere != 0 {
		t.Error("covered:", everywhere, somewhere)
	}
	if !strings.Contains(Status().String(), "not built") {
		t.Error(Status())
	}
}
