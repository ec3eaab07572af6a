//go:build linux && cgo && (amd64 || arm64)

package ibv

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// The same addresses, other pages: an operation through the old registration would succeed and move
// what was there before.
func TestMemoryMappedAnewGivesTheNewBytes(t *testing.T) {
	for _, raw := range []bool{false, true} {
		t.Run(map[bool]string{false: "through the libc", true: "by raw calls"}[raw], func(t *testing.T) {
			r := newRig(t, 2, Config{})
			r.cached()
			l := r.lane(0)
			mem := mapped(t, 256<<10)
			for i := range 5 {
				fill(mem, i)
				r.put(l, 0, mem)
				if !filled(r.segs[1][:len(mem)], i) {
					t.Fatalf("put %d: the peer has other bytes", i)
				}
				remap(t, mem, raw)
				r.get(l, 0, mem)
				if !filled(mem, i) {
					t.Fatalf("get %d: other bytes arrived", i)
				}
				remap(t, mem, raw)
			}
			if s, c := r.regs(), l.counters.Load(); s.Invalidated == 0 || s.Invalidated+c.Unregistered < 5 || s.Gets+c.Unregistered != 10 {
				t.Errorf("nothing was kept, or nothing changed: %+v, %+v", s, c)
			}
		})
	}
}

// What the program writes after the registration must be what the peer gets, also where the kernel
// had not given the program pages of its own yet.
func TestBytesWrittenAfterTheRegistrationAreSent(t *testing.T) {
	const n = 128 << 10
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, n), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	private, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(private)
	for name, mem := range map[string][]byte{"pages never touched": mapped(t, n), "a private mapping of a file": private} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, Config{})
			l := r.lane(0)
			r.put(l, 0, mem)
			fill(mem, 9)
			r.put(l, 0, mem)
			if !filled(r.segs[1][:n], 9) {
				t.Error("the peer has what was there before")
			}
		})
	}
}

// The collector's own madvise takes pages of what the program dropped.
func TestDiscardedGoHeapGivesTheNewBytes(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	seen := map[uintptr]bool{}
	again := 0
	for i := range 30 {
		b := make([]byte, 512<<10)
		if seen[addr(b)] {
			again++
		}
		seen[addr(b)] = true
		fill(b, i)
		r.put(l, 0, b)
		if !filled(r.segs[1][:len(b)], i) {
			t.Fatalf("put %d: the peer has other bytes", i)
		}
		b = nil
		debug.FreeOSMemory()
	}
	if again == 0 {
		t.Error("no address came back: nothing was tested")
	}
}

// Acceptance test 9 of memory events, through a lane.
func TestMemoryUnmappedInFlight_09(t *testing.T) {
	const n = 16 << 20
	if !verbs.ReadMemlock().Allows(8 * n) {
		t.Skip("RLIMIT_MEMLOCK is below 128 MiB: nothing of this size is kept")
	}
	r := newRigOf(t, 2, n+4096, Config{})
	r.cached()
	l := r.lane(0)
	for i, op := range []string{"put", "get"} {
		mem := mapped(t, n)
		fill(mem, 3)
		fill(r.segs[1][:n], 4)
		pinned := verbs.ReadMemlock().Pinned
		post := l.Put
		if op == "get" {
			post = l.Get
		}
		kept := r.regs().Misses
		h, err := post(1, 0, mem, 0)
		for ; err == nil && r.regs().Misses == kept; h, err = post(1, 0, mem, 0) { // its registration was for one operation
			_, err = l.Wait(r.ctx, h)
			r.must(op, err)
		}
		r.must(op, err)
		remap(t, mem, false)
		if now := verbs.ReadMemlock().Pinned; now < pinned+n {
			t.Errorf("%s: %d bytes are pinned in flight, %d were before: deregistered too early", op, now, pinned)
		}
		_, err = l.Wait(r.ctx, h)
		r.must(op, err)
		if s := r.regs(); s.InvalidatedInUse != uint64(i+1) || s.Gets != s.Puts {
			t.Errorf("%s: %+v", op, s)
		}
		if now := verbs.ReadMemlock().Pinned; now != pinned {
			t.Errorf("%s: %d bytes are pinned at the end, %d were before", op, now, pinned)
		}
		if op == "put" && !filled(r.segs[1][:n], 3) {
			t.Error("the put did not send what was registered")
		}
		fill(mem, 5) // other pages at the same addresses: a registration of their own
		r.put(l, 0, mem)
		if !filled(r.segs[1][:n], 5) {
			t.Errorf("%s: the peer has bytes of the pages before", op)
		}
		r.nets[0].mem.cache.Clear()
	}
	r.idle(l)
}

