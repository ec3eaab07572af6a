package env

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/errtext"
)

// Service does for a part's handlers what they may not do themselves: send, call and wait. It runs
// work in a goroutine of its own, one piece after another, in the order in which it was posted. A
// handler that needs it defers its reply (am.Call.Defer) and posts the rest.
//
// What waits is bounded. Nothing that is posted is lost in silence: Post refuses it, or it runs, or
// Close says how much it dropped.
type Service struct {
	host  Host
	name  string
	depth int

	ctx         context.Context // of the work
	cancel      context.CancelFunc
	wake, ended am.Parker // of the goroutine; of Close

	mu      sync.Mutex
	queue   []func(context.Context)
	closing bool
	over    bool
}

// longest is the time of a context that only its cancel function ends: 73 years, and yet no sum of
// times overflows.
const longest = time.Duration(math.MaxInt64 / 4)

// NewService starts a service that keeps at most depth pieces of work, from 1 up. Its owner closes
// it.
func NewService(h Host, name string, depth int) *Service {
	s := &Service{host: h, name: name, depth: max(1, depth), wake: h.NewParker(), ended: h.NewParker()}
	s.ctx, s.cancel = h.WithTimeout(context.Background(), longest)
	h.Go(name, s.run)
	return s
}

// Post queues work. It does not block, and may be called from any goroutine, also by a handler. It
// fails when as much work waits as the service keeps, and with an error that is os.ErrClosed. The
// context of the work ends when Close gives up waiting for it.
func (s *Service) Post(f func(context.Context)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return errtext.Closed("conduit: the service is closed")
	case len(s.queue) >= s.depth:
		return fmt.Errorf("conduit: service %q has %d pieces of work to do, as many as it keeps: try again later",
			s.name, s.depth)
	}
	s.queue = append(s.queue, f)
	s.wake.Unpark()
	return nil
}

// run is the goroutine.
func (s *Service) run() {
	defer s.ended.Unpark()
	for {
		f, over := s.next()
		switch {
		case over:
			return
		case f != nil:
			f(s.ctx)
		default:
			_ = s.wake.Park(s.ctx) // either way there is a reason to look
		}
	}
}

// next takes the next piece of work; nil: there is none. It drops all when Close has given up.
func (s *Service) next() (f func(context.Context), over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing && s.ctx.Err() != nil {
		s.queue = nil
	}
	if len(s.queue) > 0 {
		f, s.queue[0], s.queue = s.queue[0], nil, s.queue[1:]
		return f, false
	}
	s.over = s.closing
	return nil, s.over
}

// Close takes no more work, runs queued work, and waits for the end of the goroutine. When ctx ends
// first, the context of the work ends, work still queued is dropped, and the error says how much
// that is: close again to wait for what runs. The work may use endpoints, so close a service before
// these. One goroutine at a time calls it, and none of the service's work.
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
