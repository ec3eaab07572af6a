//go:build linux && cgo && (amd64 || arm64)

package memevents

// #include "ibc_mem.h"
import "C"

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
)

// Subscription delivers events outside of the hooks, some time after they happened. It is for
// watching and for statistics; whether a registration is still true only Acquire says.
type Subscription struct {
	c      chan Event
	lost   atomic.Uint64
	missed bool // events were lost since the last that was delivered
}

// pump is the one goroutine that empties the ring which hooks fill, while there are subscribers.
var pump struct {
	mu     sync.Mutex
	subs   map[*Subscription]struct{}
	stop   context.CancelFunc
	exited chan struct{}
	lost   uint64 // of the ring's losses, those reported
}

// Subscribe delivers from now on what hooks and userfaultfd see, up to buffer events ahead of the
// reader (0: a default). An event that finds no room is counted by Lost, and the next that finds
// room is preceded by one of kind Lost.
func Subscribe(buffer int) (*Subscription, error) {
	if buffer <= 0 {
		buffer = DefaultEventBuffer
	}
	m := table()
	if forked(m) {
		return nil, errForked("subscribe")
	}
	Status()
	pump.mu.Lock()
	defer pump.mu.Unlock()
	s := &Subscription{c: make(chan Event, buffer+1)}
	if len(pump.subs) == 0 {
		if err := startPump(m); err != nil {
			return nil, err
		}
	}
	pump.subs[s] = struct{}{}
	return s, nil
}

func startPump(m *C.struct_ibc_mem) error {
	if !u32(&m.ring_on).CompareAndSwap(0, 1) {
		return &Error{Op: "subscribe", Err: ErrBusy, Detail: "another Go runtime of this process takes the events"}
	}
	f, err := eventFile(&m.ring_efd, "events")
	if err != nil {
		u32(&m.ring_on).Store(0)
		return err
	}
	var old [128]C.struct_ibc_mem_taken
	ctx, cancel := context.WithCancel(context.Background())
	pump.subs, pump.stop, pump.exited = map[*Subscription]struct{}{}, cancel, make(chan struct{})
	// Of the last subscribers
	for C.ibc_mem_ring_take(m, &old[0], C.uint32_t(len(old))) == C.uint32_t(len(old)) {
	}
	pump.lost = u64(&m.ring_lost).Load()
	go runPump(ctx, m, f, pump.exited)
	return nil
}

func runPump(ctx context.Context, m *C.struct_ibc_mem, f *os.File, exited chan struct{}) {
	defer close(exited)
	defer f.Close()
	for {
		takeRing(m)
		if waitEvent(ctx, f) != nil {
			return
		}
	}
}

// takeRing hands out what is in the ring.
func takeRing(m *C.struct_ibc_mem) {
	var taken [128]C.struct_ibc_mem_taken
	for {
		// The ring has one reader at a time, also while one pump ends and the next begins
		pump.mu.Lock()
		n := C.ibc_mem_ring_take(m, &taken[0], C.uint32_t(len(taken)))
		if lost := u64(&m.ring_lost).Load(); lost != pump.lost {
			for s := range pump.subs {
				s.lost.Add(lost - pump.lost)
				s.missed = true
			}
			pump.lost = lost
		}
		for _, t := range taken[:n] {
			e := Event{Kind: Unmapped, Lo: uintptr(t.lo), Hi: uintptr(t.hi)}
			if t.event == C.IBC_MEM_VM_MAPPED {
				e.Kind = Mapped
			}
			for s := range pump.subs {
				s.deliver(e)
			}
		}
		pump.mu.Unlock()
		if int(n) < len(taken) {
			return
		}
	}
}

// deliver keeps one place for the mark of a loss.
func (s *Subscription) deliver(e Event) {
	room := cap(s.c) - len(s.c)
	if s.missed && room >= 2 {
		s.c <- Event{Kind: Lost}
		s.missed = false
		room--
	}
	if s.missed || room < 2 {
		s.lost.Add(1)
		s.missed = true
		return
	}
	s.c <- e
}

// Events is closed by Close.
func (s *Subscription) Events() <-chan Event { return s.c }

// Lost counts the events that this subscriber did not get.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// Close ends the delivery. It is idempotent.
func (s *Subscription) Close() {
	pump.mu.Lock()
	if _, ok := pump.subs[s]; !ok {
		pump.mu.Unlock()
		return
	}
	delete(pump.subs, s)
	close(s.c)
	var exited chan struct{}
	if len(pump.subs) == 0 {
		pump.stop()
		exited = pump.exited
		u32(&table().ring_on).Store(0)
	}
	pump.mu.Unlock()
	if exited != nil {
		<-exited
	}
}
