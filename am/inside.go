package am

import (
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/lockrank"
)

// inside knows the goroutines that run handlers, so that a handler which communicates gets an error
// in the release build as well. A slot that was used once is never 0 again: in front of the first 0
// of its probes a goroutine finds its mark, if it has one.
type inside struct {
	slots [128]atomic.Uintptr
	many  atomic.Int32 // of more
	more  sync.Map     // those that found no slot
}

// inHandler are all of the process: a handler of one job must not wait for another job either.
var inHandler inside

const (
	insideProbes = 8
	nobody       = ^uintptr(0) // in a slot that was used: neither the address of a g nor a goroutine's number
)

// home is the first slot that a goroutine may have.
func home(g uintptr) uint { return uint(g >> 7) } // a g is larger than 128 bytes

func (s *inside) slot(i uint) *atomic.Uintptr { return &s.slots[i%uint(len(s.slots))] }

// enter marks the calling goroutine, which leave gets the result of.
func (s *inside) enter() *atomic.Uintptr { return s.mark(lockrank.Goroutine()) }

func (s *inside) mark(g uintptr) *atomic.Uintptr {
	for i := home(g); i < home(g)+insideProbes; i++ {
		x := s.slot(i)
		if v := x.Load(); (v == 0 || v == nobody) && x.CompareAndSwap(v, g) {
			return x
		}
	}
	s.more.Store(g, nil)
	s.many.Add(1)
	return nil
}

func (s *inside) leave(x *atomic.Uintptr) {
	if x != nil {
		x.Store(nobody)
	} else {
		s.more.Delete(lockrank.Goroutine())
		s.many.Add(-1)
	}
}

// here reports whether the calling goroutine runs a handler.
func (s *inside) here() bool { return s.marked(lockrank.Goroutine()) }

func (s *inside) marked(g uintptr) bool {
	for i := home(g); i < home(g)+insideProbes; i++ {
		switch s.slot(i).Load() {
		case g:
			return true
		case 0:
			return false
		}
	}
	return s.among(g)
}

// among is marked for one that has no slot. If it were a part of marked, marked would be a part of
// nothing.
//
//go:noinline
func (s *inside) among(g uintptr) bool {
	if s.many.Load() == 0 {
		return false
	}
	_, there := s.more.Load(g)
	return there
}
