package conduit

import "github.com/ibconduit/conduit/internal/fabric"

// Stats are counters by network name.
type Stats map[string]Counters

// Counters are the operations of one network.
type Counters = fabric.Counters

func (s Stats) add(name string, c Counters) { s[name] = s[name].Add(c) }

func (s Stats) merge(o Stats) {
	for name, c := range o {
		s.add(name, c)
	}
}

// Stats are the worker's counters. It may be called from any goroutine, until
// Close.
func (w *Worker) Stats() Stats {
	w.job.workers.mu.Lock()
	defer w.job.workers.mu.Unlock()
	return statsOf(w)
}

// statsOf are the counters of a worker. The lock of the job's workers is held.
func statsOf(w *Worker) Stats {
	s := (&lanes{w.job, w.lanes}).stats()
	if w.direct != nil { // what never reached a lane because loads and stores did it
		c := w.direct.Load()
		c.Completed, c.Direct = c.Puts+c.Gets+c.Atomics, c.Puts+c.Gets
		s.add(FabricSHM, c)
	}
	return s
}

// Stats sums the counters of all workers, open and closed, and of the job's own operations.
func (j *Job) Stats() Stats {
	j.workers.mu.Lock()
	defer j.workers.mu.Unlock()
	s := make(Stats)
	s.merge(j.workers.retired)
	for w := range j.workers.open {
		s.merge(statsOf(w))
	}
	for l := range j.workers.parts {
		s.merge(l.stats())
	}
	return s
}

// stats are the counters of open lanes.
func (l *lanes) stats() Stats {
	s := make(Stats)
	for i, lane := range l.all {
		s.add(l.job.networks.all[i].Name(), lane.Counters().Load())
	}
	return s
}
