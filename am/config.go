package am

import (
	"fmt"
	"time"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/spin"
)

// The knobs that no user needs to turn.
const (
	// pollBudget is for how long one Poll looks before it returns empty-handed.
	pollBudget = 15 * time.Microsecond
	// copiedSoon is up to how many bytes the time after a copy is taken for the time before it.
	copiedSoon = 8 << 10
	// eventsPerPoll bounds what one goroutine takes on at once.
	eventsPerPoll = 32
	// retryAfter is when a goroutine without a send buffer looks again in event mode: a buffer that
	// becomes free wakes none.
	retryAfter = time.Millisecond
	// fullFor is for how long a queue of the network that was full is left alone.
	fullFor = 20 * time.Microsecond
	// attendMost bounds the intervals at which the attendant looks whether a goroutine polls.
	attendMost = 16 * time.Millisecond
	// longest is what longer times are taken for, 18 years, so that sums of times do not overflow.
	longest = time.Duration(1 << 59)
	// attendStep is the longest sleep of the attendant, which has to see that the endpoint is closed.
	attendStep = 100 * time.Millisecond
	// maxFailure is the most text that a failure carries.
	maxFailure = 512
)

// Config are the parameters of an endpoint. The zero value of a field is its default. All
// ranks must have the same Credits, MaxMedium and Flow.
type Config struct {
	Rank int // this rank
	Size int // ranks in the job

	// Table are the handlers. nil: Default.
	Table *Table
	// Segment is this rank's segment, into which Long messages write. nil: they are refused.
	Segment []byte
	// SegmentOffset is where Segment begins in the memory that the network reaches, the same on all
	// ranks, in bytes; SegmentSize must be set where it is not 0, which keeps Long messages from what
	// lies in front.
	SegmentOffset uint64
	// SegmentSize is how many bytes of a rank's segment Long messages may write, where that is
	// less than the network would allow. It is called before each, and for each grant of memory for a
	// large payload, with locks held: it must not block, nor use the endpoint. A rank that grants
	// memory beyond it is cut off. nil: all, and the sender of a payload for which there is no such
	// memory gets a *fabric.BoundsError.
	SegmentSize func(rank int) uint64

	// Credits are the receive buffers for requests, shared by all peers: 1 and more. 0: 256.
	Credits int
	// Replies are the receive buffers for replies, which bound the unanswered calls
	// of this rank, those included that have no waiter any more: 1 and more. 0: 128.
	Replies int
	// Spares are receive buffers that handlers may keep while others are posted in their
	// place; beyond, payloads are copied. They also stand in for up to 7 that are to be posted
	// together. 0: 16. -1: none.
	Spares int
	// MaxMedium is the largest payload of a Medium message in bytes: from 512 to the room in the
	// network's largest message, which the error of Open names. 0: 4096.
	MaxMedium int
	// Sends are the send buffers that requests use: 1 and more. A message with payload and
	// arguments no longer than MaxArgs arguments mostly takes none. 0: 64.
	Sends int
	// Prepares are the send buffers that the program may have in its hands (Prepare): less than Sends.
	// 0: half of Sends. With Sends 1 there is none, and Prepare is an error.
	Prepares int
	// ReplySends are send buffers for replies in addition: 1 and more. Replies beyond wait in memory.
	// 0: 16.
	ReplySends int
	// Flow are the parameters of credits.
	Flow flow.Config

	// SpinFor is for how long a goroutine that waits polls without anything happening before it
	// sleeps. It gives the processor to processes that need it (Sharing). 0: 75 µs, and 600
	// on an emulated processor, where a sleep takes some 300. -1: no time.
	SpinFor time.Duration
	// AttendAfter is for how long no goroutine polls before the attendant does. 0: 1 ms, the least.
	// -1: there is no attendant; messages are handled while a goroutine waits for the endpoint or
	// polls it, which no collective operation does but the job's Close. A rank that does neither for
	// SilentAfter may be taken for dead. Where it is long, Close waits for up to 0.1 s until the
	// attendant sees that it is to end.
	AttendAfter time.Duration
	// StallAfter is when a wait ends with a *StallError. 0: one minute. -1: never.
	StallAfter time.Duration
	// PingAfter is after what time without a reply a rank is sent a message, of which the network
	// learns whether it lives. 0: 1 s. -1: never.
	PingAfter time.Duration
	// SilentAfter is for how long a rank may leave questions for credits unanswered before it is taken
	// for dead: a rank that lives answers, its attendant does. 0: 30 s. -1: for ever. As questions
	// come ever more rarely, it is at least 256 times Flow.Retry where that is more than 15 ms.
	SilentAfter time.Duration
	// DeferFor is the time for a deferred reply without one of its own. 0: 30 s.
	DeferFor time.Duration
	// CloseAfter bounds for how long Close waits for handlers that run, and for the attendant
	// (AttendAfter). 0: 10 s.
	CloseAfter time.Duration

	// Sharing is the job's count of processes that share the processors. nil: of the endpoint's own,
	// or none if there is a Host.
	Sharing *spin.Sharing
	// Fencer learns of requests, replies and handlers. nil: none, which costs nothing.
	Fencer Fencer
	// Host runs goroutines. nil: the Go runtime.
	Host Host
	// OnClosed, if not nil, is called once for each peer that is dead, or was cut off because it
	// broke the protocol, before any call to it ends. It must not block nor use the endpoint.
	OnClosed func(rank int, cause error)
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// most bounds each number of a configuration, so that sums and sizes do not overflow; networks
// bound them further.
const most = 1 << 30

// populate fills in the defaults and checks.
func (c *Config) populate() error {
	if c.Table == nil {
		c.Table = Default
	}
	if c.Host == nil {
		c.Host = Goroutines{}
	}
	orDefault(&c.Credits, 256)
	orDefault(&c.Replies, 128)
	orDefault(&c.Spares, 16)
	orDefault(&c.MaxMedium, 4096)
	orDefault(&c.Sends, 64)
	orDefault(&c.ReplySends, 16)
	orDefault(&c.Prepares, c.Sends/2)
	if _, real := c.Host.(Goroutines); real { // a simulation must not depend on the machine
		orDefault(&c.SpinFor, spin.PollFor())
		if c.Sharing == nil {
			c.Sharing = new(spin.Sharing)
		}
	}
	orDefault(&c.SpinFor, 75*time.Microsecond)
	orDefault(&c.AttendAfter, time.Millisecond)
	orDefault(&c.StallAfter, time.Minute)
	orDefault(&c.SilentAfter, 30*time.Second)
	orDefault(&c.PingAfter, time.Second)
	orDefault(&c.DeferFor, 30*time.Second)
	orDefault(&c.CloseAfter, 10*time.Second)
	c.Spares, c.SpinFor, c.StallAfter = max(c.Spares, 0), max(c.SpinFor, 0), max(c.StallAfter, 0)
	if c.AttendAfter > 0 {
		c.AttendAfter = max(c.AttendAfter, time.Millisecond) // shorter sleeps come back a millisecond late anyway
	}
	for _, d := range []*time.Duration{&c.SpinFor, &c.AttendAfter, &c.StallAfter, &c.PingAfter, &c.SilentAfter,
		&c.DeferFor, &c.CloseAfter} {
		*d = min(*d, longest)
	}
	switch {
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("am: rank %d in a job of %d ranks: ranks are 0 to size-1", c.Rank, c.Size)
	case c.Credits < 1 || c.Replies < 1 || c.Sends < 1 || c.ReplySends < 1 || c.MaxMedium < maxFailure:
		return fmt.Errorf("am: %d credits, %d replies, %d and %d send buffers, MaxMedium %d: at least 1 each, and %d bytes",
			c.Credits, c.Replies, c.Sends, c.ReplySends, c.MaxMedium, maxFailure)
	case max(c.Credits, c.Replies, c.Spares, c.Sends, c.ReplySends, c.MaxMedium) > most:
		return fmt.Errorf("am: %d credits, %d replies, %d spares, %d and %d send buffers, MaxMedium %d: at most %d each",
			c.Credits, c.Replies, c.Spares, c.Sends, c.ReplySends, c.MaxMedium, most)
	case c.Prepares < 0 || c.Prepares >= c.Sends:
		return fmt.Errorf("am: %d send buffers for prepared messages, of %d: less than all (Config.Prepares, Sends)",
			c.Prepares, c.Sends)
	case c.SegmentOffset > 0 && c.SegmentSize == nil:
		return fmt.Errorf("am: SegmentOffset is %d: SegmentSize must be set with it", c.SegmentOffset)
	case c.DeferFor < 0 || c.CloseAfter < 0:
		return fmt.Errorf("am: DeferFor %v, CloseAfter %v: neither may be negative", c.DeferFor, c.CloseAfter)
	}
	return nil
}

// Term is a parameter that must be the same on all ranks.
type Term struct {
	Name  string // of the field
	Value uint64
}

// Terms are the parameters that must be the same on all ranks, with their defaults; always the same
// ones in the same order. An error: with the configuration Open would fail on any network.
func (c Config) Terms() ([]Term, error) {
	c.Rank, c.Size = 0, 1
	if err := c.populate(); err != nil {
		return nil, err
	}
	f, err := credit.NewSenderConfig(c.Flow, c.Credits)
	if err != nil {
		return nil, err
	}
	return []Term{
		{"Credits", uint64(c.Credits)}, {"MaxMedium", uint64(c.MaxMedium)},
		{"Flow.Window", uint64(f.Window)}, {"Flow.Initial", uint64(f.Initial)},
		{"Flow.RecallAfter (ns)", uint64(f.RecallAfter)}, {"Flow.Retry (ns)", uint64(f.Retry)},
	}, nil
}

// endpoint returns the endpoint's needs of the network.
func (c *Config) endpoint() fabric.EndpointConfig {
	return fabric.EndpointConfig{
		Slots:    c.Credits + c.Replies + c.Spares,
		SlotSize: c.MaxMedium + overhead,
		Sends:    c.Sends + c.ReplySends,
		Reserved: c.ReplySends,
	}
}

func (c *Config) fits(m fabric.MessageLimits) error {
	p := c.endpoint()
	switch {
	case p.SlotSize > m.MaxMessage:
		return &SizeError{"Config.MaxMedium", c.MaxMedium, m.MaxMessage - overhead, "send more by Long messages"}
	case p.Slots > m.MaxSlots:
		return &SizeError{"Config.Credits, Replies and Spares together", p.Slots, m.MaxSlots, "choose fewer"}
	case m.MaxNote < headSize:
		return &SizeError{"a control message", headSize, m.MaxNote, "the network's notes are too short for active messages"}
	}
	return nil
}
