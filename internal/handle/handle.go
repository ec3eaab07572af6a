// Package handle finds objects that own something outside the Go heap and were never closed.
//
// A constructor calls New with the object it is about to return, and the object's Close calls Close
// on the handle. An object that becomes garbage while its handle is open is a leak: it is counted,
// and reported through the function given to OnLeak. With tracking on (tests, debugging) every open
// handle is also listed by Live together with the stack that created it.
//
// The tracker never closes anything by itself: an object with memory that a NIC may still write
// must be closed by code that knows that it is quiet.
package handle

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Env names the environment variable that switches tracking on when it is "1".
const Env = "IBCONDUIT_TRACK_HANDLES"

// maxFrames bounds a recorded creation stack.
const maxFrames = 32

var (
	tracking atomic.Bool
	leaks    atomic.Uint64
	serial   atomic.Uint64
	onLeak   atomic.Pointer[func(Record)]

	liveMu sync.Mutex
	live   = map[*state]struct{}{}
)

func init() { tracking.Store(os.Getenv(Env) == "1") }

// Handle stands for one open object. The zero value is not usable.
type Handle struct {
	s       *state
	cleanup runtime.Cleanup
}

// state is what outlives the owner; it must not point to it, or the owner would never become
// garbage.
type state struct {
	kind, name string
	serial     uint64
	closed     atomic.Bool
	stack      []uintptr
}

// Record describes a handle that is open or was leaked.
type Record struct {
	Kind, Name string
	Serial     uint64 // order of creation in this process
	Stack      string // where it was created; empty when tracking was off then
}

func (r Record) String() string {
	s := r.Kind
	if r.Name != "" {
		s += " " + r.Name
	}
	if r.Stack == "" {
		return s + " (set " + Env + "=1 to learn where it was created)"
	}
	return s + " created at\n" + r.Stack
}

// Track switches the recording of creation stacks for handles made from now on, and returns the
// previous setting.
func Track(on bool) (was bool) { return tracking.Swap(on) }

// OnLeak sets the function that receives each leaked handle, on a goroutine of the runtime; nil
// restores the default, a line on standard error.
func OnLeak(f func(Record)) {
	if f == nil {
		onLeak.Store(nil)
		return
	}
	onLeak.Store(&f)
}

// Leaks returns how many objects became garbage without being closed.
func Leaks() uint64 { return leaks.Load() }

// New records that owner is open. The result must be reachable from owner only.
func New[T any](owner *T, kind, name string) *Handle {
	s := &state{kind: kind, name: name, serial: serial.Add(1)}
	if tracking.Load() {
		pcs := make([]uintptr, maxFrames)
		s.stack = pcs[:runtime.Callers(2, pcs)]
		liveMu.Lock()
		live[s] = struct{}{}
		liveMu.Unlock()
	}
	return &Handle{s: s, cleanup: runtime.AddCleanup(owner, leaked, s)}
}

// Close records that the object was closed. It reports whether this was the first call.
func (h *Handle) Close() bool {
	if !h.s.closed.CompareAndSwap(false, true) {
		return false
	}
	h.cleanup.Stop()
	forget(h.s)
	return true
}

// Live lists the open handles created while tracking was on, oldest first.
func Live() []Record {
	liveMu.Lock()
	defer liveMu.Unlock()
	rs := make([]Record, 0, len(live))
	for s := range live {
		rs = append(rs, s.record())
	}
	slices.SortFunc(rs, func(a, b Record) int { return cmp.Compare(a.Serial, b.Serial) })
	return rs
}

// Forgive removes a leaked handle from the list of live ones: a test that leaks on purpose has
// freed what it owned.
func Forgive(r Record) {
	liveMu.Lock()
	defer liveMu.Unlock()
	for s := range live {
		if s.serial == r.Serial {
			delete(live, s)
		}
	}
}

func leaked(s *state) {
	if !s.closed.CompareAndSwap(false, true) {
		return
	}
	leaks.Add(1)
	// It stays in the list of live handles: what it owned is still there, and a test's end must see
	// it.
	if f := onLeak.Load(); f != nil {
		(*f)(s.record())
		return
	}
	fmt.Fprintf(os.Stderr, "ibconduit: leaked %v\n", s.record())
}

func forget(s *state) {
	liveMu.Lock()
	delete(live, s)
	liveMu.Unlock()
}

func (s *state) record() Record {
	return Record{Kind: s.kind, Name: s.name, Serial: s.serial, Stack: frames(s.stack)}
}

func frames(pcs []uintptr) string {
	if len(pcs) == 0 {
		return ""
	}
	var b strings.Builder
	for fs := runtime.CallersFrames(pcs); ; {
		f, more := fs.Next()
		if f.Function != "" && !strings.HasPrefix(f.Function, "runtime.") {
			fmt.Fprintf(&b, "\t%s\n\t\t%s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return b.String()
		}
	}
}
