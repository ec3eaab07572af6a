//go:build linux && cgo && (amd64 || arm64)

package regcache

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/memevents"
)

func TestGetKeptMakesNoRegistrationForOneOperation(t *testing.T) {
	f := newFake()
	c := newCache(t, f, func(cfg *Config) { cfg.Uncached = true })
	p := reserve(t, 4)
	if _, err := c.GetKept(ptr(p), 100, LocalWrite); !errors.Is(err, ErrNotKept) {
		t.Errorf("without watching: %v", err)
	}
	id := memtest.OpenWindow(p, p+page)
	defer memtest.CloseWindow(id)
	watched := newCache(t, newFake(), func(cfg *Config) { cfg.Origin = Mapped })
	if _, err := watched.GetKept(ptr(p), 100, LocalWrite); !errors.Is(err, ErrNotKept) {
		t.Errorf("during a change: %v", err)
	}
	if s := c.Stats(); s.Gets != 0 || s.Registered != 0 || f.calls != 0 {
		t.Errorf("%+v, %d calls", s, f.calls)
	}
	if s := watched.Stats(); s.Gets != 0 || s.Registered != s.Deregistered {
		t.Errorf("%+v", s)
	}
}

func TestGetKeptHitsWhatGetRegistered(t *testing.T) {
	c := newCache(t, newFake(), func(cfg *Config) { cfg.Origin = Mapped })
	p := reserve(t, 4)
	key := getPut(t, c, p, 100, LocalWrite)
	for _, n := range []uint64{100, 4000} {
		r, err := c.GetKept(ptr(p), n, LocalWrite)
		noError(t, err)
		if r.LKey != key {
			t.Errorf("%d bytes: another registration", n)
		}
		mustPut(t, c, r)
	}
	if s := c.Stats(); s.Hits != 2 || s.Misses != 1 {
		t.Errorf("%+v", s)
	}
}

// A discard by a raw call is reported before it happens and its end is not: a caller that knows the
// range to be in use need not wait.
func TestGetKeptIsNotRefusedBecauseADiscardLingers(t *testing.T) {
	c := newCache(t, newFake())
	needCached(t, c, Any)
	p := reserve(t, 8)
	w := reserve(t, 1)
	getPut(t, c, w, 8, LocalWrite) // userfaultfd takes the arena
	var refused error
	for range 20 { // a busy machine may let the while pass in which it lingers
		mustPut(t, c, mustGet(t, c, p, uint64(8*page), LocalWrite))
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, p, 8*page, unix.MADV_DONTNEED); errno != 0 {
			t.Fatal(errno)
		}
		before := c.Stats()
		r, err := c.GetKept(ptr(p), uint64(8*page), LocalWrite)
		if refused = err; errors.Is(err, ErrNotKept) { // the runtime may be discarding elsewhere
			continue
		}
		noError(t, err)
		mustPut(t, c, r)
		if s := c.Stats(); s.Misses != before.Misses+1 || s.Uncached != before.Uncached {
			t.Errorf("before %+v, after %+v", before, s)
		}
		if memevents.Changing(p, p+8*page) {
			return
		}
	}
	t.Fatalf("each time the discard does not linger, which proves nothing, or it is refused: %v", refused)
}
