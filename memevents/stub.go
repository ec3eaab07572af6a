//go:build !linux || !cgo || !(amd64 || arm64)

package memevents

import (
	"context"
	"runtime"
	"time"
	"unsafe"
)

// Slots is how many ranges can be watched at once.
const Slots = 0

const notBuilt = "not built: memory events need cgo on linux/amd64 or linux/arm64, this is " + runtime.GOOS + "/" +
	runtime.GOARCH + " or has CGO_ENABLED=0"

// Watcher owns entries of the table. In this build there are none: every Claim is refused.
type Watcher struct{}

// NewWatcher makes a watcher that watches nothing.
func NewWatcher(WatcherConfig) (*Watcher, error) { return &Watcher{}, nil }

// Close gives the watcher back.
func (w *Watcher) Close() error { return nil }

// Claim refuses with ErrUnwatched: without hooks nothing may be kept registered.
func (w *Watcher) Claim(lo, hi uintptr, tag uint32, need Classes) (Ref, error) {
	return Ref{}, &Error{Op: "claim", Err: ErrUnwatched, Detail: notBuilt}
}

// ClaimLive refuses likewise.
func (w *Watcher) ClaimLive(lo, hi uintptr, tag uint32, need Classes) (Ref, error) {
	return w.Claim(lo, hi, tag, need)
}

// Publish has nothing to publish.
func (w *Watcher) Publish(Ref) bool { return false }

// Late is nothing: there is no monitor.
func Late() Classes { return 0 }

// Reported has no kernel to query.
func (w *Watcher) Reported() bool { return false }

// WaitReported has no kernel to query.
func (w *Watcher) WaitReported() bool { return false }

// Settle has nothing to wait for.
func (w *Watcher) Settle() {}

// Evict has nothing to evict.
func (w *Watcher) Evict(Ref) bool { return false }

// Retire has nothing to retire.
func (w *Watcher) Retire(Ref) {}

// Drain delivers nothing.
func (w *Watcher) Drain(dst []Ref) []Ref { return dst }

// Dead is nothing.
func (w *Watcher) Dead() (ranges int, bytes int64) { return 0, 0 }

// Wait waits for the end of the context: nothing is ever invalidated.
func (w *Watcher) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Changing reports that nothing is known.
func Changing(lo, hi uintptr) bool { return true }

// Verify has nothing to verify.
func Verify() error { return nil }

// Status says that nothing is covered, and why.
func Status() Report {
	r := Report{Classes: make([]Coverage, numClasses)}
	for _, name := range []string{"symbols", "reloc", "patch", "userfaultfd"} {
		r.Monitors = append(r.Monitors, Monitor{Name: name, Why: notBuilt})
	}
	for c := range r.Classes {
		r.Classes[c] = Coverage{Class: Class(c), Why: notBuilt}
	}
	return r
}

// Retest finds the same.
func Retest() Report { return Status() }

// ReadStats reads the counters: all zero.
func ReadStats() Stats { return Stats{} }

// AdviseHuge does nothing: there are no hooks.
func AdviseHuge(uint64) {}

// Protect is not supported in this build.
func Protect(lo, hi uintptr) (unprotect func(), err error) {
	return nil, &Error{Op: "protect", Err: ErrNotSupported, Detail: notBuilt}
}

// Map is not supported in this build.
func Map(n uintptr) (unsafe.Pointer, error) {
	return nil, &Error{Op: "mmap", Err: ErrNotSupported, Detail: notBuilt}
}

// Unmap is not supported in this build.
func Unmap(p unsafe.Pointer, n uintptr) error {
	return &Error{Op: "munmap", Err: ErrNotSupported, Detail: notBuilt}
}

// TimeUnmap measures nothing: there are no hooks.
func TimeUnmap(int, bool) (hooked, raw time.Duration) { return 0, 0 }
