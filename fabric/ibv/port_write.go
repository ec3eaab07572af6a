//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// lent is the source of a write while a message holds it, and how the device reaches it.
type lent struct {
	how    lentHow
	src    []byte
	addr   uint64
	lkey   uint32
	region regcache.Region
	mem    []byte // lentCopy
	mr     *verbs.MR
}

type lentHow uint8

const (
	lentNothing lentHow = iota
	lentInline          // small: it travels in the work request
	lentSegment         // it lies in the segment
	lentBuffer          // copied into what the message leaves of its send buffer
	lentRegion          // registered
	lentCopy            // copied into memory of its own
	lentFailed          // no memory can be had for it
)

// checkWrite checks what does not need the lock.
func (p *port) checkWrite(rank, n int, w *fabric.Write) error {
	if err := p.served(rank); err != nil {
		return err
	}
	if n < 0 || n > p.cfg.SlotSize {
		return &fabric.BoundsError{Op: "send", Rank: rank, Len: uint64(n), Size: uint64(p.cfg.SlotSize)}
	}
	return fabric.CheckRange("write", rank, w.Off, uint64(len(w.Src)), p.n.peers[rank].size)
}

// lend finds the way on which the device reaches the source of a write that goes before a message of n bytes.
func (p *port) lend(src []byte, n int) lent {
	l := lent{src: src}
	addr, inSegment := p.n.local(src)
	switch {
	case len(src) == 0:
	case len(src) <= p.inline:
		l.how = lentInline
	case inSegment:
		l.how, l.addr, l.lkey = lentSegment, addr, p.n.mr.LKey()
	case len(src) <= p.cfg.SlotSize-n:
		l.how = lentBuffer
	default:
		p.register(&l)
	}
	return l
}

// register has the cache of registrations reach the source; where that cannot be, it is copied.
func (p *port) register(l *lent) {
	if c := p.n.cache; c != nil {
		r, err := c.Get(unsafe.Pointer(unsafe.SliceData(l.src)), uint64(len(l.src)), 0)
		if err == nil {
			l.how, l.region, l.addr, l.lkey = lentRegion, r, addrOf(l.src), r.LKey
			return
		}
		if fatal(err) {
			l.how = lentFailed
			return
		}
	}
	mem, err := unix.Mmap(-1, 0, len(l.src), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		l.how = lentFailed
		return
	}
	mr, err := p.n.pd.Register(unsafe.Pointer(unsafe.SliceData(mem)), uint64(len(mem)), verbs.AccessLocalWrite)
	if err != nil {
		_ = unix.Munmap(mem)
		l.how = lentFailed
		return
	}
	copy(mem, l.src)
	l.how, l.mem, l.mr, l.addr, l.lkey = lentCopy, mem, mr, addrOf(mem), mr.LKey()
}

// giveBack ends the device's use of the source.
func (p *port) giveBack(l *lent) {
	var err error
	switch l.how {
	case lentRegion:
		err = p.n.cache.Put(l.region)
	case lentCopy:
		err = errors.Join(l.mr.Close(), unix.Munmap(l.mem))
	}
	if err != nil {
		p.n.log.Warn("ibv: source of a write", "port", p.num, "err", err)
	}
	*l = lent{}
}

// check says why a write cannot be done.
func (l *lent) check() error {
	if l.how == lentFailed {
		return fmt.Errorf("ibv: write: no registered memory for %d bytes: %w", len(l.src), fabric.ErrAgain)
	}
	return nil
}

// pieces is in how many work requests n bytes are written.
func (p *port) pieces(n int) int32 { return int32((n + p.n.piece - 1) / p.n.piece) }

// fillWrite makes a work request of a piece of a message's write.
func (p *port) fillWrite(c *conn, m *message, slot, piece int) {
	l := &m.lent
	at := piece * p.n.piece
	n := min(p.n.piece, len(l.src)-at)
	w := p.chain.WR(slot)
	w.Opcode = verbs.OpWrite
	w.SetRemote(c.base+m.off+uint64(at), c.rkey)
	switch l.how {
	case lentInline:
		copy(p.chain.Area(slot), l.src)
		p.chain.SetInline(slot, n)
	case lentBuffer:
		p.chain.SetLocal(slot, addrOf(p.sendBytes(m.buf)[m.n:]), uint32(n), p.mr.LKey())
	default:
		p.chain.SetLocal(slot, l.addr+uint64(at), uint32(n), l.lkey)
	}
}
