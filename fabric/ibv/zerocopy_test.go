//go:build linux && cgo && (amd64 || arm64)

package ibv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/fabrictest"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// cFunc calls a function of the libc, as C code would. Only package memevents has C.
//
//go:linkname cFunc github.com/ibconduit/conduit/memevents.cFunc
func cFunc(name string, args ...uintptr) uintptr

// outside is memory at an address that Go did not allocate.
func outside(a uintptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&a))), n)
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// mapped maps memory by a raw system call, as package syscall does.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	settle(t, b)
	return b
}

// remap puts fresh pages where b is, by munmap and mmap of the libc, or raw.
func remap(t testing.TB, b []byte, raw bool) {
	t.Helper()
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED
	a, n := addr(b), uintptr(len(b))
	if raw {
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, a, n, 0); errno != 0 {
			t.Fatal(errno)
		}
	} else if got := cFunc("munmap", a, n); got != 0 {
		t.Fatalf("munmap returned %#x", got)
	}
	if got, _, errno := unix.Syscall6(unix.SYS_MMAP, a, n, prot, flags, ^uintptr(0), 0); errno != 0 || got != a {
		t.Fatalf("%v: the address was taken meanwhile", errno)
	}
}

func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>12*13)
	}
}

func filled(b []byte, seed int) bool {
	want := make([]byte, len(b))
	fill(want, seed)
	return bytes.Equal(b, want)
}

// cached fails the test where registrations are not kept: it would prove nothing.
func (r *rig) cached() {
	r.Helper()
	if s := r.nets[0].cache.Status(); s.Origins[regcache.Any].Mode != regcache.Cached {
		r.Fatalf("registrations are not kept here: %s\n%v", s.Origins[regcache.Any].Why, s)
	}
}

// put puts and waits.
func (r *rig) put(l *lane, off uint64, src []byte) {
	r.Helper()
	h, err := l.Put(1, off, src, fabric.Blocking)
	r.must("put", err)
	_, err = l.Wait(r.ctx, h)
	r.must("wait", err)
}

// get gets and waits.
func (r *rig) get(l *lane, off uint64, dst []byte) {
	r.Helper()
	h, err := l.Get(1, off, dst, fabric.Blocking)
	r.must("get", err)
	_, err = l.Wait(r.ctx, h)
	r.must("wait", err)
}

func (r *rig) regs() regcache.Stats { return r.nets[0].cache.Stats() }

// out is how many registrations operations have taken and not given back.
func (r *rig) out() uint64 { s := r.regs(); return s.Gets - s.Puts }

func TestContentOfTheProgramsOwnMemory(t *testing.T) {
	r := newRig(t, 2, Config{ZeroCopyMin: 4096})
	r.cached()
	l := r.lane(0)
	const n = 600 << 10
	cmem := cFunc("malloc", n)
	defer cFunc("free", cmem)
	for name, mem := range map[string][]byte{
		"Go heap": make([]byte, n), "mmap": mapped(t, n), "malloc": outside(cmem, n),
	} {
		t.Run(name, func(t *testing.T) {
			before, rng := l.counters.Load(), rand.New(rand.NewPCG(1, 5))
			var large uint64
			for i := range 60 {
				size := 1 + rng.IntN(len(mem)/2)
				if i%4 == 0 {
					size = 1 + rng.IntN(9000)
				}
				if size >= 4096 {
					large += 2
				}
				at, off := rng.IntN(len(mem)-size+1), uint64(rng.IntN(segmentBytes-size))
				src := mem[at : at+size]
				fill(src, i)
				r.put(l, off, src)
				if !filled(r.segs[1][off:off+uint64(size)], i) {
					t.Fatalf("put %d of %d bytes from %d to %d: other bytes arrived", i, size, at, off)
				}
				clear(src)
				r.get(l, off, src)
				if !filled(src, i) {
					t.Fatalf("get %d of %d bytes from %d to %d: other bytes arrived", i, size, off, at)
				}
			}
			c := l.counters.Load()
			if got := c.ZeroCopy - before.ZeroCopy; got != large || c.Unregistered != before.Unregistered {
				t.Errorf("%d went without a copy, %d could not; want %d and none", got, c.Unregistered-before.Unregistered, large)
			}
		})
	}
	if s := r.regs(); s.Hits == 0 || s.Gets != s.Puts {
		t.Errorf("%+v", s)
	}
	r.idle(l)
}

