//go:build linux

package regcache

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/memevents"
)

// cached is a cache for memory that hooks see taken away, or a skip where nothing is watched.
func cached(t testing.TB, f *fake, edit ...func(*Config)) *Cache {
	t.Helper()
	c := newCache(t, f, append([]func(*Config){func(c *Config) { c.Origin = Mapped }}, edit...)...)
	needCached(t, c, Mapped)
	settle(t)
	return c
}

// needCached skips where memory of the origin cannot be cached, and fails where it should be.
func needCached(t testing.TB, c *Cache, o Origin) {
	t.Helper()
	s := c.Status().Origins[o]
	switch {
	case s.Mode == Cached:
	case mustWatch(o):
		t.Fatalf("memory of origin %v should be cached here: %s", o, s.Why)
	default:
		t.Skip("not cached here: ", s.Why)
	}
}

// settle waits until no discard lingers over the arena. Those of tests before this one do for a
// second, and where there were many at a time they cover more than they discarded (memevents,
// ibc_mem_uffd.c).
func settle(t testing.TB) {
	t.Helper()
	at := memtest.ArenaEnd()
	for deadline := time.Now().Add(testTimeout); memevents.Changing(at-min(at, 1<<20), at+1<<20); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the address space is still changing after ", testTimeout)
		}
	}
}

func TestWhatCannotBeAskedForIsRefused(t *testing.T) {
	f := newFake()
	c := newCache(t, f)
	p := ptr(reserve(t, 1))
	for name, get := range map[string]func() (Region, error){
		"nothing":        func() (Region, error) { return c.Get(p, 0, LocalWrite) },
		"nil":            func() (Region, error) { return c.Get(nil, 1, LocalWrite) },
		"beyond memory":  func() (Region, error) { return c.Get(p, math.MaxUint64, LocalWrite) },
		"unknown access": func() (Region, error) { return c.Get(p, 1, 1<<20) },
		"unknown origin": func() (Region, error) { return c.GetFrom(numOrigins, p, 1, LocalWrite) },
	} {
		if _, err := get(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", name, err)
		}
	}
	for name, cfg := range map[string]Config{
		"no registrar": {}, "regions": {Registrar: f, MaxRegions: -1}, "bytes": {Registrar: f, MaxBytes: -1}, "origin": {Registrar: f, Origin: 99},
	} {
		if _, err := New(cfg); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("New with wrong %s: %v", name, err)
		}
	}
	if s := c.Stats(); s.Gets != 0 || s.Registered != 0 {
		t.Errorf("%+v", s)
	}
}

// A hit looks at one bit for the origin.
func TestAnUnknownOriginDoesNotHit(t *testing.T) {
	c := newCache(t, newFake())
	p := reserve(t, 1)
	for o := range numOrigins {
		r, err := c.GetFrom(o, ptr(p), 8, LocalWrite)
		noError(t, err)
		mustPut(t, c, r)
	}
	for o := int(numOrigins); o < 256; o++ {
		if _, err := c.GetFrom(Origin(o), ptr(p), 8, LocalWrite); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("origin %d: %v, want EINVAL", o, err)
		}
	}
}

func TestMisuseOfPutPanics(t *testing.T) {
	c := newCache(t, newFake(), func(c *Config) { c.Uncached = true })
	r := mustGet(t, c, reserve(t, 1), 8, LocalWrite)
	mustPut(t, c, r)
	for name, r := range map[string]Region{"zero": {}, "second": r} {
		if panicked(func() { c.Put(r) }) == nil {
			t.Errorf("%s Put did not panic", name)
		}
	}
}

func TestCloseRefusesWhileRegionsAreInUse(t *testing.T) {
	for _, uncached := range []bool{false, true} {
		f := newFake()
		c := newCache(t, f, func(c *Config) { c.Uncached, c.Origin = uncached, Mapped })
		p := reserve(t, 1)
		r := mustGet(t, c, p, 8, LocalWrite)
		if err := c.Close(); !errors.Is(err, ErrBusy) {
			t.Errorf("Close while in use: %v", err)
		}
		mustPut(t, c, mustGet(t, c, p, 8, LocalWrite)) // it goes on
		mustPut(t, c, r)
		for range 2 {
			if err := c.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		if _, err := c.Get(ptr(p), 8, LocalWrite); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Get after Close: %v", err)
		}
	}
}

func TestAHitServesOnlyWhatWasRegistered(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 8)
	key := getPut(t, c, p+page, 2*uint64(page), LocalWrite|RemoteRead)
	for _, x := range []struct {
		at     uintptr
		n      uint64
		access Access
		same   bool
	}{
		{p + page, 1, LocalWrite, true},
		{p + page + 5, 100, RemoteRead, true},
		{p + 3*page - 1, 1, LocalWrite | RemoteRead, true},
		{p + page, 2 * uint64(page), 0, true},
		{p + 3*page, 1, 0, false},
		{p + page - 1, 1, 0, false},
	} {
		r := mustGet(t, c, x.at, x.n, x.access)
		m := f.mr(t, r)
		if (r.LKey == key) != x.same || x.access&^m.access != 0 || m.lo > x.at || m.lo+uintptr(m.n) < x.at+uintptr(x.n) {
			t.Errorf("%+v: got key %d (first %d) of [%#x,%#x) for %v", x, r.LKey, key, m.lo, m.lo+uintptr(m.n), m.access)
		}
		mustPut(t, c, r)
	}
	if c.Status().Origins[Any].Mode == Cached {
		r, err := c.GetFrom(Any, ptr(p+page), 8, LocalWrite)
		if err != nil || r.LKey == key {
			t.Errorf("memory of unknown origin got what is watched for less: %v", err)
		}
		mustPut(t, c, r)
	}
}

