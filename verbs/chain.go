//go:build linux

package verbs

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/handle"
)

// MaxChainSlots bounds the number of slots of a chain: the largest queue a device may have (2^24
// work requests) is far above what a program posts.
const MaxChainSlots = 1 << 20

const cacheLine = 64

// ChainConfig says how large a chain is.
type ChainConfig struct {
	Slots  int // work requests; 1 to MaxChainSlots; 0 means 1
	SGEs   int // scatter entries per slot; 0 means 1
	Inline int // bytes of staging area per slot, for inline data or anything small; 0 means none
}

// chain is mapped memory with work requests of size S linked to a ring, their scatter entries, and
// a staging area. It belongs to one goroutine at a time.
type chain struct {
	handle *handle.Handle
	mem    []byte
	sges   []SGE
	area   []byte
	areaAt uint64 // its address
	kind   string
	base   uintptr // of the requests
	size   uintptr // of one
	slots  int
	perWR  int
	inline int // bytes per slot, rounded up to whole cache lines when it exceeds one
	queued int // sub-chains that wait in a doorbell
	closed bool
}

func (c *chain) init(kind string, wrSize uintptr, cfg ChainConfig) error {
	cfg.Slots, cfg.SGEs = max(cfg.Slots, 1), max(cfg.SGEs, 1)
	if cfg.Slots > MaxChainSlots || cfg.SGEs > 256 || cfg.Inline < 0 || cfg.Inline > 1<<20 {
		return &Error{Op: "new " + kind, Errno: unix.EINVAL, Detail: fmt.Sprintf("%+v is out of range", cfg),
			Remedy: fmt.Sprintf("at most %d slots of 256 scatter entries and 1 MiB", MaxChainSlots)}
	}
	c.kind, c.size = kind, wrSize
	c.slots, c.perWR, c.inline = cfg.Slots, cfg.SGEs, (cfg.Inline+7)&^7
	wrBytes := alignUp(cfg.Slots*int(wrSize), cacheLine)
	sgeBytes := alignUp(cfg.Slots*cfg.SGEs*int(unsafe.Sizeof(SGE{})), cacheLine)
	total := wrBytes + sgeBytes + cfg.Slots*c.inline
	mem, err := unix.Mmap(-1, 0, total, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return &Error{Op: "new " + kind, Errno: errnoOf(err), Detail: fmt.Sprintf("mapping %d bytes for %+v", total, cfg)}
	}
	c.mem, c.base = mem, uintptr(unsafe.Pointer(&mem[0]))
	c.sges = unsafe.Slice((*SGE)(unsafe.Pointer(&mem[wrBytes])), cfg.Slots*cfg.SGEs)
	c.area = mem[wrBytes+sgeBytes : total : total]
	c.areaAt = uint64(c.base) + uint64(wrBytes+sgeBytes)
	return nil
}

func alignUp(n, to int) int { return (n + to - 1) / to * to }

// addr is where request i begins.
func (c *chain) addr(i int) uintptr { return c.base + uintptr(i)*c.size }

// sgeAddr is where the scatter list of slot i begins.
func (c *chain) sgeAddr(i int) uintptr { return uintptr(unsafe.Pointer(&c.sges[i*c.perWR])) }

// SGEs returns the scatter entries of slot i. How many of them the request uses is the request's
// SetNumSGE.
func (c *chain) SGEs(i int) []SGE { return c.sges[i*c.perWR : (i+1)*c.perWR : (i+1)*c.perWR] }

// Area returns the staging area of slot i, of the configured size, rounded up
// to 8 bytes. It is not registered.
func (c *chain) Area(i int) []byte { return c.area[i*c.inline : (i+1)*c.inline : (i+1)*c.inline] }

// AreaAddr returns the address of the staging area of slot i.
func (c *chain) AreaAddr(i int) uint64 { return c.areaAt + uint64(i*c.inline) }

func (c *chain) close(unmap func()) error {
	if c.closed {
		return nil
	}
	if c.queued > 0 {
		return &Error{Op: "close", Object: c.kind, Errno: unix.EBUSY, Err: ErrBusy,
			Detail: fmt.Sprintf("%d sub-chains of it wait in a doorbell", c.queued), Remedy: "ring or reset the doorbell first"}
	}
	mem := c.mem
	c.closed, c.mem, c.sges, c.area, c.slots = true, nil, nil, nil, 0
	unmap()
	c.handle.Close()
	if err := unix.Munmap(mem); err != nil {
		return &Error{Op: "close", Object: c.kind, Errno: errnoOf(err)}
	}
	return nil
}

