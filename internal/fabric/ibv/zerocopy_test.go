//go:build linux && cgo && (amd64 || arm64)

package ibv

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/memtest"
	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
)

// outside is memory at an address that Go did not allocate.
func outside(a uintptr, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&a))), n)
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// nextMap is where mapped maps: far from what the kernel gives to mappings without an address. The
// hole that remap leaves for an instant must not be filled by the runtime, whose pages would be
// replaced.
var nextMap atomic.Uintptr

const firstMap = 0x500000000000

// mapped maps memory by a raw system call, as package syscall does.
func mapped(t testing.TB, n int) []byte {
	t.Helper()
	size := (uintptr(n) + 1<<21 - 1) &^ (1<<21 - 1)
	at := firstMap + nextMap.Add(size) - size
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED_NOREPLACE
	if got, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(n), prot, flags, ^uintptr(0), 0); errno != 0 || got != at {
		t.Fatal(errno)
	}
	t.Cleanup(func() { unix.Syscall(unix.SYS_MUNMAP, at, uintptr(n), 0) })
	b := outside(at, n)
	settle(t, b)
	return b
}

// remap puts fresh pages where b is, by munmap and mmap of the libc, or raw.
func remap(t testing.TB, b []byte, raw bool) {
	t.Helper()
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED_NOREPLACE
	a, n := addr(b), uintptr(len(b))
	if raw {
		if _, _, errno := unix.Syscall(unix.SYS_MUNMAP, a, n, 0); errno != 0 {
			t.Fatal(errno)
		}
	} else if got := memtest.Func("munmap", a, n); got != 0 {
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
	if s := r.nets[0].mem.cache.Status(); s.Origins[regcache.Any].Mode != regcache.Cached {
		r.Fatalf("registrations are not kept here: %s\n%v", s.Origins[regcache.Any].Why, s)
	}
}

// put puts and waits.
func (r *rig) put(l *lane, off uint64, src []byte) {
	r.Helper()
	h, err := l.Put(1, off, src, fabric.Blocking)
	r.finish(l, h, err)
}

// get gets and waits.
func (r *rig) get(l *lane, off uint64, dst []byte) {
	r.Helper()
	h, err := l.Get(1, off, dst, fabric.Blocking)
	r.finish(l, h, err)
}

func (r *rig) finish(l *lane, h fabric.Handle, err error) {
	r.Helper()
	r.must("operation", err)
	_, err = l.Wait(r.ctx, h)
	r.must("wait", err)
}

func (r *rig) regs() regcache.Stats { return r.nets[0].mem.cache.Stats() }

// out is how many registrations operations have taken and not given back.
func (r *rig) out() uint64 { s := r.regs(); return s.Gets - s.Puts }

func TestContentOfTheProgramsOwnMemory(t *testing.T) {
	r := newRig(t, 2, Config{ZeroCopyMin: 4096})
	r.cached()
	still(t)
	l := r.lane(0)
	const n = 600 << 10
	cmem := memtest.Func("malloc", n)
	defer memtest.Func("free", cmem)
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
			got, not := c.ZeroCopy-before.ZeroCopy, c.Unregistered-before.Unregistered
			if got+not != large || got < large/2 {
				t.Errorf("%d went without a copy, %d could not; want %d, most without", got, not, large)
			}
		})
	}
	if s := r.regs(); s.Hits == 0 || s.Gets != s.Puts {
		t.Errorf("%+v", s)
	}
	r.idle(l)
}

// still keeps the runtime from discarding memory during the test, which would make some operations
// register for themselves, and allocate. A registration may be refused all the same: threads that
// end have their stacks unmapped by raw calls, which userfaultfd may report late.
// Counters.Unregistered has those.
func still(t testing.TB) {
	t.Helper()
	old := debug.SetGCPercent(-1)
	t.Cleanup(func() { debug.SetGCPercent(old) })
	debug.FreeOSMemory() // what there is; the scavenger has nothing to do then
	settle(t, nil)
}

func TestOnlyWhatLiesInTheSegmentAsAWholeIsLocal(t *testing.T) {
	mem := make([]byte, 8192)
	m := &localMemory{base: uint64(addr(mem)) + 1024, size: 4096}
	for _, x := range []struct {
		from, to int
		want     bool
	}{{1024, 5120, true}, {2000, 2001, true}, {1023, 2000, false}, {5000, 5121, false}, {0, 1024, false}, {5120, 5121, false}, {0, 8192, false}} {
		if p, ok := m.inSegment(mem[x.from:x.to]); ok != x.want || p != uint64(addr(mem[x.from:])) {
			t.Errorf("bytes %d to %d: %v", x.from, x.to, ok)
		}
	}
}

