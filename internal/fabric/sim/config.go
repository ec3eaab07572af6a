package sim

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// Config describes a world. Durations are virtual.
type Config struct {
	Ranks int    // 1 to 2^24
	Seed  uint64 // names the run; any value

	Latency   time.Duration // one way; default 1.5 µs
	Jitter    time.Duration // at most this is added to a message's way; default as Latency, none below 0
	Bandwidth float64       // bytes per second out of each rank; default 12.5e9 (100 Gbit/s)
	PollCost  time.Duration // of a call that finds nothing; default 50 ns, at least 1 ns

	Notes Notes

	Connections int // of an endpoint, beyond which idle ones are closed; 0: no limit
	// until the first repetition of a handshake's datagram, doubling up to 64 times; default 1 ms
	HandshakeTimeout time.Duration
	HandshakeTries   int           // datagrams without an answer until the peer is dead; default 16
	RetryTimeout     time.Duration // reliable traffic unanswered for this long: the peer is dead; default 500 ms
	RNRDelay         time.Duration // until a message that met no slot is tried again; default 20 µs

	SegmentSize int                                   // bytes, a multiple of 8; 0 to 1 GiB
	Segment     func(rank int) []byte                 // memory to use instead; aligned to 8 bytes
	Depth       int                                   // operations in flight of a lane to one peer; default 64
	Lanes       int                                   // open lanes of a rank; 0: no limit
	Queue       int                                   // messages in flight of an endpoint to one peer; default 64
	OnDown      func(at *Rank, rank int, cause error) // a rank found a peer dead; runs as a task of it

	MaxTime   time.Duration // virtual end of a world; default 1 h
	MaxEvents uint64        // of a world; default 1e9

	Trace io.Writer // gets one line for each event; nil: only the hash
}

// Notes configure what happens to datagrams.
type Notes struct {
	Loss   float64       // probability, 0 to 1; applies to handshakes too
	Dup    float64       // probability of a second copy
	Jitter time.Duration // at most this is added to the way; default 4 times Config.Jitter
	Room   int           // notes that an endpoint keeps for the next Poll; default 64
}

// populate checks the configuration and fills the defaults.
func (c *Config) populate() error {
	switch {
	case c.Ranks < 1 || c.Ranks > 1<<24:
		return fmt.Errorf("sim: Config.Ranks is %d, want 1 to 2^24", c.Ranks)
	case c.SegmentSize < 0 || c.SegmentSize > 1<<30 || c.SegmentSize%8 != 0:
		return fmt.Errorf("sim: Config.SegmentSize is %d, want a multiple of 8 up to 1 GiB", c.SegmentSize)
	case c.Notes.Loss < 0 || c.Notes.Loss > 1 || c.Notes.Dup < 0 || c.Notes.Dup > 1:
		return fmt.Errorf("sim: Config.Notes: loss %g and duplication %g are no probabilities", c.Notes.Loss, c.Notes.Dup)
	case c.Bandwidth < 0 || math.IsNaN(c.Bandwidth) || c.Latency < 0 || c.RetryTimeout < 0 || c.RNRDelay < 0 ||
		c.HandshakeTimeout < 0 || c.MaxTime < 0:
		return errors.New("sim: Config has a negative bandwidth or duration")
	}
	def(&c.Latency, 1500*time.Nanosecond)
	def(&c.Jitter, c.Latency)
	c.Jitter = max(0, c.Jitter)
	def(&c.Bandwidth, 12.5e9)
	def(&c.PollCost, 50*time.Nanosecond)
	c.PollCost = max(1, c.PollCost)
	def(&c.Notes.Jitter, 4*c.Jitter)
	c.Notes.Jitter = max(0, c.Notes.Jitter)
	def(&c.Notes.Room, 64)
	def(&c.HandshakeTimeout, time.Millisecond)
	def(&c.HandshakeTries, 16)
	def(&c.RetryTimeout, 500*time.Millisecond)
	def(&c.RNRDelay, 20*time.Microsecond)
	def(&c.Depth, 64)
	def(&c.Queue, 64)
	def(&c.MaxTime, time.Hour)
	def(&c.MaxEvents, 1e9)
	return nil
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
