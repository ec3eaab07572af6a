//go:build linux && cgo

package ibv

import (
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/regcache"
)

// source is the source of a message's write, and how the device reads it.
type source struct {
	how    sourceKind
	src    []byte
	addr   uint64
	lkey   uint32
	region regcache.Region
	copied deviceMemory // sourceCopy
}

type sourceKind uint8

const (
	sourceNone    sourceKind = iota
	sourceInline             // small: it travels in the work request
	sourceSegment            // it lies in the segment
	sourceBuffer             // copied into the rest of the message's send buffer
	sourceRegion             // registered
	sourceCopy               // copied into memory of its own
	sourceFailed             // no memory can be had for it
)

// newSource chooses how the device reads the source of a write in front of a message that leaves so
// many bytes of its send buffer.
func (m *localMemory) newSource(src []byte, inline, rest int) source {
	s := source{src: src}
	addr, inSegment := m.inSegment(src)
	switch {
	case len(src) == 0:
	case len(src) <= inline:
		s.how = sourceInline
	case inSegment:
		s.how, s.addr, s.lkey = sourceSegment, addr, m.lkey
	case len(src) <= rest:
		s.how = sourceBuffer
	default:
		s.register(m)
	}
	return s
}

// register gets a registration of the source; where that cannot be, it is copied.
func (s *source) register(m *localMemory) {
	if c := m.cache; c != nil {
		r, err := c.Get(unsafe.Pointer(unsafe.SliceData(s.src)), uint64(len(s.src)), 0)
		if err == nil {
			s.how, s.region, s.addr, s.lkey = sourceRegion, r, addrOf(s.src), r.LKey
			return
		}
		if fatal(err) {
			s.how = sourceFailed
			return
		}
	}
	if s.copied.open(m.pd, len(s.src)) != nil {
		_ = s.copied.close()
		s.how = sourceFailed
		return
	}
	copy(s.copied.mem, s.src)
	s.how, s.addr, s.lkey = sourceCopy, addrOf(s.copied.mem), s.copied.mr.LKey()
}

// release ends the device's use of the source.
func (s *source) release(m *localMemory) {
	switch s.how {
	case sourceNone:
		return
	case sourceRegion:
		m.unregister(s.region)
	case sourceCopy:
		if err := s.copied.close(); err != nil {
			m.log.Warn("ibv: source of a write", "err", err)
		}
	}
	*s = source{}
}

// check says why a write cannot be done.
func (s *source) check() error {
	if s.how == sourceFailed {
		return fmt.Errorf("ibv: write: no registered memory for %d bytes: %w", len(s.src), fabric.ErrAgain)
	}
	return nil
}
