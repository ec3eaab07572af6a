//go:build linux

package regcache

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/memtest"
)

var page = uintptr(os.Getpagesize())

// fake is a Registrar without a device. It touches the memory as a device's driver would, and so
// fails where that would, and remembers each page by the stamp that the test wrote at its start: a
// test that finds another stamp there later has another page than was registered.
type fake struct {
	limit  int64 // bytes; 0: none
	before func(lo, hi uintptr)
	ending func(m *fakeMR) // before one is deregistered
	ended  func()          // after one was
	failed func()          // after memory was found lacking
	fail   atomic.Pointer[error]

	mu     sync.Mutex
	serial uint32
	open   map[uint32]*fakeMR
	bytes  int64
	calls  int
}

type fakeMR struct {
	f      *fake
	lo     uintptr
	n      uint64
	access Access
	key    uint32
	stamps []uint64
}

func newFake() *fake { return &fake{open: map[uint32]*fakeMR{}} }

func (f *fake) Register(addr uintptr, n uint64, access Access) (MR, error) {
	if err := f.fail.Load(); err != nil {
		return nil, *err
	}
	if f.before != nil {
		f.before(addr, addr+uintptr(n))
	}
	stamps, err := touch(addr, addr+uintptr(n), access&LocalWrite != 0)
	if err != nil {
		return nil, err
	}
	m := f.take(&fakeMR{f: f, lo: addr, n: n, access: access, stamps: stamps})
	if m == nil {
		if f.failed != nil {
			f.failed()
		}
		return nil, syscall.ENOMEM
	}
	return m, nil
}

// take opens a registration, or returns nil where there is no room.
func (f *fake) take(m *fakeMR) *fakeMR {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.limit > 0 && f.bytes+int64(m.n) > f.limit {
		return nil
	}
	f.serial++
	f.bytes += int64(m.n)
	m.key = f.serial
	f.open[m.key] = m
	return m
}

func (m *fakeMR) LKey() uint32 { return m.key }
func (m *fakeMR) RKey() uint32 { return m.key }

func (m *fakeMR) Close() error {
	if m.f.ending != nil {
		m.f.ending(m)
	}
	err := m.drop()
	if m.f.ended != nil {
		m.f.ended()
	}
	return err
}

func (m *fakeMR) drop() error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.f.open[m.key] != m {
		return errors.New("deregistered twice")
	}
	delete(m.f.open, m.key)
	m.f.bytes -= int64(m.n)
	return nil
}

// mr is the registration behind a Region; it must be open.
func (f *fake) mr(t testing.TB, r Region) *fakeMR {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.open[r.LKey]
	if m == nil {
		t.Fatalf("registration %d is not open", r.LKey)
	}
	return m
}

func (f *fake) registered() (count int, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open), f.bytes
}

// lands reports whether an operation on [lo, lo+n) would access the pages that are there now.
func (m *fakeMR) lands(lo uintptr, n uint64) bool {
	if lo < m.lo || uint64(lo-m.lo)+n > m.n {
		return false
	}
	first := (lo &^ (page - 1)) - (m.lo &^ (page - 1))
	now, err := touch(lo&^(page-1), lo+uintptr(n), false)
	if err != nil {
		return false
	}
	for i, s := range now {
		if s != m.stamps[int(first/page)+i] {
			return false
		}
	}
	return true
}

// probe is a pipe through which the kernel reads and writes memory for us: it says EFAULT where we
// would crash.
type probe struct{ r, w int }

// probes are the idle ones. There are as many as threads ever touched memory at once.
var probes = make(chan *probe, 256)

func takeProbe() *probe {
	select {
	case p := <-probes:
		return p
	default:
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		panic(err)
	}
	return &probe{p[0], p[1]}
}

// touch reads the stamp of each page of [lo, hi), and writes into each page if asked to.
func touch(lo, hi uintptr, write bool) ([]uint64, error) {
	p := takeProbe()
	defer func() { probes <- p }()
	var stamps []uint64
	for a := lo &^ (page - 1); a < hi; a += page {
		s, err := p.peek(a)
		if err != nil {
			return nil, err
		}
		if write {
			if err := p.dirty(a + page - 8); err != nil {
				return nil, err
			}
			if s, err = p.peek(a); err != nil { // a page of zeros has become a page of its own
				return nil, err
			}
		}
		stamps = append(stamps, s)
	}
	return stamps, nil
}

func (p *probe) peek(a uintptr) (s uint64, err error) {
	if _, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.w), a, 8); e != 0 {
		return 0, e
	}
	_, err = unix.Read(p.r, unsafe.Slice((*byte)(unsafe.Pointer(&s)), 8))
	return s, err
}

