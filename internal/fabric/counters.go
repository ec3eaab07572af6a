package fabric

import "github.com/ibconduit/conduit/internal/counter"

// Counters count what a lane did since it was opened. The lane's owner
// increments them with plain stores; they lie outside the Go heap (see
// internal/offheap), so that others may read them with Load at any time. At idle
// Puts + Gets + Atomics = Completed + Errors.
type Counters struct {
	Puts      uint64 `metric:"operations_total{op=put} One-sided operations started."`
	Gets      uint64 `metric:"operations_total{op=get}"`
	Atomics   uint64 `metric:"operations_total{op=atomic}"`
	PutBytes  uint64 `metric:"operation_bytes_total{op=put} Payload of puts and gets started."`
	GetBytes  uint64 `metric:"operation_bytes_total{op=get}"`
	Completed uint64 `metric:"operations_completed_total One-sided operations complete at their target."`
	Errors    uint64 `metric:"operation_errors_total One-sided operations that failed after they were posted."`

	// Inline in the work request, Bounced through a buffer, Direct from or to the segment or mapped
	// memory, ZeroCopy from or to the program's own memory, which was registered for that.
	Inline    uint64 `metric:"transfers_total{path=inline} Puts and gets by the way of their payload."`
	Bounced   uint64 `metric:"transfers_total{path=bounced}"`
	Direct    uint64 `metric:"transfers_total{path=direct}"`
	ZeroCopy  uint64 `metric:"transfers_total{path=zerocopy}"`
	Doorbells uint64 `metric:"doorbells_total Calls that posted work requests."`
	Requests  uint64 `metric:"work_requests_total Work requests posted, those of chunks and flushes included."`
	Polls     uint64 `metric:"polls_total Calls that polled for completions."`
	Stalls    uint64 `metric:"stalls_total Posts that had to wait for room in a queue."`

	Unregistered uint64 `metric:"transfers_unregistered_total Of those bounced, those for want of a registration."`
}

// Start is for networks: it counts an operation on so many bytes that is posted.
func (c *Counters) Start(k Kind, n uint64) {
	switch k {
	case KindPut:
		c.Puts++
		c.PutBytes += n
	case KindGet:
		c.Gets++
		c.GetBytes += n
	case KindAtomic:
		c.Atomics++
	}
}

// End is for networks: it counts operations that ended with err, or with success.
func (c *Counters) End(n int32, err error) {
	if err != nil {
		c.Errors += uint64(n)
	} else {
		c.Completed += uint64(n)
	}
}

// Load reads a consistent value of each counter; the set is not a snapshot.
func (c *Counters) Load() Counters { return counter.Load(c) }

// Add returns the sum, field by field.
func (c Counters) Add(d Counters) Counters { return counter.Add(c, d) }
