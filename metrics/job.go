package metrics

import (
	"strconv"
	"strings"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/fabric"
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
	count := func(name, help string, v uint64, labels ...string) {
		add(Figure{Name: name, Help: help, Kind: Counter, Value: float64(v),
			Labels: append([]string{"network", network}, labels...)})
	}
	const started = "One-sided operations started."
	count("operations_total", started, c.Puts, "op", "put")
	count("operations_total", started, c.Gets, "op", "get")
	count("operations_total", started, c.Atomics, "op", "atomic")
	const payload = "Payload of puts and gets started."
	count("operation_bytes_total", payload, c.PutBytes, "op", "put")
	count("operation_bytes_total", payload, c.GetBytes, "op", "get")
	count("operations_completed_total", "One-sided operations complete at their target.", c.Completed)
	count("operation_errors_total", "One-sided operations that failed after they were posted.", c.Errors)

	const path = "Puts and gets by the way of their payload: inline in the work request, bounced through a buffer, " +
		"direct from or to the segment or mapped memory, or without a copy from or to the program's own memory."
	count("transfers_total", path, c.Inline, "path", "inline")
	count("transfers_total", path, c.Bounced, "path", "bounced")
	count("transfers_total", path, c.Direct, "path", "direct")
	count("transfers_total", path, c.ZeroCopy, "path", "zerocopy")
	count("transfers_unregistered_total",
		"Puts and gets that were bounced because their memory could not be registered, or not for longer than the operation.",
		c.Unregistered)
	count("doorbells_total", "Calls that posted work requests.", c.Doorbells)
	count("work_requests_total", "Work requests posted, those of split and of flushed operations included.", c.Requests)
	count("polls_total", "Calls that polled for completions.", c.Polls)
	count("stalls_total", "Posts that had to wait for room in a queue.", c.Stalls)
}
