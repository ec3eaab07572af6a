package regcache

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ibconduit/conduit/internal/handle"
)

// PoolConfig says how a Pool behaves. Only Registrar is required.
type PoolConfig struct {
	// Registrar registers the memory.
	Registrar Registrar
	// Access is what each buffer is registered for. Default: all.
	Access Access
	// SlabBytes is how much memory is mapped and registered at once; a power of two, 64 KiB to 1
	// GiB. Default 2 MiB. Larger buffers get a mapping of their own.
	SlabBytes int
	// MaxBytes bounds the memory mapped, in bytes. Default: as Config.MaxBytes.
	MaxBytes int64
	// NoHugePages leaves out the attempt to map huge pages.
	NoHugePages bool
}

// Pool allocates buffers that are registered for as long as the pool is open: they need no look-up,
// and nothing can invalidate them. It is for callers that choose where their data lies. All methods
// may be called from any number of goroutines. Alloc and Free of a size that was used before take a
// lock, and neither system nor cgo calls.
//
// Buffers of up to SlabBytes share slabs in sizes of powers of two, from 64 bytes; a slab holds one
// size. A buffer is aligned to its size, up to a page. Its contents are the last user's.
type Pool struct {
	cfg    PoolConfig
	handle *handle.Handle
	pid    int

	mu     sync.Mutex
	closed bool
	free   [poolClasses][]*Buffer
	slabs  map[*slab]struct{}
	used   int
	bytes  int64
}

// Buffer is registered memory. It belongs to its holder until Free.
type Buffer struct {
	LKey, RKey uint32

	b     []byte // all of the size class
	n     int
	slab  *slab
	class int8
	taken bool // of the pool's lock
}

// slab is one mapping with one registration.
type slab struct {
	mem []byte
	mr  MR
}

const (
	minBuffer   = 64
	minShift    = 6
	poolClasses = 31 - minShift // up to 1 GiB
	ownMapping  = -1
)

// NewPool makes a pool. It maps nothing before the first Alloc.
func NewPool(cfg PoolConfig) (*Pool, error) {
	bad := ""
	switch {
	case cfg.Registrar == nil:
		bad = "PoolConfig.Registrar is nil"
	case cfg.Access&^allAccess != 0:
		bad = fmt.Sprintf("PoolConfig.Access is %#x", uint32(cfg.Access))
	case cfg.SlabBytes != 0 && (cfg.SlabBytes < 64<<10 || cfg.SlabBytes > 1<<30 || cfg.SlabBytes&(cfg.SlabBytes-1) != 0):
		bad = fmt.Sprintf("PoolConfig.SlabBytes is %d: a power of two from 64 KiB to 1 GiB", cfg.SlabBytes)
	case cfg.MaxBytes < 0:
		bad = fmt.Sprintf("PoolConfig.MaxBytes is %d", cfg.MaxBytes)
	}
	if bad != "" {
		return nil, &Error{Op: "new pool", Errno: syscall.EINVAL, Detail: bad}
	}
	if cfg.Access == 0 {
		cfg.Access = allAccess
	}
	if cfg.SlabBytes == 0 {
		cfg.SlabBytes = 2 << 20
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultMaxBytes()
	}
	p := &Pool{cfg: cfg, slabs: map[*slab]struct{}{}, pid: os.Getpid()}
	p.handle = handle.New(p, "buffer pool", "")
	return p, nil
}

// Bytes is the memory.
func (b *Buffer) Bytes() []byte { return b.b[:b.n:b.n] }

// Addr is where it begins, for work requests.
func (b *Buffer) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b.b)))) }

// Cap is the largest length in bytes that the buffer could have.
func (b *Buffer) Cap() int { return len(b.b) }

// Alloc returns n registered bytes. It fails with ENOMEM when the pool's limit or the machine's is
// reached.
func (p *Pool) Alloc(n int) (*Buffer, error) {
	if n <= 0 {
		return nil, &Error{Op: "alloc", Errno: syscall.EINVAL, Detail: fmt.Sprintf("%d bytes", n)}
	}
	class := max(bits.Len(uint(n-1)), minShift) - minShift
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed("alloc")
	}
	if n > p.cfg.SlabBytes {
		return p.mapOwnLocked(n)
	}
	if len(p.free[class]) == 0 {
		if err := p.mapSlabLocked(class); err != nil {
			return nil, err
		}
	}
	last := len(p.free[class]) - 1
	b := p.free[class][last]
	p.free[class] = p.free[class][:last]
	b.n, b.taken = n, true
	p.used++
	return b, nil
}