func TestTheThresholdDecides(t *testing.T) {
	for _, c := range []struct {
		min, from int64 // configured; in effect
	}{{0, zeroCopyMin}, {-1, math.MaxInt64}, {1, copyMax + 1}, {10_000, 10_000}} {
		t.Run(fmt.Sprint(c.min), func(t *testing.T) {
			r := newRig(t, 2, Config{ZeroCopyMin: c.min})
			still(t)
			if got := r.nets[0].ZeroCopyMin(); got != c.from {
				t.Fatalf("zero-copy begins at %d bytes, want %d", got, c.from)
			}
			l := r.lane(0)
			below := min(c.from, segmentBytes) - 1
			r.put(l, 0, make([]byte, below))
			r.get(l, 0, make([]byte, below))
			if n := l.counters.Load(); n.ZeroCopy+n.Unregistered != 0 || n.Bounced != 2 {
				t.Errorf("below: %+v", n)
			}
			if c.min < 0 {
				if r.nets[0].Registrations() != nil {
					t.Error("there is a cache")
				}
				return
			}
			const tries = 10
			for range tries {
				r.put(l, 0, make([]byte, c.from))
				r.get(l, 0, make([]byte, c.from))
			}
			n := l.counters.Load()
			if n.ZeroCopy+n.Unregistered != 2*tries || n.ZeroCopy < tries || n.Bounced != 2+n.Unregistered {
				t.Errorf("from there on: %+v", n)
			}
			r.put(l, 0, r.segs[0][:c.from])
			if m := l.counters.Load(); m.ZeroCopy+m.Unregistered != 2*tries || m.Direct != 1 {
				t.Errorf("from the segment: %+v", m)
			}
		})
	}
}

// Operations of a batch on one registration each count.
func TestOperationsOfABatchShareARegistration(t *testing.T) {
	r := newRig(t, 2, Config{})
	r.cached()
	l := r.lane(0)
	mem := make([]byte, 512<<10)
	fill(mem, 2)
	settle(t, mem)
	for r.regs().Misses == 0 { // the first that is not refused
		r.put(l, 0, mem)
	}
	before := l.counters.Load().Unregistered
	var b fabric.Batch
	const each = 64 << 10
	for at := 0; at < len(mem); at += each {
		b.Put(1, uint64(at), mem[at:at+each])
	}
	r.must("post", l.Post(&b, nil, 0))
	verify(t, l.set)
	r.must("flush", l.Flush(r.ctx))
	parts, refused := uint64(len(mem)/each), l.counters.Load().Unregistered-before
	if s := r.regs(); s.Misses != 1 || s.Hits+refused != parts || refused > parts/2 || s.Gets != s.Puts {
		t.Errorf("%d refused; %+v", refused, s)
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
	if c := l.counters.Load(); c.Bounced != c.Unregistered || c.ZeroCopy < c.Bounced {
		t.Errorf("%+v", c)
	}
}

// Only the operation keeps the memory alive.
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

// A goroutine's stack moves when it grows. What goes to a lane must not: the compiler puts it on
// the heap.
func TestWhatGoesToALaneIsNotOnAStack(t *testing.T) {
	r := newRig(t, 2, Config{ZeroCopyMin: 1})
	still(t)
	l := r.lane(0)
	moved := make(chan [2]bool)
	send := func() { // in a fresh goroutine, which has a small stack
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
	}
	for tries := 0; l.counters.Load().ZeroCopy == 0 && tries < 10 && !t.Failed(); tries++ {
		go send()
		switch m := <-moved; {
		case !m[0]:
			t.Error("the control did not move: this test proves nothing")
		case m[1]:
			t.Error("memory that was registered moved with the stack")
		}
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

// BenchmarkCrossover finds the size from which on a registration that is kept, or made for the
// operation, beats the copy; segment is what cannot be beaten.
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

// A slow answer is slept for, and on a kernel that works at requests in a thread of its own even
// large puts are.
func TestSleepingDoesNotAllocate(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	ctx, cancel := context.WithTimeout(r.ctx, time.Minute)
	defer cancel()
	if n := testing.AllocsPerRun(20, func() { r.must("park", l.set.park(ctx)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	least := time.Hour // the guest may be slow once
	for range 10 {
		soon, cancel := context.WithTimeout(r.ctx, time.Millisecond)
		began := time.Now()
		for soon.Err() == nil {
			r.must("park", l.set.park(soon))
		}
		least = min(least, time.Since(began))
		cancel()
	}
	if least >= parkFor {
		t.Errorf("a deadline of 1 ms was slept through for %v", least)
	}
}
