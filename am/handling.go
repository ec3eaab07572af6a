package am

import (
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// handlerMarks knows the goroutines that run handlers, so that a handler which communicates gets an
// error in the release build as well.
type handlerMarks struct {
	parts [16]part
	more  sync.Map // goroutines that found no slot
}

// part has the marks of some goroutines, which share a cache line. Mostly none of them runs a
// handler.
type part struct {
	running atomic.Int64 // those that do
	slots   [7]atomic.Uintptr
}

// inHandler are all of the process: a handler of one job must not wait for another job either.
var inHandler handlerMarks

// part is the part for a goroutine, by the address of its g or, elsewhere, its number.
func (s *handlerMarks) part(g uintptr) *part { return &s.parts[(g^g>>9)%uintptr(len(s.parts))] }

// mark marks a goroutine, until leave gets the result.
func (s *handlerMarks) mark(g uintptr) *atomic.Uintptr {
	p := s.part(g)
	p.running.Add(1)
	for i := range p.slots {
		if x := &p.slots[i]; x.Load() == 0 && x.CompareAndSwap(0, g) {
			return x
		}
	}
	s.more.Store(g, nil)
	return nil
}

func (s *handlerMarks) leave(g uintptr, x *atomic.Uintptr) {
	if x != nil {
		x.Store(0)
	} else {
		s.more.Delete(g)
	}
	s.part(g).running.Add(-1)
}

// here reports whether the calling goroutine runs a handler.
func (s *handlerMarks) here() bool {
	g := lockrank.Goroutine()
	p := s.part(g)
	return p.running.Load() != 0 && s.among(p, g)
}

func (s *handlerMarks) among(p *part, g uintptr) bool {
	for i := range p.slots {
		if p.slots[i].Load() == g {
			return true
		}
	}
	_, there := s.more.Load(g)
	return there
}

// mayUse is at the head of whatever communicates.
func (l *Endpoint) mayUse(op string) error {
	lockrank.CheckCommunication(op)
	if inHandler.here() {
		return ErrInHandler
	}
	return nil
}