// All that may be registered is, down to what CopyMax promises.
func TestContractWithoutCopies(t *testing.T) {
	still(t)
	fabrictest.Run(t, fabrictest.Options{
		New: func(t fabrictest.T, n, size int) []fabrictest.Rank {
			return makeRanks(t, n, size, Config{ZeroCopyMin: 1, Depth: 8})
		},
		Checks: 10, Rounds: 30, SegmentSize: segmentBytes,
	})
}

// still keeps the runtime from discarding memory during the test, which would make some operations register for
// themselves, and allocate.
func still(t testing.TB) {
	t.Helper()
	old := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(old) })
	debug.FreeOSMemory() // what there is; the scavenger has nothing to do then
	settle(t, nil)
}

func TestOnlyWhatLiesInTheSegmentAsAWholeIsLocal(t *testing.T) {
	mem := make([]byte, 8192)
	n := &Network{self: address{base: uint64(addr(mem)) + 1024, size: 4096}}
	for _, x := range []struct {
		from, to int
		want     bool
	}{{1024, 5120, true}, {2000, 2001, true}, {1023, 2000, false}, {5000, 5121, false}, {0, 1024, false}, {5120, 5121, false}, {0, 8192, false}} {
		if p, ok := n.local(mem[x.from:x.to]); ok != x.want || p != uint64(addr(mem[x.from:])) {
			t.Errorf("bytes %d to %d: %v", x.from, x.to, ok)
		}
	}
}

// The same addresses, other pages: an operation through the old registration would succeed and move what was there
// before.
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
			if s := r.regs(); s.Invalidated < 5 || s.Gets != 10 {
				t.Errorf("nothing was kept, or nothing changed: %+v", s)
			}
		})
	}
}