func TestNoCachingIsSlowAndRight_17(t *testing.T) {
	try := func(t *testing.T, c *Cache, f *fake, why string) {
		p := reserve(t, 2)
		for range 3 {
			r := mustGet(t, c, p+3, 100, RemoteWrite)
			if m := f.mr(t, r); m.lo != p+3 || m.n != 100 || !m.lands(p+3, 100) {
				t.Errorf("registered %#x, %d bytes", m.lo, m.n)
			}
			mustPut(t, c, r)
			if n, _ := f.registered(); n != 0 {
				t.Errorf("%d registrations after Put", n)
			}
		}
		if s := c.Stats(); s.Uncached != 3 || s.Gets != 3 || s.Puts != 3 || s.Registered != 3 {
			t.Errorf("%+v", s)
		}
		for _, o := range c.Status().Origins {
			if o.Mode != PerOperation || !strings.Contains(o.Why, why) {
				t.Errorf("%v: %v, %q", o.Origin, o.Mode, o.Why)
			}
		}
	}
	t.Run("Config", func(t *testing.T) {
		f := newFake()
		try(t, newCache(t, f, func(c *Config) { c.Uncached = true }), f, "Config.Uncached")
	})
	t.Run("environment", func(t *testing.T) {
		t.Setenv(Env, "off")
		f := newFake()
		try(t, newCache(t, f), f, Env)
		t.Setenv(Env, "perhaps")
		if _, err := New(Config{Registrar: f}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s=perhaps: %v", Env, err)
		}
	})
	if _, somewhere := memevents.Status().Covered(); somewhere == 0 {
		f := newFake()
		try(t, newCache(t, f), f, "no monitor sees")
	}
}

// Without monitors, and in a program without C, the tests of this file hold too.
func TestOtherProgramsWork_17(t *testing.T) {
	if os.Getenv("IBCONDUIT_TEST_REGCACHE_CHILD") != "" {
		return
	}
	const those = "TestWhat|TestUnreported|TestMisuse|TestClose|TestNoCaching|TestEnomem|TestGoHeap|TestPool|TestOther"
	child := func(t *testing.T, binary string, env ...string) {
		cmd := exec.Command(binary, "-test.run", those, "-test.count=1")
		cmd.Env = append(os.Environ(), append(env, "IBCONDUIT_TEST_REGCACHE_CHILD=1")...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
	}
	self, err := os.Executable()
	noError(t, err)
	t.Run("no monitors", func(t *testing.T) { child(t, self, "IBCONDUIT_MEM_EVENTS=no") })
	t.Run("no C", func(t *testing.T) {
		gocmd, err := exec.LookPath("go")
		if err != nil || testing.Short() || inVM() {
			t.Skip("short, no go command, or in a virtual machine, where building takes minutes")
		}
		out := t.TempDir() + "/regcache.test"
		cmd := exec.Command(gocmd, "test", "-c", "-o", out, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		child(t, out)
	})
}

func inVM() bool { return os.Getenv("IBCONDUIT_VM_INDEX") != "" }

func TestCallersThatMissTogetherRegisterOnce(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 4)
	started, leave := make(chan struct{}), make(chan struct{})
	f.before = func(lo, hi uintptr) { close(started); <-leave }
	var wg sync.WaitGroup
	keys := make([]uint32, 8)
	get := func(i int) {
		wg.Go(func() {
			r, err := c.Get(ptr(p), 8, LocalWrite)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = r.LKey
			c.Put(r)
		})
	}
	get(0)
	<-started
	for i := range keys[1:] {
		get(i + 1)
	}
	// Whether they wait or come later: there is one registration.
	runtime.Gosched()
	close(leave)
	wg.Wait()
	if k := slices.Compact(keys); len(k) != 1 || c.Stats().Registered != 1 {
		t.Errorf("keys %v, %d registrations", k, c.Stats().Registered)
	}
}

func TestGoHeapMemoryIsNeverStale_04(t *testing.T) {
	for _, o := range []Origin{GoHeap, Any} {
		t.Run(o.String(), func(t *testing.T) {
			f := newFake()
			c := newCache(t, f, func(c *Config) { c.Origin = o })
			mode := c.Status().Origins[o].Mode
			const n = 1 << 20
			seen := map[uintptr]bool{}
			reused := 0
			for i := range 40 {
				b := make([]byte, n)
				at := uintptr(unsafe.Pointer(&b[0]))
				if seen[at] {
					reused++
				}
				seen[at] = true
				for j := uintptr(0); j < n; j += page {
					*(*uint64)(unsafe.Pointer(&b[j])) = stamps.Add(1) << 8
				}
				r, err := c.Get(unsafe.Pointer(&b[0]), n, LocalWrite)
				noError(t, err)
				if !f.mr(t, r).lands(at, n) {
					// The runtime may hand out an object's pages again while they are registered:
					// the same pages with other stamps. Only other pages are stale.
					if !sameFrames(c, r, at, n) {
						t.Fatalf("round %d (%v): stale", i, mode)
					}
				}
				mustPut(t, c, r)
				runtime.KeepAlive(b)
				b = nil
				debug.FreeOSMemory()
			}
			if mode == KeptAlive && reused > 0 {
				t.Error("an object was not kept alive")
			}
			t.Logf("%v: %d of 40 at an address seen before; %+v", mode, reused, c.Stats())
		})
	}
}

// sameFrames compares the page frames of a verifying cache; without the right to see them nothing
// can be said.
func sameFrames(c *Cache, r Region, lo, n uintptr) bool {
	if r.e.frames == nil {
		return c.frames == nil
	}
	return c.verifyFrames(&request{lo: lo, n: uint64(n)}, r.e) == nil
}

// administrator: this process has CAP_SYS_ADMIN, and that of the machine, not of a user namespace
// (proc_pid_uid_map(5)).
func administrator(t *testing.T) bool {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(name)
		noError(t, err)
		return string(text)
	}
	_, line, _ := strings.Cut(read("/proc/self/status"), "CapEff:")
	var caps uint64
	must(fmt.Sscanf(line, "%x", &caps))(t)
	return caps&(1<<unix.CAP_SYS_ADMIN) != 0 && slices.Equal(strings.Fields(read("/proc/self/uid_map")), []string{"0", "0", "4294967295"})
}

