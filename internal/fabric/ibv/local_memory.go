//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// registrar is a protection domain as package regcache wants it. The bits of both kinds of access
// are as in ibv_reg_mr(3).
type registrar struct{ pd *verbs.PD }

func (r registrar) Register(addr uintptr, n uint64, access regcache.Access) (regcache.MR, error) {
	mr, err := r.pd.RegisterRange(addr, n, verbs.Access(access))
	if err != nil {
		return nil, err // not a nil *verbs.MR in an interface
	}
	return mr, nil
}

// localMemory is the memory that operations move data from and to: the segment, and the program's
// own.
type localMemory struct {
	pd         *verbs.PD
	log        *slog.Logger
	base, size uint64 // of the segment
	lkey       uint32

	origin    regcache.Origin
	asked     int64           // Config.ZeroCopyMin
	cache     *regcache.Cache // of registrations of the program's own memory; nil: never registered
	zeroMin   atomic.Int64    // bytes from which on it is
	singleMin atomic.Int64    // bytes from which on also for one operation
}

// openCache makes the registrations of the program's own memory possible, unless the configuration
// forbids it.
func (m *localMemory) openCache() (err error) {
	m.zeroMin.Store(math.MaxInt64)
	if m.asked < 0 {
		return nil
	}
	m.cache, err = regcache.New(regcache.Config{Registrar: registrar{m.pd}, Origin: m.origin})
	if err != nil {
		return err
	}
	m.settle(m.cache.Status())
	return nil
}

// settle decides from which size on the program's own memory is registered: it pays earlier when
// registrations are kept. A configured size holds in either case.
func (m *localMemory) settle(s regcache.Status) {
	o := s.Origins[m.origin]
	kept, single := m.asked, m.asked
	if kept == 0 {
		kept, single = zeroCopyMin, zeroCopyMinSingle
	}
	if o.Mode == regcache.PerOperation {
		kept = single
	}
	// A shorter put promises that its source is free for reuse when it returns.
	m.zeroMin.Store(max(kept, copyMax+1))
	m.singleMin.Store(single)
	m.log.Info("ibv: the program's own memory", "origin", o.Origin, "registrations", o.Mode, "from bytes",
		m.zeroMin.Load(), "why", o.Why)
}

// closeCache closes the cache; every registration has been given back.
func (m *localMemory) closeCache() error {
	if m.cache == nil {
		return nil
	}
	if err := m.cache.Close(); err != nil {
		return fmt.Errorf("registrations of the program's own memory: %w", err)
	}
	return nil
}

// inSegment returns the address of buf, and whether it lies in the segment.
func (m *localMemory) inSegment(buf []byte) (uint64, bool) {
	p := addrOf(buf)
	off := p - m.base
	return p, off < m.size && uint64(len(buf)) <= m.size-off
}

// register gets a registration of buf for one operation or, if it is kept, for later ones too. An
// error that is fatal is the operation's; after others its data is copied.
//
// buf never lies on a goroutine's stack: it came through an interface (fabric.Lane), and is kept in
// a Region, either of which makes the compiler allocate it on the heap.
func (m *localMemory) register(buf []byte, access regcache.Access) (regcache.Region, error) {
	p, n := unsafe.Pointer(unsafe.SliceData(buf)), uint64(len(buf))
	r, err := m.cache.GetKept(p, n, access)
	if err != nil && int64(n) >= m.singleMin.Load() && errors.Is(err, regcache.ErrNotKept) {
		r, err = m.cache.Get(p, n, access)
	}
	return r, err
}

// unregister gives a registration back. One for a single operation is deregistered here.
func (m *localMemory) unregister(r regcache.Region) {
	if err := m.cache.Put(r); err != nil {
		m.log.Warn("ibv: registration of the program's memory", "err", err)
	}
}

// fatal reports an error of the cache that no copy may hide: it had a registration of other pages
// than the addresses.
func fatal(err error) bool { return errors.Is(err, regcache.ErrStale) }

func addrOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Registrations is the cache of registrations of the program's own memory; nil when it is never
// registered. It is the network's, and closed with it.
func (n *Network) Registrations() *regcache.Cache { return n.mem.cache }

// ZeroCopyMin is from how many bytes on a put or get of the program's own memory goes without a
// copy; math.MaxInt64: never.
func (n *Network) ZeroCopyMin() int64 { return n.mem.zeroMin.Load() }

// Retest tests again whether all changes of the program's memory are noticed: another library may
// have replaced the hooks since. Memory with unnoticed changes is registered for each operation
// from then on. It may be called at any time.
func (n *Network) Retest() (s regcache.Status, ok bool) {
	if n.mem.cache == nil {
		return s, false
	}
	s = n.mem.cache.Retest()
	n.mem.settle(s)
	return s, true
}

// pieces is in how many work requests n bytes are moved.
func pieces(n, size int) int32 { return int32((n + size - 1) / size) }