// What the program writes after the registration must be what the peer gets, also where the kernel had
// not given the program pages of its own yet.
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
func TestGoHeapThatTheRuntimeDiscardedGivesTheNewBytes(t *testing.T) {
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

// slow makes a put of src wait: its peer does not answer.
func (r *rig) slow(l *lane, src []byte, f fabric.Flag) fabric.Handle {
	r.Helper()
	settle(r.TB, src)
	r.mute(1, 0)
	h, err := l.Put(1, 0, src, f)
	r.must("put", err)
	return h
}

func TestARegistrationIsGivenBackWhateverBecomesOfItsOperation(t *testing.T) {
	for _, f := range []fabric.Flag{0, fabric.Implicit} {
		for name, end := range map[string]func(r *rig, l *lane, h fabric.Handle){
			"the peer dies": func(r *rig, l *lane, h fabric.Handle) {
				r.nets[0].PeerDown(1, errKilled)
				_, err := l.Wait(r.ctx, h)
				if err = errors.Join(err, l.Flush(r.ctx)); !errors.Is(err, errKilled) {
					r.Errorf("wait and flush: %v", err)
				}
			},
			"the context ends, then the peer dies": func(r *rig, l *lane, h fabric.Handle) {
				over, cancel := context.WithCancel(r.ctx)
				cancel()
				_, err := l.Wait(over, h)
				if err = errors.Join(err, l.Flush(over)); !errors.Is(err, context.Canceled) {
					r.Errorf("wait and flush: %v", err)
				}
				if r.out() != 1 {
					r.Errorf("%d registrations are out while the operation goes on, want 1", r.out())
				}
				r.nets[0].PeerDown(1, errKilled)
				_, _ = l.Wait(r.ctx, h)
				_ = l.Flush(r.ctx)
			},
			"the lane is closed, and opened again": func(r *rig, l *lane, h fabric.Handle) {
				_ = l.Close()
				r.nets[0].PeerDown(1, errKilled)
				r.must("close of the next lane", r.lane(0).Close())
			},
			"the device gives up": func(r *rig, l *lane, h fabric.Handle) {
				_, _ = l.Wait(r.ctx, h)
				if err := l.Flush(r.ctx); h == fabric.Done {
					r.down("flush", err, 1, verbs.StatusRetryExceeded)
				}
			},
		} {
			t.Run(fmt.Sprintf("%s, flags %d", name, f), func(t *testing.T) {
				cfg := Config{Lanes: 1}
				if name == "the device gives up" {
					cfg = quick(cfg)
				}
				r := newRig(t, 2, cfg)
				l := r.lane(0)
				h := r.slow(l, make([]byte, 700<<10), f)
				if r.out() != 1 && cfg.retries == 0 {
					t.Fatalf("%d registrations are out, want 1", r.out())
				}
				end(r, l, h)
				if r.out() != 0 {
					t.Errorf("%d registrations are out at the end", r.out())
				}
			})
		}
	}
}

// Nobody polls for a closed lane: the network gives back what it left.
func TestTheNetworkGivesBackWhatAClosedLaneLeft(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	for range 3 {
		r.slow(l, make([]byte, 700<<10), fabric.Implicit)
	}
	r.must("close of the lane", l.Close())
	if r.out() != 3 {
		t.Fatalf("%d registrations are out, want 3", r.out())
	}
	r.must("close of the network", r.nets[0].Close())
	if r.out() != 0 {
		t.Errorf("%d registrations are out at the end", r.out())
	}
}

// An operation whose last pieces find no room because the peer died has the buffer back when it fails.
func TestAnOperationCutShortGivesItsRegistrationBack(t *testing.T) {
	for name, post := range map[string]func(l *lane, b []byte, f fabric.Flag) (fabric.Handle, error){
		"put": func(l *lane, b []byte, f fabric.Flag) (fabric.Handle, error) { return l.Put(1, 0, b, f) },
		"get": func(l *lane, b []byte, f fabric.Flag) (fabric.Handle, error) { return l.Get(1, 0, b, f) },
	} {
		for _, f := range []fabric.Flag{0, fabric.Implicit} {
			t.Run(fmt.Sprintf("%s, flags %d", name, f), func(t *testing.T) {
				r := newRig(t, 2, Config{Depth: 4, Lanes: 1})
				r.nets[0].piece = 16 << 10
				l := r.lane(0)
				r.mute(1, 0)
				timer := time.AfterFunc(50*time.Millisecond, func() { r.nets[0].PeerDown(1, errKilled) })
				defer timer.Stop()
				mem := make([]byte, 20*16<<10)
				settle(t, mem)
				_, err := post(l, mem, f)
				r.down(name, err, 1, errKilled)
				if r.out() != 0 || l.ep.outstanding != 0 {
					t.Errorf("%d registrations and %d work requests are out", r.out(), l.ep.outstanding)
				}
				_ = l.Flush(r.ctx)
				r.idle(l)
			})
		}
	}
}

// A get's memory stays the device's until the device is done: not even a lost completion queue may free it before.
func TestALostCompletionQueueEndsRegisteredOperations(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 1})
	l := r.lane(0)
	h := r.slow(l, make([]byte, 700<<10), 0)
	_ = l.ep.goDeaf(errKilled)
	if r.out() != 0 {
		t.Errorf("%d registrations are out", r.out())
	}
	if state, err := l.ep.links[1].qp.Query(); err != nil || state.State != verbs.StateReset {
		t.Errorf("the queue pair is in state %v, %v: the device may still work on it", state.State, err)
	}
	if _, err := l.Wait(r.ctx, h); !errors.Is(err, errKilled) {
		t.Errorf("wait: %v", err)
	}
}

// Acceptance test 9 of memory events, through a lane.
func TestMemoryUnmappedInFlight_09(t *testing.T) {
	r := &rig{TB: t}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r.ctx = ctx
	const n = 16 << 20
	for _, rank := range makeRanks(t, 2, n+4096, Config{}) {
		r.nets, r.segs = append(r.nets, rank.Net.(*Network)), append(r.segs, rank.Segment)
	}
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
		h, err := post(1, 0, mem, 0)
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
		r.nets[0].cache.Clear()
	}
	r.idle(l)
}

// Without monitors nothing is kept, and all is right: each operation registers.
func TestWithoutMonitorsEachOperationRegisters(t *testing.T) {
	t.Setenv(regcache.Env, "off")
	r := newRig(t, 2, Config{ZeroCopyMin: 4096})
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
	if s := r.regs(); s.Uncached != 6 || s.Registered != 6 || s.Deregistered != 6 {
		t.Errorf("%+v", s)
	}
	if c := l.counters.Load(); c.ZeroCopy != 6 || c.Bounced != 0 {
		t.Errorf("%+v", c)
	}
}

