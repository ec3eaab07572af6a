package metrics

import (
	"strconv"
	"strings"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
)

// jobSource reads a job's own state and counters.
type jobSource struct {
	job  *conduit.Job
	info conduit.Info
}

func (s jobSource) Figures(add func(Figure)) {
	s.state(add)
	stats := s.job.Stats()
	for _, n := range s.info.Networks {
		if _, ok := stats[n]; !ok {
			stats[n] = fabric.Counters{}
		}
	}
	for name, c := range stats {
		operations(name, c, add)
	}
	latencies(conduit.Latencies(s.job), add)
	for name, m := range s.job.MessageStats() {
		messages(name, m, add)
	}
	for name, m := range s.job.LibraryStats() {
		library(name, m, add)
	}
	if s.info.Shared.Heap > 0 {
		heaps(s.job.HeapStats(), s.info.Rank, add)
	}
	if b := s.job.Budget(); b != nil {
		memory(b.MemoryStats(), s.info.Memory, add)
	}
	if r, ok := s.job.Registrations(); ok {
		registrations(r.Stats, add)
	}
}

// state is the job's figures and health.
func (s jobSource) state(add func(Figure)) {
	gauge := func(name, help string, v int) {
		add(Figure{Name: name, Help: help, Kind: Gauge, Value: float64(v)})
	}
	add(Figure{Name: "job_info", Help: "Always 1; the labels describe the job.", Kind: Gauge, Value: 1, Labels: []string{
		"size", strconv.Itoa(s.info.Size),
		"bootstrap", s.info.Bootstrap,
		"networks", strings.Join(s.info.Networks, ","),
	}})
	add(build())
	gauge("ranks", "Ranks of the job.", s.info.Size)
	gauge("ranks_down", "Ranks that this rank knows to be dead.", len(s.job.DownRanks()))
	gauge("workers_open", "Workers of this rank that are open.", s.job.OpenWorkers())
	gauge("segment_bytes", "Size of this rank's segment.", int(s.job.SegmentSize(s.info.Rank)))
}

// operations are the counters of one network.
func operations(network string, c fabric.Counters, add func(Figure)) {
	reader{labels: []string{"network", network}, add: add}.read(c)
}

// messages are the counters of the program's active messages over one network, library the
// library's own: series of the same names behind the prefix library_.
func messages(network string, s am.Stats, add func(Figure)) {
	reader{prefix: "message_", labels: []string{"network", network}, add: add}.read(s)
}
func library(network string, s am.Stats, add func(Figure)) {
	reader{prefix: "library_message_", labels: []string{"network", network}, add: add}.read(s)
}

// heaps are the figures of the shared heaps of a job that has some, for rank 0 also of the
// global heap.
func heaps(s conduit.HeapStats, rank int, add func(Figure)) {
	r := reader{prefix: "heap_", add: add}
	if rank > 0 {
		r.not = "rank 0"
	}
	r.read(s)
}

// memory are the figures of a job's budget of transient memory.
func memory(s conduit.MemoryStats, l conduit.MemoryLayout, add func(Figure)) {
	r := reader{add: add}
	r.read(s)
	r.read(l)
}

// registrations are the counters of the registrations of the program's own memory.
func registrations(s regcache.Stats, add func(Figure)) {
	r := reader{add: add}
	r.read(s)
	r.read(memevents.ReadStats())
}
