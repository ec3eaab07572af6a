package conduit

import (
	"errors"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// newLanes opens a lane of each network, in their order. With an error those that it opened are
// closed.
func (n *networks) newLanes() ([]fabric.Lane, error) {
	lanes := make([]fabric.Lane, 0, len(n.all))
	for _, net := range n.all {
		l, err := net.NewLane()
		if err != nil {
			return nil, errors.Join(err, closeLanes(lanes))
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

func closeLanes(lanes []fabric.Lane) error {
	var errs []error
	for _, l := range lanes {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// lanes are the lanes of a part: env.Lanes.
type lanes struct {
	job *Job
	all []fabric.Lane
}

var _ env.Lanes = (*lanes)(nil)

func (l *lanes) To(rank int) fabric.Lane     { return l.all[l.job.networks.routes[rank].net] }
func (l *lanes) Atomic(rank int) fabric.Lane { return l.all[l.job.networks.routes[rank].amoNet] }
func (l *lanes) All() []fabric.Lane          { return l.all }
func (l *lanes) Waiter() fabric.Lane         { return l.all[len(l.all)-1] }

// Close keeps the counters for Job.Stats, which reads open lanes under the same lock.
func (l *lanes) Close() error {
	s := &l.job.workers
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, open := s.parts[l]; !open {
		return nil
	}
	delete(s.parts, l)
	s.retired.merge(l.stats())
	return closeLanes(l.all)
}

var _ env.Lanes = (*Worker)(nil)

// To is the worker's lane for puts and gets to a rank, for parts of the job (env.Lanes). Offsets
// count from the begin of the rank's segment.
func (w *Worker) To(rank int) fabric.Lane { return w.lanes[w.job.networks.routes[rank].net] }

// Atomic is the worker's lane for atomics on a rank's segment, otherwise like To.
func (w *Worker) Atomic(rank int) fabric.Lane { return w.lanes[w.job.networks.routes[rank].amoNet] }

// All are the worker's lanes, one for each network that the job uses.
func (w *Worker) All() []fabric.Lane { return w.lanes }

// Waiter is the lane that polls best while its user waits for a word: the lane of the last network,
// which is the slowest.
func (w *Worker) Waiter() fabric.Lane { return w.held.Waiter() }
