package metrics

import (
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
)

// registrations are the counters of the registrations of the program's own memory.
func registrations(s regcache.Stats, add func(Figure)) {
	figure := func(kind Kind) func(name, help string, v float64, labels ...string) {
		return func(name, help string, v float64, labels ...string) {
			add(Figure{Name: name, Help: help, Kind: kind, Value: v, Labels: labels})
		}
	}
	count, gauge := figure(Counter), figure(Gauge)
	const lookups = "Uses of registrations of the program's own memory: hit where one was kept, " +
		"miss where one was made and kept, uncached where one was made for a single operation."
	count("registration_lookups_total", lookups, float64(s.Hits), "result", "hit")
	count("registration_lookups_total", lookups, float64(s.Misses), "result", "miss")
	count("registration_lookups_total", lookups, float64(s.Uncached), "result", "uncached")
	count("registrations_made_total", "Registrations made.", float64(s.Registered))
	count("registrations_ended_total", "Registrations ended.", float64(s.Deregistered))
	count("registration_errors_total", "Registrations that failed.", float64(s.RegisterErrors))
	const gone = "Kept registrations that came to an end: because the memory was unmapped or discarded, " +
		"or evicted to make room or for a larger one."
	count("registrations_dropped_total", gone, float64(s.Invalidated), "reason", "invalidated")
	count("registrations_dropped_total", gone, float64(s.Evicted), "reason", "evicted")
	count("registrations_merged_total", "Of the evicted ones, those that a larger one replaced.", float64(s.Merged))
	count("registrations_invalidated_in_use_total",
		"Kept registrations whose memory was unmapped or discarded while operations on it were in flight.",
		float64(s.InvalidatedInUse))
	gauge("registrations", "Registrations that are there: usable ones, and dead ones that wait for their end.",
		float64(s.Live), "state", "live")
	gauge("registrations", "Registrations that are there: usable ones, and dead ones that wait for their end.",
		float64(s.Dead), "state", "dead")
	gauge("registered_bytes", "Memory that registrations of the program's own memory pin.", float64(s.Bytes))
	gauge("registered_dead_bytes", "Of it, memory of dead registrations.", float64(s.DeadBytes))

	m := memevents.ReadStats()
	const events = "Changes of the process's memory that were noticed, of whatever job: " +
		"calls that unmap and map seen by hooks, and what the kernel told."
	count("memory_events_total", events, float64(m.Unmaps), "event", "unmap")
	count("memory_events_total", events, float64(m.Maps), "event", "map")
	count("memory_events_total", events, float64(m.KernelEvents), "event", "kernel")
	count("memory_ranges_invalidated_total", "Watched ranges of the process that a change made invalid.",
		float64(m.Invalidated))
	count("memory_claims_refused_total", "Registrations not kept because their memory was being changed.",
		float64(m.ClaimsRefused))
	gauge("memory_ranges_watched", "Ranges of the process's memory that are watched.", float64(m.Entries))
}