func TestVerifyFindsOtherPages(t *testing.T) {
	f := newFake()
	c, err := New(Config{Registrar: f, Origin: Mapped, Verify: true})
	if errors.Is(err, unix.EPERM) && !administrator(t) {
		t.Skip("needs CAP_SYS_ADMIN: ", err)
	}
	noError(t, err)
	t.Cleanup(func() { finish(t, c, f) })
	needCached(t, c, Mapped)
	p := reserve(t, 4)
	settle(t)
	key := getPut(t, c, p, 4*uint64(page), LocalWrite)
	if getPut(t, c, p, 4*uint64(page), LocalWrite) != key {
		t.Error("no hit")
	}
	keep := make([]byte, page) // the old frame must not come back at once
	copy(keep, unsafe.Slice((*byte)(ptr(p+2*page)), page))
	q := reserve(t, 1)
	if _, _, errno := unix.RawSyscall6(unix.SYS_MREMAP, p+2*page, page, page, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, q, 0); errno != 0 {
		t.Fatal(errno)
	}
	remap(t, p+2*page, p+3*page)
	if _, err := c.Get(ptr(p), 4*uint64(page), LocalWrite); !errors.Is(err, ErrStale) {
		t.Errorf("after an unseen change: %v, want ErrStale", err)
	}
	getPut(t, c, p, uint64(page), LocalWrite) // the other pages are right
}

func TestManyCachesShareTheTable(t *testing.T) {
	p := reserve(t, 4)
	for range 5 {
		f := newFake()
		c := cached(t, f)
		getPut(t, c, p, 8, LocalWrite)
		if s := c.Stats(); s.Misses != 1 || s.Live != 1 {
			t.Errorf("%+v", s)
		}
	}
}

func TestProgramsAreStartedUnderLoad_21(t *testing.T) {
	f := newFake()
	c := cached(t, f)
	p := reserve(t, 100)
	for i := range 100 {
		getPut(t, c, p+uintptr(i)*page, uint64(page), LocalWrite)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uintptr(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				r, err := c.Get(ptr(p+i%100*page), 8, LocalWrite)
				if err != nil || !f.mr(t, r).lands(p+i%100*page, 8) {
					t.Errorf("%v", err)
				}
				c.Put(r)
			}
		}
	})
	for range 100 {
		if out, err := exec.Command("/bin/true").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	close(stop)
	wg.Wait()
	// The runtime's scavenger may discard pages of its own meanwhile, and a get beside them is then
	// not cached.
	if s := c.Stats(); s.Invalidated != 0 || s.Registered != s.Misses+s.Uncached {
		t.Errorf("%+v", s)
	}
}

func TestStatusSaysWhy(t *testing.T) {
	c := newCache(t, newFake())
	s := c.Status()
	for _, o := range s.Origins {
		if (o.Mode == Cached) != (o.Why == "") {
			t.Errorf("%v: %v, %q", o.Origin, o.Mode, o.Why)
		}
	}
	if text := s.String(); !strings.Contains(text, "memory go-heap") || !strings.Contains(text, "munmap") {
		t.Error(text)
	}
	if again := c.Retest(); fmt.Sprint(again.Origins) != fmt.Sprint(s.Origins) {
		t.Errorf("%v, then %v", s.Origins, again.Origins)
	}
}
