package env

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/queue"
)

// Service does for a part's handlers what they may not do themselves: send, call and wait. It runs
// work in a goroutine of its own, one piece after another, in the order in which it was posted or
// its time came. A handler that needs it defers its reply (am.Call.Defer) and posts the rest.
//
// What waits is bounded. Nothing that is posted is lost in silence: Post and After refuse it, or it
// runs, or Close says how much it dropped.
type Service struct {
	host  Host
	name  string
	depth int

	ctx         context.Context // of the work
	cancel      context.CancelFunc
	wake, ended am.Parker // of the goroutine; of Close

	mu      sync.Mutex
	queue   []*Work
	timers  queue.Heap[*Work]
	posted  uint64
	closing bool
	over    bool
	stats   ServiceStats
}

// Work is what a Service is to run.
type Work struct {
	s     *Service
	f     func(context.Context) // nil: it has begun, or was stopped
	at    time.Duration         // not before
	turn  uint64                // among those of the same time
	index int                   // among the timers; 0: it is queued
}

// ServiceStats count what became of work. Ran + Stopped + Dropped + Waiting is Posted.
type ServiceStats struct {
	Posted  uint64 // and accepted
	Refused uint64 // the service was full, or closed
	Ran     uint64 // the piece that runs included
	Stopped uint64 // before it began
	Dropped uint64 // by Close: timers, and work that it had no time for
	Waiting int
}

// FullError says that a service has as much to do as it may keep.
type FullError struct {
	Service string
	Depth   int
}

func (e *FullError) Error() string {
	return fmt.Sprintf("conduit: service %q has %d pieces of work to do, as many as it keeps: try again later",
		e.Service, e.Depth)
}

// ErrServiceClosed says that a service takes no work any more. It matches os.ErrClosed.
var ErrServiceClosed error = errtext.Closed("conduit: the service is closed")

// longest is the time of a context that only its cancel function ends: 73 years, and yet no sum of
// times overflows.
const longest = time.Duration(math.MaxInt64 / 4)

// NewService starts a service that keeps at most depth pieces of work, from 1 up, including work
// that is not due yet. Its owner closes it.
func NewService(h Host, name string, depth int) *Service {
	s := &Service{host: h, name: name, depth: max(1, depth), wake: h.NewParker(), ended: h.NewParker()}
	s.ctx, s.cancel = h.WithTimeout(context.Background(), longest)
	h.Go(name, s.run)
	return s
}

// Post queues work. It does not block, and may be called from any goroutine, also by a handler.
// Errors: a *FullError, ErrServiceClosed. The context of the work ends when Close gives up waiting
// for it.
func (s *Service) Post(f func(context.Context)) error {
	_, err := s.add(f, 0)
	return err
}

// After queues work when d has passed. Like Post otherwise.
func (s *Service) After(d time.Duration, f func(context.Context)) (*Work, error) {
	return s.add(f, s.host.Now()+min(max(d, 0), longest))
}

func (s *Service) add(f func(context.Context), at time.Duration) (*Work, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		s.stats.Refused++
		return nil, ErrServiceClosed
	case len(s.queue)+s.timers.Len() >= s.depth:
		s.stats.Refused++
		return nil, &FullError{Service: s.name, Depth: s.depth}
	}
	s.stats.Posted++
	s.posted++
	w := &Work{s: s, f: f, at: at, turn: s.posted}
	if at == 0 {
		s.queue = append(s.queue, w)
	} else {
		s.timers.Add(w)
	}
	s.wake.Unpark()
	return w, nil
}

// Stop reports whether the work had not begun, and will not.
func (w *Work) Stop() bool {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.f == nil {
		return false
	}
	w.f = nil
	if w.index > 0 {
		s.timers.Remove(w)
	} else {
		for i, x := range s.queue {
			if x == w {
				s.queue = append(s.queue[:i], s.queue[i+1:]...)
				break
			}
		}
	}
	s.stats.Stopped++
	return true
}

// run is the goroutine.
func (s *Service) run() {
	defer s.ended.Unpark()
	for {
		f, rest, over := s.next()
		switch {
		case over:
			return
		case f != nil:
			f(s.ctx)
		default:
			s.sleep(rest)
		}
	}
}

// next takes the next piece of work, or says for how long there is none.
func (s *Service) next() (f func(context.Context), rest time.Duration, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.host.Now()
	for w := s.timers.First(); w != nil && w.at <= now; w = s.timers.First() {
		s.timers.Remove(w)
		s.queue = append(s.queue, w)
	}
	if s.closing {
		s.dropLocked()
	}
	if len(s.queue) > 0 {
		w := s.queue[0]
		s.queue[0], s.queue = nil, s.queue[1:]
		f, w.f = w.f, nil
		s.stats.Ran++
		return f, 0, false
	}
	if s.closing {
		s.over = true
		return nil, 0, true
	}
	if w := s.timers.First(); w != nil {
		return nil, w.at - now, false
	}
	return nil, longest, false
}

// dropLocked ends timers, and all work when Close has given up.
func (s *Service) dropLocked() {
	var drop []*Work
	for w := s.timers.First(); w != nil; w = s.timers.First() {
		s.timers.Remove(w)
		drop = append(drop, w)
	}
	if s.ctx.Err() != nil {
		drop = append(drop, s.queue...)
		s.queue = nil
	}
	for _, w := range drop {
		w.f = nil
	}
	s.stats.Dropped += uint64(len(drop))
}

// sleep waits for work, or for the time of the next.
func (s *Service) sleep(d time.Duration) {
	ctx, cancel := s.host.WithTimeout(context.Background(), d)
	defer cancel()
	_ = s.wake.Park(ctx) // either way there is a reason to look
}

// Close takes no more work, runs queued work, drops timers that are not due, and waits for the
// end of the goroutine. When ctx ends first, the context of the work ends, work still queued is
// dropped, and the error says how much that is: close again to wait for what runs. The work may use
// endpoints, so close a service before these. One goroutine at a time calls it, and none of the
// service's work.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.wake.Unpark()
	for {
		s.mu.Lock()
		over, queued := s.over, len(s.queue)
		s.mu.Unlock()
		if over {
			s.cancel()
			return nil
		}
		if err := s.ended.Park(ctx); err != nil {
			s.cancel()
			return fmt.Errorf("conduit: close of service %q with work that runs, and %d pieces behind it: %w",
				s.name, queued, err)
		}
	}
}

// Stats reads the counters.
func (s *Service) Stats() ServiceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Waiting = len(s.queue) + s.timers.Len()
	return stats
}

// Before is the order in which work is due.
func (w *Work) Before(o *Work) bool { return w.at < o.at || w.at == o.at && w.turn < o.turn }

// Place is where the timers note it.
func (w *Work) Place() *int { return &w.index }
