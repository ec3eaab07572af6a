package fabric

import "sync/atomic"

// Counters count what a lane did since it was opened. The lane's owner
// increments them with plain stores; they lie outside the Go heap (see
// internal/offheap), so that others may read them with Load at any time.
type Counters struct {
	Puts      uint64 // puts posted
	Gets      uint64 // gets posted
	Atomics   uint64 // atomics posted
	PutBytes  uint64 // payload bytes of puts
	GetBytes  uint64 // payload bytes of gets
	Completed uint64 // operations complete; puts+gets+atomics at idle, less Errors
	Errors    uint64 // operations that failed after they were posted

	Inline    uint64 // puts whose payload travelled in the work request
	Bounced   uint64 // puts and gets copied through the slab
	Direct    uint64 // puts and gets on registered or mapped memory
	ZeroCopy  uint64 // puts and gets on the program's own memory, registered for them
	Doorbells uint64 // calls that posted work requests
	Requests  uint64 // work requests posted, chunks and flushes included
	Polls     uint64 // calls that polled for completions
	Stalls    uint64 // posts that had to wait for room in a queue

	Unregistered uint64 // of Bounced, those without a copy but for want of a registration
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
func (c *Counters) Load() Counters {
	return Counters{
		Puts:      atomic.LoadUint64(&c.Puts),
		Gets:      atomic.LoadUint64(&c.Gets),
		Atomics:   atomic.LoadUint64(&c.Atomics),
		PutBytes:  atomic.LoadUint64(&c.PutBytes),
		GetBytes:  atomic.LoadUint64(&c.GetBytes),
		Completed: atomic.LoadUint64(&c.Completed),
		Errors:    atomic.LoadUint64(&c.Errors),
		Inline:    atomic.LoadUint64(&c.Inline),
		Bounced:   atomic.LoadUint64(&c.Bounced),
		Direct:    atomic.LoadUint64(&c.Direct),
		ZeroCopy:  atomic.LoadUint64(&c.ZeroCopy),
		Doorbells: atomic.LoadUint64(&c.Doorbells),
		Requests:  atomic.LoadUint64(&c.Requests),
		Polls:     atomic.LoadUint64(&c.Polls),
		Stalls:    atomic.LoadUint64(&c.Stalls),

		Unregistered: atomic.LoadUint64(&c.Unregistered),
	}
}

// Add returns the sum, field by field.
func (c Counters) Add(d Counters) Counters {
	c.Puts += d.Puts
	c.Gets += d.Gets
	c.Atomics += d.Atomics
	c.PutBytes += d.PutBytes
	c.GetBytes += d.GetBytes
	c.Completed += d.Completed
	c.Errors += d.Errors
	c.Inline += d.Inline
	c.Bounced += d.Bounced
	c.Direct += d.Direct
	c.ZeroCopy += d.ZeroCopy
	c.Doorbells += d.Doorbells
	c.Requests += d.Requests
	c.Polls += d.Polls
	c.Stalls += d.Stalls
	c.Unregistered += d.Unregistered
	return c
}