// Free gives a buffer back. Its operations must have completed. A second Free panics.
func (p *Pool) Free(b *Buffer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !b.taken {
		panic("regcache: a Buffer was freed twice")
	}
	if _, ours := p.slabs[b.slab]; !ours {
		panic("regcache: a Buffer was given to a Pool that it is not of")
	}
	b.taken = false
	p.used--
	if b.class == ownMapping {
		return p.unmapLocked(b.slab)
	}
	p.free[b.class] = append(p.free[b.class], b)
	return nil
}

// mapSlabLocked maps a slab and cuts it into buffers.
func (p *Pool) mapSlabLocked(class int) error {
	s, err := p.mapBytesLocked(p.cfg.SlabBytes)
	if err != nil {
		return err
	}
	size := minBuffer << class
	buffers := make([]Buffer, p.cfg.SlabBytes/size)
	for i := range buffers {
		at := (len(buffers) - 1 - i) * size // so that the lowest is handed out first
		buffers[i] = Buffer{LKey: s.mr.LKey(), RKey: s.mr.RKey(), b: s.mem[at : at+size : at+size], slab: s,
			class: int8(class)}
		p.free[class] = append(p.free[class], &buffers[i])
	}
	return nil
}

// mapOwnLocked maps a buffer that is larger than a slab.
func (p *Pool) mapOwnLocked(n int) (*Buffer, error) {
	size := (n + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	if size < n {
		return nil, p.fullLocked(n)
	}
	s, err := p.mapBytesLocked(size)
	if err != nil {
		return nil, err
	}
	p.used++
	return &Buffer{LKey: s.mr.LKey(), RKey: s.mr.RKey(), b: s.mem[:size:size], n: n, slab: s,
		class: ownMapping, taken: true}, nil
}

func (p *Pool) fullLocked(n int) error {
	return &Error{Op: "alloc", Errno: syscall.ENOMEM,
		Detail: fmt.Sprintf("%d bytes beside %d of at most %d", n, p.bytes, p.cfg.MaxBytes),
		Remedy: "free buffers, or raise PoolConfig.MaxBytes"}
}

func (p *Pool) mapBytesLocked(n int) (_ *slab, err error) {
	if p.forked() {
		return nil, errForked("alloc")
	}
	if int64(n) > p.cfg.MaxBytes-p.bytes {
		return nil, p.fullLocked(n)
	}
	mem, err := mapRegistered(n, !p.cfg.NoHugePages)
	if err != nil {
		return nil, err
	}
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	registered := false
	defer func() {
		if !registered { // refused, or the Registrar has panicked
			err = errors.Join(err, unmapRegistered(mem))
		}
	}()
	mr, err := p.cfg.Registrar.Register(addr, uint64(len(mem)), p.cfg.Access.full())
	if err != nil {
		return nil, &Error{Op: "register", Err: err, Detail: fmt.Sprintf("%d bytes of a pool", len(mem))}
	}
	registered = true
	s := &slab{mem: mem, mr: mr}
	p.slabs[s] = struct{}{}
	p.bytes += int64(len(mem))
	return s, nil
}

// unmapLocked gives a slab back. Memory that the device may still access stays mapped.
func (p *Pool) unmapLocked(s *slab) error {
	if p.forked() {
		return errForked("free")
	}
	if err := s.mr.Close(); err != nil {
		return &Error{Op: "deregister", Err: err}
	}
	delete(p.slabs, s)
	p.bytes -= int64(len(s.mem))
	return unmapRegistered(s.mem)
}

// Close unmaps everything. It refuses with ErrBusy while buffers are in use. It is idempotent.
func (p *Pool) Close() error {
	if p.forked() {
		return errForked("close pool")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if p.used > 0 {
		return &Error{Op: "close pool", Err: ErrBusy, Detail: fmt.Sprintf("%d buffers were not freed", p.used)}
	}
	var errs []error
	for s := range p.slabs {
		errs = append(errs, p.unmapLocked(s))
	}
	p.closed = true
	clear(p.free[:])
	p.handle.Close()
	return errors.Join(errs...)
}

// forked: as in Cache; the registrations and their descriptor are the parent's. Called where they
// are reached.
func (p *Pool) forked() bool { return os.Getpid() != p.pid }

// PoolStats are the figures of a pool.
type PoolStats struct {
	InUse         int   // buffers
	Registrations int   // slabs, and buffers larger than one
	Bytes         int64 // mapped and registered
}

// Stats reads the figures.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PoolStats{InUse: p.used, Registrations: len(p.slabs), Bytes: p.bytes}
}
