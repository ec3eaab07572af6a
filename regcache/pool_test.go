//go:build linux

package regcache

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func newPool(t testing.TB, f *fake, edit ...func(*PoolConfig)) *Pool {
	t.Helper()
	cfg := PoolConfig{Registrar: f}
	for _, e := range edit {
		e(&cfg)
	}
	p, err := NewPool(cfg)
	noError(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if n, _ := f.registered(); n != 0 {
			t.Errorf("%d registrations are left after Close", n)
		}
	})
	return p
}

func alloc(t testing.TB, p *Pool, n int) *Buffer {
	t.Helper()
	b, err := p.Alloc(n)
	noError(t, err)
	return b
}

func TestPoolBuffersAreRegisteredAndApart(t *testing.T) {
	f := newFake()
	p := newPool(t, f, func(c *PoolConfig) { c.MaxBytes = 256 << 20 })
	var all []*Buffer
	type span struct{ lo, hi uint64 }
	var spans []span
	for _, n := range []int{1, 63, 64, 65, 100, 4096, 5000, 64 << 10, 1 << 20, 2 << 20, 2<<20 + 1, 5 << 20} {
		for range 3 {
			b := alloc(t, p, n)
			all = append(all, b)
			if len(b.Bytes()) != n || b.Cap() < n || b.Addr()%min(uint64(b.Cap()), uint64(page)) != 0 {
				t.Errorf("%d bytes: %d of %d at %#x", n, len(b.Bytes()), b.Cap(), b.Addr())
			}
			for i := range b.Bytes() {
				b.Bytes()[i] = byte(len(all))
			}
			m := f.mr(t, Region{LKey: b.LKey})
			if b.Addr() < uint64(m.lo) || b.Addr()+uint64(b.Cap()) > uint64(m.lo)+m.n || b.RKey != m.RKey() || m.access != allAccess {
				t.Errorf("%d bytes are not within their registration", n)
			}
			for _, s := range spans {
				if b.Addr() < s.hi && s.lo < b.Addr()+uint64(b.Cap()) {
					t.Errorf("%d bytes overlap another buffer", n)
				}
			}
			spans = append(spans, span{b.Addr(), b.Addr() + uint64(b.Cap())})
		}
	}
	for i, b := range all {
		if b.Bytes()[0] != byte(i+1) || b.Bytes()[len(b.Bytes())-1] != byte(i+1) {
			t.Errorf("buffer %d was overwritten", i)
		}
		if err := p.Free(b); err != nil {
			t.Error(err)
		}
	}
	if s := p.Stats(); s.InUse != 0 || s.Bytes == 0 {
		t.Errorf("%+v", s)
	}
}

func TestPoolReusesWithoutRegistering(t *testing.T) {
	f := newFake()
	p := newPool(t, f)
	b := alloc(t, p, 100)
	p.Free(b)
	calls := f.calls
	if n := testing.AllocsPerRun(100, func() { p.Free(alloc(t, p, 100)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if f.calls != calls {
		t.Errorf("registered %d times more", f.calls-calls)
	}
}

func TestPoolKeepsItsLimit(t *testing.T) {
	f := newFake()
	p := newPool(t, f, func(c *PoolConfig) { c.SlabBytes, c.MaxBytes = 64<<10, 128<<10 })
	a, b := alloc(t, p, 64<<10), alloc(t, p, 1)
	if _, err := p.Alloc(64 << 10); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, err := p.Alloc(1 << 20); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("larger than the limit: %v", err)
	}
	p.Free(a)
	p.Free(alloc(t, p, 50<<10))
	p.Free(b)
	q := newPool(t, newFakeLimited(1))
	if _, err := q.Alloc(1); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("the registrar lacks memory: %v", err)
	}
	if s := q.Stats(); s.Bytes != 0 || s.Registrations != 0 {
		t.Errorf("%+v", s)
	}
}

func newFakeLimited(n int64) *fake {
	f := newFake()
	f.limit = n
	return f
}

func TestPoolRefusesMisuse(t *testing.T) {
	f := newFake()
	p := newPool(t, f)
	b := alloc(t, p, 10)
	if err := p.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("Close while in use: %v", err)
	}
	p.Free(b)
	other := newPool(t, newFake())
	x := alloc(t, other, 10)
	for name, do := range map[string]func(){"freed twice": func() { p.Free(b) }, "of another pool": func() { p.Free(x) }} {
		if panicked(do) == nil {
			t.Errorf("%s: no panic", name)
		}
	}
	other.Free(x)
	for _, cfg := range []PoolConfig{{}, {Registrar: f, SlabBytes: 1000}, {Registrar: f, MaxBytes: -1}, {Registrar: f, Access: 1 << 10}} {
		if _, err := NewPool(cfg); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := p.Alloc(0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Alloc(0): %v", err)
	}
	p.Close()
	if _, err := p.Alloc(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Alloc after Close: %v", err)
	}
}

func TestPoolServesManyGoroutines(t *testing.T) {
	p := newPool(t, newFake(), func(c *PoolConfig) { c.SlabBytes = 64 << 10 })
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 500 {
				b, err := p.Alloc(1 + (i*37+g)%9000)
				if err != nil {
					t.Error(err)
					return
				}
				mine := b.Bytes()
				for j := range mine {
					mine[j] = byte(g)
				}
				for _, v := range mine {
					if v != byte(g) {
						t.Error("another goroutine has it too")
						break
					}
				}
				p.Free(b)
			}
		})
	}
	wg.Wait()
}

func TestPoolMemoryIsAlignedForHugePages(t *testing.T) {
	p := newPool(t, newFake())
	b := alloc(t, p, 2<<20)
	defer p.Free(b)
	if uintptr(unsafe.Pointer(&b.Bytes()[0]))%(2<<20) != 0 {
		t.Errorf("a slab is at %#x", b.Addr())
	}
}

func BenchmarkPool(b *testing.B) {
	p := newPool(b, newFake())
	for b.Loop() {
		x, err := p.Alloc(4096)
		noError(b, err)
		p.Free(x)
	}
}

// A program may give a pool's buffer to a cache of memory that only the libc unmaps: what comes
// after it there must not be hit.
func TestPoolUnmapsSoThatCachesSeeIt(t *testing.T) {
	for range 20 {
		if poolUnmapsUnderACache(t) {
			return
		}
	}
	t.Fatal("another mapping comes each time where the pool's buffer was")
}

// poolUnmapsUnderACache is false where another mapping has come in the buffer's place: then nothing
// was tested.
func poolUnmapsUnderACache(t *testing.T) bool {
	f := newFake()
	c := cached(t, f)
	p := newPool(t, newFake())
	const size = 3 << 20
	b, err := p.Alloc(size)
	noError(t, err)
	lo := uintptr(b.Addr())
	stamp(lo, lo+size)
	before := getPut(t, c, lo, size, LocalWrite)
	if getPut(t, c, lo, size, LocalWrite) != before {
		t.Fatal("not cached: nothing was tested")
	}
	noError(t, p.Free(b))
	// Another mapping may have come there
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED_NOREPLACE
	if _, err := unix.MmapPtr(-1, 0, ptr(lo), size, rw, flags); errors.Is(err, unix.EEXIST) {
		c.Clear()
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.MunmapPtr(ptr(lo), size); err != nil {
			t.Error(err)
		}
	}()
	stamp(lo, lo+size)
	mustLand(t, f, c, lo, size, "a hit where the pool's buffer was")
	c.Clear()
	return true
}