// Without monitors nothing is kept, and all is right: each operation registers, or copies what is
// small.
func TestWithoutMonitorsEachOperationRegisters(t *testing.T) {
	t.Setenv(regcache.Env, "off")
	for _, c := range []struct{ min, from, zero, bounced int64 }{{4096, 4096, 6, 0}, {0, zeroCopyMinSingle, 0, 6}} {
		r := newRig(t, 2, Config{ZeroCopyMin: c.min})
		if got := r.nets[0].ZeroCopyMin(); got != c.from {
			t.Errorf("zero-copy begins at %d bytes where nothing is kept, want %d", got, c.from)
		}
		l := r.lane(0)
		mem := mapped(t, 256<<10)
		for i := range 6 {
			fill(mem, i)
			r.put(l, 0, mem)
			if !filled(r.segs[1][:len(mem)], i) {
				t.Fatalf("put %d: other bytes arrived", i)
			}
			remap(t, mem, true)
		}
		if s := r.regs(); s.Uncached != uint64(c.zero) || s.Registered != s.Uncached || s.Deregistered != s.Uncached {
			t.Errorf("%+v", s)
		}
		if n := l.counters.Load(); n.ZeroCopy != uint64(c.zero) || n.Bounced != uint64(c.bounced) {
			t.Errorf("%+v", n)
		}
	}
}

// settle waits until discards of earlier tests no longer linger where b is, or anywhere: for so
// long nothing there is kept.
func settle(t testing.TB, b []byte) {
	t.Helper()
	lo, hi := addr(b), addr(b)+uintptr(len(b))
	if b == nil {
		lo, hi = 0, 1<<47
	}
	for end := time.Now().Add(10 * time.Second); memevents.Changing(lo, hi); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a discard lingers for 10 s")
		}
	}
}

// Hooks that were replaced are found out by a test, and nothing is kept from then on.
func TestARetestThatFindsNoMonitorEndsTheKeeping(t *testing.T) {
	r := newRig(t, 2, Config{})
	r.cached()
	n := r.nets[0]
	s, ok := n.Retest()
	if !ok || n.ZeroCopyMin() != zeroCopyMin {
		t.Fatalf("a retest that finds all in order moved the threshold to %d", n.ZeroCopyMin())
	}
	s.Origins[regcache.Any].Mode = regcache.PerOperation
	n.mem.settle(s)
	if got := n.ZeroCopyMin(); got != zeroCopyMinSingle {
		t.Errorf("zero-copy begins at %d bytes, want %d", got, zeroCopyMinSingle)
	}
}

// Where nothing can be kept for a moment, a registration for one operation is worth it for large
// ones only.
func TestChangingMemoryIsCopiedUnlessItIsLarge(t *testing.T) {
	r := newRigOf(t, 2, 2*zeroCopyMinSingle, Config{})
	r.cached()
	l := r.lane(0)
	mem := mapped(t, zeroCopyMinSingle)
	fill(mem, 1)
	id := memtest.OpenWindow(addr(mem), addr(mem)+1)
	defer memtest.CloseWindow(id)
	r.put(l, 0, mem[:zeroCopyMinSingle-1])
	if c, s := l.counters.Load(), r.regs(); c.Bounced != 1 || c.Unregistered != 1 || s.Gets != 0 {
		t.Errorf("%+v, %+v", c, s)
	}
	r.put(l, 0, mem)
	if c, s := l.counters.Load(), r.regs(); c.ZeroCopy != 1 || s.Uncached != 1 || s.Changing != 1 {
		t.Errorf("%+v, %+v", c, s)
	}
	if !filled(r.segs[1][:len(mem)], 1) {
		t.Error("other bytes arrived")
	}
}
