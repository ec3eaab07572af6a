package am

import (
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// inside knows the goroutines that run handlers, so that a handler which communicates
// gets an error in the release build as well.
type inside struct {
	n     atomic.Int32
	slots [128]atomic.Uintptr
	many  atomic.Int32 // of more
	more  sync.Map     // those that found no slot
}

// running are all of the process: a handler of one job must not wait for another job either.
var running inside

const insideProbes = 8

func (s *inside) slot(g uintptr, i int) *atomic.Uintptr {
	return &s.slots[(int(g>>7)+i)%len(s.slots)] // a g is larger than 128 bytes
}

// enter marks the calling goroutine, which leave gets the result of.
func (s *inside) enter() *atomic.Uintptr {
	g := lockrank.Goroutine()
	for i := range insideProbes {
		if x := s.slot(g, i); x.CompareAndSwap(0, g) {
			s.n.Add(1)
			return x
		}
	}
	s.more.Store(g, nil)
	s.many.Add(1)
	s.n.Add(1)
	return nil
}

func (s *inside) leave(x *atomic.Uintptr) {
	if x != nil {
		x.Store(0)
	} else {
		s.more.Delete(lockrank.Goroutine())
		s.many.Add(-1)
	}
	s.n.Add(-1)
}

// here reports whether the calling goroutine runs a handler.
func (s *inside) here() bool {
	if s.n.Load() == 0 {
		return false
	}
	g := lockrank.Goroutine()
	for i := range insideProbes {
		if s.slot(g, i).Load() == g {
			return true
		}
	}
	if s.many.Load() == 0 {
		return false
	}
	_, there := s.more.Load(g)
	return there
}