// dirty writes the word that is there. The last word of a page has no other use.
func (p *probe) dirty(a uintptr) error {
	if _, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(p.w), a, 8); e != 0 {
		return e
	}
	if _, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(p.r), a, 8); e != 0 {
		var s uint64
		unix.Read(p.r, unsafe.Slice((*byte)(unsafe.Pointer(&s)), 8))
		return e
	}
	return nil
}

var stamps atomic.Uint64

// stamp gives each page of [lo, hi) an identity that no page had before.
func stamp(lo, hi uintptr) {
	for a := lo &^ (page - 1); a < hi; a += page {
		*(*uint64)(ptr(a)) = stamps.Add(1) << 8
	}
}

// ptr is a pointer to memory that Go did not allocate.
func ptr(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

const rw = unix.PROT_READ | unix.PROT_WRITE

// reserve maps pages of their own, and stamps them.
func reserve(t testing.TB, pages int) uintptr {
	t.Helper()
	n := uintptr(pages) * page
	p := must(memtest.TakeAddresses(n))(t)
	mapAt(t, p, n, rw)
	t.Cleanup(func() { mapAt(t, p, n, unix.PROT_NONE) })
	stamp(p, p+n)
	return p
}

// mapAt puts fresh pages at [lo, lo+n), by a call that hooks do not see.
func mapAt(t testing.TB, lo, n uintptr, prot uintptr) {
	t.Helper()
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_FIXED
	if _, _, errno := unix.RawSyscall6(unix.SYS_MMAP, lo, n, prot, flags, ^uintptr(0), 0); errno != 0 {
		t.Fatal(errno)
	}
	// Such as are given back join the arena's: a process may have 65530 mappings
	if prot != unix.PROT_NONE {
		unix.RawSyscall(unix.SYS_MADVISE, lo, n, unix.MADV_NOHUGEPAGE)
	}
}

// remap puts fresh pages at [lo, hi), by a call that no monitor sees: what is there was unmapped
// before.
func remap(t testing.TB, lo, hi uintptr) {
	t.Helper()
	mapAt(t, lo, hi-lo, rw)
	stamp(lo, hi)
}

func newCache(t testing.TB, f *fake, edit ...func(*Config)) *Cache {
	t.Helper()
	cfg := Config{Registrar: f}
	for _, e := range edit {
		e(&cfg)
	}
	c, err := New(cfg)
	noError(t, err)
	t.Cleanup(func() { finish(t, c, f) })
	return c
}

// finish checks the identities, and that closing leaves nothing.
func finish(t testing.TB, c *Cache, f *fake) {
	t.Helper()
	checkStats(t, c)
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if n, bytes := f.registered(); n != 0 || bytes != 0 {
		t.Errorf("%d registrations, %d bytes are left after Close", n, bytes)
	}
	if s := c.Stats(); s.Live != 0 || s.Dead != 0 || s.Bytes != 0 || s.Registered != s.Deregistered {
		t.Errorf("after Close: %+v", s)
	}
}

func checkStats(t testing.TB, c *Cache) {
	t.Helper()
	s := c.Stats()
	if s.Gets != s.Hits+s.Misses+s.Uncached {
		t.Errorf("gets are not hits + misses + uncached: %+v", s)
	}
	if int(s.Registered-s.Deregistered) != s.Live+s.Dead {
		t.Errorf("registered - deregistered is not live + dead: %+v", s)
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

// panicked returns what f panics with, or nil.
func panicked(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

func mustGet(t testing.TB, c *Cache, lo uintptr, n uint64, access Access) Region {
	t.Helper()
	return must(c.Get(ptr(lo), n, access))(t)
}

func mustPut(t testing.TB, c *Cache, r Region) {
	t.Helper()
	noError(t, c.Put(r))
}

// mustLand gets and puts, and returns the key. It is an error if the device would access other
// pages than those that are there now.
func mustLand(t testing.TB, f *fake, c *Cache, lo uintptr, n uint64, what string) uint32 {
	t.Helper()
	r := mustGet(t, c, lo, n, LocalWrite)
	if !f.mr(t, r).lands(lo, n) {
		t.Errorf("stale: %s", what)
	}
	mustPut(t, c, r)
	return r.LKey
}

// getPut gets and puts, and returns the key.
func getPut(t testing.TB, c *Cache, lo uintptr, n uint64, access Access) uint32 {
	t.Helper()
	r := mustGet(t, c, lo, n, access)
	mustPut(t, c, r)
	return r.LKey
}

// testTimeout bounds what must happen soon but is not timed.
const testTimeout = time.Minute

// eventually waits for what another goroutine or thread is about to do.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, testTimeout)
		}
	}
}