func TestWithoutMonitorsTheDefaultCopiesWhatIsSmall(t *testing.T) {
	t.Setenv(regcache.Env, "off")
	r := newRig(t, 2, Config{})
	if got := r.nets[0].ZeroCopyMin(); got != zeroCopyMinSingle {
		t.Errorf("zero-copy begins at %d bytes where nothing is kept, want %d", got, zeroCopyMinSingle)
	}
	l := r.lane(0)
	r.put(l, 0, make([]byte, 256<<10))
	if c := l.counters.Load(); c.ZeroCopy != 0 || c.Bounced != 1 {
		t.Errorf("%+v", c)
	}
}

// failing refuses every registration.
type failing struct{ errno syscall.Errno }

func (f failing) Register(uintptr, uint64, regcache.Access) (regcache.MR, error) { return nil, f.errno }

// withRegistrar replaces a rank's registrar before its first use.
func (r *rig) withRegistrar(rank int, g regcache.Registrar) {
	r.Helper()
	n := r.nets[rank]
	r.must("close of the cache", n.cache.Close())
	c, err := regcache.New(regcache.Config{Registrar: g})
	r.must("new cache", err)
	n.cache = c
}

func TestWhatCannotBeRegisteredIsCopied(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.ENOMEM, unix.EPERM, unix.EFAULT, unix.EINVAL, unix.EAGAIN} {
		t.Run(errno.Error(), func(t *testing.T) {
			r := newRig(t, 2, Config{ZeroCopyMin: 4096})
			r.withRegistrar(0, failing{errno})
			l := r.lane(0)
			mem := make([]byte, 300<<10)
			fill(mem, 1)
			r.put(l, 0, mem)
			clear(mem)
			r.get(l, 0, mem)
			if !filled(mem, 1) {
				t.Error("other bytes arrived")
			}
			if c := l.counters.Load(); c.Unregistered != 2 || c.Bounced != 2 || c.ZeroCopy != 0 || c.Completed != 2 || c.Errors != 0 {
				t.Errorf("%+v", c)
			}
			r.idle(l)
		})
	}
}

// A device refuses more than may be locked. Root is not bound by the limit, so the capability goes for a while.
func TestBeyondTheMemlockLimitTheSlabServes(t *testing.T) {
	limit := withoutLocking(t) // before the device is opened: it serves only who has the credentials of then
	r := newRig(t, 2, Config{ZeroCopyMin: 4096})
	l := r.lane(0)
	mem := mapped(t, 256<<10)
	fill(mem, 1)
	limit(uint64(verbs.ReadMemlock().Pinned) + 64<<10)
	r.put(l, 0, mem)
	if !filled(r.segs[1][:len(mem)], 1) {
		t.Error("other bytes arrived")
	}
	if c := l.counters.Load(); c.Unregistered != 1 || c.Bounced != 1 || c.ZeroCopy != 0 {
		t.Errorf("above the limit: %+v", c)
	}
	r.put(l, 0, mem[:16<<10])
	if c := l.counters.Load(); c.Unregistered != 1 || c.Bounced != 1 || c.ZeroCopy != 1 {
		t.Errorf("within the limit: %+v", c)
	}
}

// withoutLocking takes CAP_IPC_LOCK from this thread, and returns how to set RLIMIT_MEMLOCK.
func withoutLocking(t *testing.T) func(bytes uint64) {
	t.Helper()
	// Capabilities are a thread's. It ends with the test, since the kernel lets only threads of the credentials with which
	// a device was opened write to it, and those that were set back are others (ib_safe_file_access, include/rdma/ib.h).
	runtime.LockOSThread()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had, d [2]unix.CapUserData
	if err := unix.Capget(&h, &had[0]); err != nil {
		t.Fatal(err)
	}
	d = had
	d[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	var old unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old), unix.Capset(&h, &d[0])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Capset(&h, &had[0]), unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)); err != nil {
			t.Error(err)
		}
	})
	return func(bytes uint64) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: old.Max}); err != nil {
			t.Fatal(err)
		}
	}
}

// settle waits until discards of earlier tests no longer linger where b is, or anywhere: for so long nothing there is kept.
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

