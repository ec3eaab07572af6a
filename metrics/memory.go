package metrics

import "github.com/ibconduit/conduit"

// memory are the figures of a job's budget of transient memory.
func memory(s conduit.MemoryStats, l conduit.MemoryLayout, add func(Figure)) {
	gauge := func(name, help string, v float64, labels ...string) {
		add(Figure{Name: name, Help: help, Kind: Gauge, Value: v, Labels: labels})
	}
	count := func(name, help string, v uint64) {
		add(Figure{Name: name, Help: help, Kind: Counter, Value: float64(v)})
	}
	gauge("memory_limit_bytes", "The budget of transient memory, M_C.", float64(s.Limit))
	const held = "Bytes of the budget that are held, by what holds them: fetch sets, payloads that were granted memory, " +
		"payloads that came unasked, Acquire; the reserve's are among them."
	gauge("memory_held_bytes", held, float64(s.Leased), "by", "sets")
	gauge("memory_held_bytes", held, float64(s.Offered), "by", "payloads")
	gauge("memory_held_bytes", held, float64(s.Unscheduled), "by", "unasked")
	gauge("memory_held_bytes", held, float64(s.Acquired), "by", "acquire")
	gauge("memory_reserve_held_bytes", "Bytes held beyond the limit, of the reserve.", float64(s.Reserve))
	gauge("memory_peak_bytes", "The most bytes of the limit that were held at once.", float64(s.Peak))
	gauge("memory_buffers_bytes", "Memory of fetched data and payloads.", float64(s.Buffers))
	gauge("memory_idle_bytes", "Memory that is free, and not given back to the system yet.", float64(s.Idle))
	gauge("memory_receive_bytes", "What each segment has for what other ranks write.", float64(l.Receive))
	gauge("memory_waiting", "Claims that wait for memory.", float64(s.Waiting))
	gauge("memory_waiting_bytes", "Bytes that fetch sets wait for.", float64(s.WaitingBytes))
	gauge("memory_head_age_seconds", "For how long the first claim has waited.", s.HeadAge.Seconds())
	count("memory_claims_total", "Claims that were granted.", s.Granted)
	count("memory_queued_total", "Claims that had to wait.", s.Queued)
	count("memory_passed_total", "Small claims that were granted while larger ones waited.", s.Passed)
	count("memory_cancelled_total", "Claims that ended before they were granted.", s.Cancelled)
	count("memory_too_large_total", "Claims that were refused as larger than the budget ever is.", s.TooLarge)
	count("memory_hold_and_wait_total", "Waits that were refused as their owner held memory.", s.HeldAndWait)
	count("memory_from_reserve_total", "Claims that the reserve served.", s.FromReserve)
	count("memory_increases_total", "Times that the limit was raised.", s.Increases)
	count("memory_decreases_total", "Times that the limit was lowered.", s.Decreases)
	count("memory_given_back_bytes_total", "Idle memory that was given back to the system.", uint64(s.Given))
	count("memory_stalls_total",
		"Times that the watchdog found the first claim waiting for too long; the log names the holders.", s.Stalls)
}