// SendChain is an array of send work requests, linked once, in memory that does not move and that
// the Go runtime does not look at. After its last slot comes its first, so a sub-chain may run
// around the end. It belongs to one goroutine at a time.
//
// A WR, SGE slice or area taken from a chain must not be used after Close.
type SendChain struct {
	chain
	wrs []SendWR
}

// NewSendChain returns a chain of unsignalled SENDs of one scatter entry.
func NewSendChain(cfg ChainConfig) (*SendChain, error) {
	c := &SendChain{}
	if err := c.init("send chain", unsafe.Sizeof(SendWR{}), cfg); err != nil {
		return nil, err
	}
	c.wrs = unsafe.Slice((*SendWR)(unsafe.Pointer(&c.mem[0])), c.slots)
	for i := range c.wrs {
		c.wrs[i] = SendWR{next: c.addr((i + 1) % c.slots), sgList: c.sgeAddr(i), numSGE: 1, Opcode: OpSend}
	}
	c.handle = handle.New(c, "send chain", fmt.Sprintf("of %d slots", c.slots))
	return c, nil
}

// WR returns slot i's request. It panics when the chain is closed or has no such slot.
func (c *SendChain) WR(i int) *SendWR { return &c.wrs[i] }

// SetInline makes slot i send the first n bytes of its own staging area inline.
func (c *SendChain) SetInline(i, n int) {
	c.sges[i*c.perWR] = SGE{Addr: c.AreaAddr(i), Length: uint32(n)}
	c.wrs[i].numSGE = 1
	c.wrs[i].Flags |= Inline
}

// CopyInline makes slot i send b inline: it copies b into its staging area, which is large enough.
func (c *SendChain) CopyInline(i int, b []byte) {
	start := i * c.inline
	copy(c.area[start:start+c.inline], b)
	c.sges[i*c.perWR] = SGE{Addr: c.areaAt + uint64(start), Length: uint32(len(b))}
	w := &c.wrs[i]
	w.numSGE = 1
	w.Flags |= Inline
}

// SetLocal makes slot i send from, or fetch into, one piece of registered memory.
func (c *SendChain) SetLocal(i int, addr uint64, length, lkey uint32) {
	c.sges[i*c.perWR] = SGE{Addr: addr, Length: length, LKey: lkey}
	c.wrs[i].numSGE = 1
}

// Close unmaps the chain. It is refused while a doorbell holds a part of it, and does nothing the
// second time.
func (c *SendChain) Close() error { return c.close(func() { c.wrs = nil }) }

// RecvChain is the same for receive work requests.
type RecvChain struct {
	chain
	wrs []RecvWR
}

// NewRecvChain returns a chain of requests with one scatter entry.
func NewRecvChain(cfg ChainConfig) (*RecvChain, error) {
	c := &RecvChain{}
	if err := c.init("receive chain", unsafe.Sizeof(RecvWR{}), cfg); err != nil {
		return nil, err
	}
	c.wrs = unsafe.Slice((*RecvWR)(unsafe.Pointer(&c.mem[0])), c.slots)
	for i := range c.wrs {
		c.wrs[i] = RecvWR{next: c.addr((i + 1) % c.slots), sgList: c.sgeAddr(i), numSGE: 1}
	}
	c.handle = handle.New(c, "receive chain", fmt.Sprintf("of %d slots", c.slots))
	return c, nil
}

// WR returns slot i's request. It panics when the chain is closed or has no such slot.
func (c *RecvChain) WR(i int) *RecvWR { return &c.wrs[i] }

// SetLocal makes slot i receive into one piece of registered memory.
func (c *RecvChain) SetLocal(i int, addr uint64, length, lkey uint32) {
	c.sges[i*c.perWR] = SGE{Addr: addr, Length: length, LKey: lkey}
	c.wrs[i].numSGE = 1
}

// Close unmaps the chain. It is refused while a doorbell holds a part of it, and does nothing the
// second time.
func (c *RecvChain) Close() error { return c.close(func() { c.wrs = nil }) }