func TestTheThresholdDecides(t *testing.T) {
	for _, c := range []struct {
		min, from int64 // configured; in effect
	}{{0, zeroCopyMin}, {-1, math.MaxInt64}, {1, copyMax + 1}, {10_000, 10_000}} {
		t.Run(fmt.Sprint(c.min), func(t *testing.T) {
			r := newRig(t, 2, Config{ZeroCopyMin: c.min})
			if got := r.nets[0].ZeroCopyMin(); got != c.from {
				t.Fatalf("zero-copy begins at %d bytes, want %d", got, c.from)
			}
			l := r.lane(0)
			below := min(c.from, segmentBytes) - 1
			r.put(l, 0, make([]byte, below))
			r.get(l, 0, make([]byte, below))
			if n := l.counters.Load(); n.ZeroCopy != 0 || n.Bounced != 2 {
				t.Errorf("below: %+v", n)
			}
			if c.min < 0 {
				if r.nets[0].Registrations() != nil {
					t.Error("there is a cache")
				}
				return
			}
			r.put(l, 0, make([]byte, c.from))
			r.get(l, 0, make([]byte, c.from))
			if n := l.counters.Load(); n.ZeroCopy != 2 || n.Bounced != 2 {
				t.Errorf("from there on: %+v", n)
			}
			r.put(l, 0, r.segs[0][:c.from])
			if n := l.counters.Load(); n.ZeroCopy != 2 || n.Direct != 1 {
				t.Errorf("from the segment: %+v", n)
			}
		})
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
	n.settleZeroCopy(s)
	if got := n.ZeroCopyMin(); got != zeroCopyMinSingle {
		t.Errorf("zero-copy begins at %d bytes, want %d", got, zeroCopyMinSingle)
	}
}

// A batch collects operations on one registration, and each counts.
func TestOperationsOfABatchShareARegistration(t *testing.T) {
	r := newRig(t, 2, Config{})
	r.cached()
	l := r.lane(0)
	mem := make([]byte, 512<<10)
	fill(mem, 2)
	settle(t, mem)
	r.put(l, 0, mem)
	l.Begin()
	const each = 64 << 10
	for at := 0; at < len(mem); at += each {
		_, err := l.Put(1, uint64(at), mem[at:at+each], fabric.Implicit)
		r.must("put", err)
		verify(t, l.ep)
	}
	r.must("end", l.End())
	r.must("flush", l.Flush(r.ctx))
	if s := r.regs(); s.Misses != 1 || s.Hits != uint64(len(mem)/each) || s.Gets != s.Puts {
		t.Errorf("%+v", s)
	}
	if !filled(r.segs[1][:len(mem)], 2) {
		t.Error("other bytes arrived")
	}
	r.idle(l)
}

func TestZeroCopyHitsDoNotAllocate(t *testing.T) {
	if owner.Checked {
		t.Skip("the debug build reads the page frames behind each hit")
	}
	r := newRig(t, 2, Config{})
	r.cached()
	l := r.lane(0)
	src, dst := make([]byte, 64<<10), make([]byte, 64<<10)
	settle(t, src)
	settle(t, dst)
	for name, op := range map[string]func(){
		"put": func() { r.put(l, 0, src) },
		"get": func() { r.get(l, 0, dst) },
		"implicit put": func() {
			_, err := l.Put(1, 0, src, fabric.Implicit)
			r.must("put", err)
			r.must("flush", l.Flush(r.ctx))
		},
	} {
		if n := testing.AllocsPerRun(100, op); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if c := l.counters.Load(); c.Bounced != 0 || c.ZeroCopy == 0 {
		t.Errorf("%+v", c)
	}
}

// Memory is kept alive by the operation alone.
func TestAnOperationKeepsItsMemoryReachable(t *testing.T) {
	r := newRig(t, 2, Config{Lanes: 1})
	l := r.lane(0)
	freed := make(chan struct{})
	b := make([]byte, 700<<10)
	runtime.AddCleanup(&b[0], func(c chan struct{}) { close(c) }, freed)
	h := r.slow(l, b, 0)
	b = nil
	for range 3 {
		runtime.GC()
	}
	select {
	case <-freed:
		t.Fatal("the memory of an operation in flight was collected")
	case <-time.After(20 * time.Millisecond):
	}
	r.nets[0].PeerDown(1, errKilled)
	_, _ = l.Wait(r.ctx, h)
	for {
		runtime.GC()
		select {
		case <-freed:
			return
		case <-r.ctx.Done():
			t.Fatal("the memory of an operation that ended is never collected")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// A goroutine's stack moves when it grows. What goes to a lane must not: the compiler puts it on the heap.
func TestWhatGoesToALaneIsNotOnAStack(t *testing.T) {
	r := newRig(t, 2, Config{ZeroCopyMin: 1})
	l := r.lane(0)
	moved := make(chan [2]bool)
	go func() { // a fresh goroutine has a small stack
		var own, sent [3000]byte
		before := [2]uintptr{where(&own), where(&sent)}
		fill(sent[:], 6)
		h, err := l.Put(1, 0, sent[:], 0)
		deep(200)
		if err == nil {
			_, err = l.Wait(r.ctx, h)
		}
		if err != nil {
			t.Error(err)
		}
		moved <- [2]bool{where(&own) != before[0], where(&sent) != before[1]}
	}()
	switch m := <-moved; {
	case !m[0]:
		t.Error("the control did not move: this test proves nothing")
	case m[1]:
		t.Error("memory that was registered moved with the stack")
	}
	if c := l.counters.Load(); c.ZeroCopy != 1 || !filled(r.segs[1][:3000], 6) {
		t.Errorf("not sent without a copy, or wrong: %+v", c)
	}
}

// where is an address as a number, which keeps nothing on the heap.
//
//go:noinline
func where(b *[3000]byte) uintptr { return uintptr(unsafe.Pointer(b)) }

//go:noinline
func deep(n int) (sum byte) {
	var b [4096]byte
	if n > 0 {
		b[n] = deep(n - 1)
	}
	return b[n]
}

// The registrations' status is whole: what doctor and metrics show.
func TestTheStatusOfRegistrationsNamesTheMonitors(t *testing.T) {
	r := newRig(t, 2, Config{})
	s := r.nets[0].Registrations().Status()
	if len(s.Origins) == 0 || len(s.Events.Monitors) == 0 || s.Events.String() != memevents.Status().String() {
		t.Errorf("%v", s)
	}
}

// BenchmarkCrossover finds the size from which on a registration that is kept, or made for the operation, beats the
// copy; segment is what cannot be beaten.
func BenchmarkCrossover(b *testing.B) {
	for _, way := range []struct {
		name string
		min  int64
		env  string
	}{{"slab", -1, ""}, {"kept", 1, ""}, {"each", 1, "off"}, {"segment", -1, ""}} {
		b.Run(way.name, func(b *testing.B) {
			b.Setenv(regcache.Env, way.env)
			r := newRig(b, 2, Config{ZeroCopyMin: way.min})
			l := r.lane(0)
			mem := mapped(b, segmentBytes)
			if way.name == "segment" {
				mem = r.segs[0]
			}
			for _, op := range []string{"put", "get", "stream"} {
				for n := 4 << 10; n <= segmentBytes; n *= 2 {
					b.Run(fmt.Sprintf("%s/%d", op, n), func(b *testing.B) {
						b.SetBytes(int64(n))
						for b.Loop() {
							switch op {
							case "put":
								r.put(l, 0, mem[:n])
							case "get":
								r.get(l, 0, mem[:n])
							default:
								_, err := l.Put(1, 0, mem[:n], fabric.Implicit)
								r.must("put", err)
							}
						}
						r.must("flush", l.Flush(r.ctx))
					})
				}
			}
		})
	}
}

// Where nothing can be kept for a moment, a registration for one operation is worth it for large ones only.
func TestMemoryThatIsBeingChangedIsCopiedUnlessItIsLarge(t *testing.T) {
	r := &rig{TB: t}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r.ctx = ctx
	for _, rank := range makeRanks(t, 2, 2*zeroCopyMinSingle, Config{}) {
		r.nets, r.segs = append(r.nets, rank.Net.(*Network)), append(r.segs, rank.Segment)
	}
	r.cached()
	l := r.lane(0)
	mem := mapped(t, zeroCopyMinSingle)
	fill(mem, 1)
	id := windowOpen(addr(mem), addr(mem)+1)
	defer windowClose(id)
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

//go:linkname windowOpen github.com/ibconduit/conduit/memevents.windowOpen
func windowOpen(lo, hi uintptr) uint32

//go:linkname windowClose github.com/ibconduit/conduit/memevents.windowClose
func windowClose(id uint32)
