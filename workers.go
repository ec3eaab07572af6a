package conduit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ibconduit/conduit/cache"
)

// workers are those of a job that are open, with the lanes of its parts, and the counters of those
// that were.
type workers struct {
	mu      sync.Mutex
	open    map[*Worker]struct{}
	parts   map[*lanes]struct{} // that parts of the job have open
	opening int                 // that NewWorker is about to return
	opened  int                 // ever
	retired Stats
	// retiredCaches are the counters of caches of workers that are closed.
	retiredCaches cache.Stats
}

func newWorkers() workers {
	return workers{open: make(map[*Worker]struct{}), parts: make(map[*lanes]struct{}), retired: make(Stats)}
}

// close refuses workers from now on, and begins to leave, unless some are open.
func (s *workers) close(m *membership) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.open) + s.opening; n > 0 {
		return fmt.Errorf("conduit: close: %w: %d workers are open; close them first", ErrBusy, n)
	}
	m.advance(leaving)
	return nil
}

// closeAll closes workers that a rank function left open, so that the job can end. The errors say
// how many there were.
func (s *workers) closeAll() error {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	errs := []error{fmt.Errorf("conduit: %d workers were left open", len(open))}
	for _, w := range open {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

// OpenWorkers is how many workers are open.
func (j *Job) OpenWorkers() int {
	j.workers.mu.Lock()
	defer j.workers.mu.Unlock()
	return len(j.workers.open)
}

// NewWorker opens a worker. Over verbs there are Config.Workers of them; when none is to be had the
// error wraps ErrNoWorker. There it waits up to 2 s while the device still works off what a closed
// worker left.
func (j *Job) NewWorker() (*Worker, error) {
	s := &j.workers
	s.mu.Lock()
	if j.members.has(leaving) {
		s.mu.Unlock()
		return nil, errClosed("NewWorker", "job")
	}
	s.opening++
	turn := s.opened % j.cfg.MessageEndpoints
	s.opened++
	number := s.opened
	s.mu.Unlock()
	// Without the lock: a device may take seconds to be done with the lane's last user.
	w := &Worker{job: j, number: number, turn: turn, ctx: j.life, deaths: &j.members.deaths, generation: &j.members.generation}
	w.waitStop = w.stopWaiting
	err := w.open()
	if err != nil {
		err = errors.Join(fmt.Errorf("conduit: new worker: %w", err), w.giveBack())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening--
	if err != nil {
		return nil, err
	}
	s.open[w] = struct{}{}
	return w, nil
}
