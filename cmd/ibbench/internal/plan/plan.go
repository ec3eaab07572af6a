package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/internal/errtext"
)

// Kinds of measurement.
const (
	Lat  = "lat"  // time of one operation, or of half a round trip
	BW   = "bw"   // bytes per second
	Rate = "rate" // operations per second
	Flow = "flow" // a kernel with transient memory, which has no Plan
)

// Operations.
const (
	Put = "put"
	Get = "get"
	AMO = "amo" // fetch-and-add
	CAS = "cas" // compare-and-swap
	AM  = "am"  // active messages
)

// Own is memory of the program's own, from Go's heap.
const Own = "own"

// Definitions: what one number is the time of, or the amount of.
const (
	DefHalf = "rtt/2" // half of a ping-pong through memory
	DefRTT  = "rtt"   // a whole ping-pong; request and reply of an active message
	DefOp   = "op"    // one operation, from its call to its completion
	DefRate = "throughput"
)

// Plan has the measurements of the ranks of one job.
type Plan struct {
	Fabric string `json:"fabric"` // auto, ibv or shm
	Device string `json:"device,omitempty"`
	GID    string `json:"gid,omitempty"`
	Ranks  int    `json:"ranks"`
	CPUs   []int  `json:"cpus,omitempty"` // dealt out to the ranks of a host
	Seed   uint64 `json:"seed,omitempty"` // fills payloads

	Metrics string `json:"metrics,omitempty"` // address where rank 0 serves its counters

	Pct    []float64 `json:"pct"` // percentiles to report, ascending
	Points []Point   `json:"points"`
}

// Point is one measurement of a sweep.
type Point struct {
	Kind string `json:"kind"`
	Op   string `json:"op"`
	Ack  bool   `json:"ack,omitempty"` // lat put: blocking puts instead of a ping-pong
	Size int64  `json:"size"`          // bytes; of am those of a Medium, and 0 for a Short

	Depth int `json:"depth"` // operations in flight per lane; of am its send buffers (bw, rate)
	Lanes int `json:"lanes"` // workers per sending rank, each in a goroutine; of am the message endpoints

	Goroutines int `json:"goroutines,omitempty"` // that send active messages (bw, rate), dealt out to the lanes

	Bidi  bool `json:"bidi,omitempty"`
	Place bool `json:"same_place,omitempty"` // all operations at one place, as perftest's; else they cycle through Slots

	Local string `json:"local,omitempty"` // memory that puts send from and gets read into: Own, or the segment

	Iters       int64         `json:"iters,omitempty"`       // samples; 0: until Duration is over
	Duration    time.Duration `json:"duration_ns,omitempty"` // of the measurement; 0: until Iters are done
	Warmup      time.Duration `json:"warmup_ns"`
	WarmupIters int64         `json:"warmup_iters"`

	PerSecond float64 `json:"rate,omitempty"`      // open loop: operations started per second; 0: closed loop
	Batch     int     `json:"batch,omitempty"`     // operations per sample; 0: chosen by the cost of the clock
	Intervals int     `json:"intervals,omitempty"` // parts of the time series

	Regions int    `json:"regions,omitempty"` // mr hit, mr churn: ranges that are registered meanwhile
	Origin  string `json:"origin,omitempty"`  // mr hit: where they come from, for the cache

	Rounds  int    `json:"rounds,omitempty"`  // cache: times that each side is measured
	Sides   string `json:"sides,omitempty"`   // cache: what is measured in turns, the first against the others
	Steps   int    `json:"steps,omitempty"`   // cache: as bench.Params has them; Size is N
	Walk    int    `json:"walk,omitempty"`    // cache stride: words between accesses
	Variant string `json:"variant,omitempty"` // cache: of the kernel
	Mapped  bool   `json:"mapped,omitempty"`  // cache: also what is mapped here is cached
	CacheSizes
}

// Limits of a plan.
const (
	MaxSize  = 1 << 30
	MaxDepth = 8192 // as conduit.Config.QueueDepth
	MaxLanes = 1024 // as conduit.Config.Workers
	MaxIters = 1 << 40
	MaxRanks = 4096

	MaxMessageEndpoints = 64 // as conduit.Config.MessageEndpoints
	MaxGoroutines       = 4096
	MaxMedium           = 1 << 20 // the networks have limits of their own

	// DefaultIntervals is the length of a series' time series.
	DefaultIntervals = 10

	cacheLine = 64
	// windowBytes bounds the memory that one lane cycles through.
	windowBytes = 1 << 20
)

// Atomic reports whether the operation works on a word.
func (p Point) Atomic() bool { return p.Op == AMO || p.Op == CAS }

// PingPong reports whether both sides take turns.
func (p Point) PingPong() bool { return p.Kind == Lat && p.Op == Put && !p.Ack }

// Definition is the meaning of the point's numbers.
func (p Point) Definition() string {
	switch {
	case p.Kind == Cache:
		return DefCache
	case p.Kind == MR || p.Kind == Coll:
		return DefOp
	case p.Kind != Lat:
		return DefRate
	case p.PingPong() && p.PerSecond > 0:
		return DefRTT // a delay in a queue must not be halved
	case p.PingPong():
		return DefHalf
	case p.Op == AM:
		return DefRTT
	}
	return DefOp
}

// Unit of the point's numbers.
func (p Point) Unit() string {
	switch {
	case p.Kind == BW:
		return "B/s"
	case p.Kind == Rate:
		return "op/s"
	}
	return "ns"
}

// Name is the name of the point in a table: "lat put --ack".
func (p Point) Name() string { return p.Kind + " " + p.OpName() }

// OpName is the operation with its distinguishing flags.
func (p Point) OpName() string {
	s := p.Op
	if p.Ack {
		s += " --ack"
	}
	if p.Bidi {
		s += " --bidi"
	}
	if p.Local != "" {
		s += " --local " + p.Local
	}
	switch {
	case p.Variant == "":
	case p.Kind == Flow: // where it is no flag
		s += ", " + p.Variant
	default:
		s += " --variant " + p.Variant
	}
	return s
}

// Stride is the distance of two operations' places in memory.
func (p Point) Stride() int64 { return (max(p.Size, 1) + cacheLine - 1) &^ (cacheLine - 1) }

// Slots is how many places a lane cycles through.
func (p Point) Slots() int {
	if p.Kind == Lat || p.Place || p.Op == AM {
		return 1
	}
	return int(max(1, min(int64(p.Depth), windowBytes/p.Stride())))
}

// Window is the memory of one lane on each side.
func (p Point) Window() int64 { return p.Stride() * int64(p.Slots()) }

// SegmentSize is what a rank's segment must hold: the area that the peer
// reaches, and as much as source and target of copies.
func (p *Plan) SegmentSize() int64 {
	var area int64
	for _, pt := range p.Points {
		if pt.Kind == Coll { // its buffers are memory of the program's own
			continue
		}
		area = max(area, pt.Window()*int64(pt.Lanes))
	}
	const page = 64 << 10
	return (max(2*area, p.collBytes()) + page - 1) &^ (page - 1)
}

// Lanes is the largest number of workers that a point needs.
func (p *Plan) Lanes() int {
	n := 1
	for _, pt := range p.Points {
		n = max(n, pt.Lanes)
	}
	return n
}

// QueueDepth is the depth that the lanes are opened with, 0 for the library's
// default: deep enough for every point, and exactly the depth of a plan with
// one depth, since then the lane itself limits the operations in flight.
func (p *Plan) QueueDepth() int {
	n := 0
	for _, pt := range p.Points {
		if pt.Op != AM && pt.Kind != Coll && pt.Kind != Cache && (pt.Kind != Lat || pt.Depth > 1) {
			n = max(n, pt.Depth)
		}
	}
	if n > 0 {
		n = max(n, 4) // the least that conduit.Config takes
	}
	return n
}

// Messages are the needs of active messages.
type Messages struct {
	Endpoints int // 0: the plan has none
	Medium    int // bytes of the largest payload
	Depth     int // send buffers of an endpoint; 0: the library's default
}

// Messages sums up the points of active messages. A job opens its endpoints once: Validate sees to
// it that all points that send on them have one depth.
func (p *Plan) Messages() (m Messages) {
	for _, pt := range p.Points {
		if pt.Op != AM {
			continue
		}
		m.Endpoints, m.Medium = max(m.Endpoints, pt.Lanes), max(m.Medium, int(pt.Size))
		if pt.Kind != Lat {
			m.Depth = pt.Depth
		}
	}
	return m
}

// Validate returns the first thing that is wrong.
func (p *Plan) Validate() error {
	switch p.Fabric {
	case "auto", "ibv", "shm":
	default:
		return fmt.Errorf("fabric %q: want ibv, shm or auto", p.Fabric)
	}
	if p.Ranks < 2 || p.Ranks > MaxRanks {
		return fmt.Errorf("%s: want 2 to %d; a measurement needs a peer", errtext.Count(p.Ranks, "rank"), MaxRanks)
	}
	if len(p.Points) == 0 {
		return errors.New("nothing to measure")
	}
	for _, pt := range p.Points {
		if err := pt.validate(); err != nil {
			return fmt.Errorf("%s: %w", pt.Name(), err)
		}
		if pt.Kind == Coll {
			if err := pt.fitsRanks(p.Ranks); err != nil {
				return fmt.Errorf("%s: %w", pt.Name(), err)
			}
		}
		if pt.Kind == Coll || pt.Kind == Cache {
			continue
		}
		if pt.Kind != Lat && p.Ranks%2 != 0 {
			return fmt.Errorf("%s: %d ranks cannot be paired; use an even number", pt.Name(), p.Ranks)
		}
		if d := p.Messages().Depth; pt.Op == AM && pt.Kind != Lat && pt.Depth != d {
			return fmt.Errorf("%s: depths %d and %d: message endpoints are opened once; measure one depth at a time", pt.Name(),
				pt.Depth, d)
		}
	}
	return nil
}

func (p Point) validate() error {
	lat := p.Kind == Lat || p.Kind == Coll
	switch p.Kind {
	case Cache:
		return p.validateCache()
	case Coll:
		if err := p.validateColl(); err != nil {
			return err
		}
	}
	if p.Op == AM {
		if err := p.validateAM(); err != nil {
			return err
		}
	}
	switch {
	case !lat && p.Kind != BW && p.Kind != Rate:
		return fmt.Errorf("unknown kind of measurement %q", p.Kind)
	case p.Kind != Coll && p.Op != Put && p.Op != Get && p.Op != AM && !p.Atomic(), p.Kind == BW && p.Atomic(),
		p.Kind == Rate && p.Op == CAS:
		return fmt.Errorf("operation %q is not measured by %s", p.Op, p.Kind)
	case p.Op != AM && p.Op != Barrier && (p.Size < 1 || p.Size > MaxSize):
		return fmt.Errorf("size %d: want 1 byte to 1G", p.Size)
	case p.Op != AM && p.Goroutines != 0:
		return errors.New("--goroutines is for am; the other operations have one to a lane")
	case p.Atomic() && p.Size != 8:
		return fmt.Errorf("size %d: atomics work on 8 bytes", p.Size)
	case p.Depth < 1 || p.Depth > MaxDepth:
		return fmt.Errorf("depth %d: want 1 to %d", p.Depth, MaxDepth)
	case p.Lanes < 1 || p.Lanes > MaxLanes:
		return fmt.Errorf("%d lanes: want 1 to %d", p.Lanes, MaxLanes)
	case lat && p.Lanes != 1:
		return fmt.Errorf("%d lanes: latency is measured on one", p.Lanes)
	case p.Depth != 1 && (p.PingPong() || p.Kind == Coll || lat && p.Op == AM):
		return fmt.Errorf("depth %d: want 1 here; get, amo, cas and put --ack are measured at a depth", p.Depth)
	case p.Iters < 0 || p.Iters > MaxIters:
		return fmt.Errorf("%d iterations: want 1 to %d", p.Iters, int64(MaxIters))
	case p.Duration < 0 || p.Iters == 0 && p.Duration == 0:
		return errors.New("neither a number of iterations nor a duration above 0")
	case p.Warmup < 0 || p.WarmupIters < 0:
		return errors.New("a negative warm-up")
	case p.PerSecond < 0:
		return errors.New("a negative rate")
	case p.PerSecond > 0 && (!lat || p.Depth != 1 || p.Batch > 1):
		return errors.New("--rate needs lat with depth 1 and one operation per sample")
	case p.Batch < 0 || p.Batch > 1<<20:
		return fmt.Errorf("%d operations per sample: want 1 to %d, or 0 for automatic", p.Batch, 1<<20)
	case p.Batch > 1 && p.Depth > 1:
		return errors.New("several operations per sample need depth 1")
	case p.Bidi && p.Kind != BW:
		return errors.New("--bidi is for bw")
	case p.Local != "" && p.Local != Own:
		return fmt.Errorf("local memory %q: want %s, or nothing for the segment", p.Local, Own)
	case p.Local != "" && p.Op != Put && p.Op != Get:
		return errors.New("--local is for put and get")
	}
	return nil
}

// validateAM returns the fault of a point of active messages by itself.
func (p Point) validateAM() error {
	lat := p.Kind == Lat
	switch {
	case p.Size < 0 || p.Size > MaxMedium:
		return fmt.Errorf("size %d: want short, or 1 byte to 1M of a Medium", p.Size)
	case p.Lanes > MaxMessageEndpoints:
		return fmt.Errorf("%d lanes: want 1 to %d message endpoints", p.Lanes, MaxMessageEndpoints)
	case lat && p.Goroutines != 0:
		return errors.New("--goroutines is for bw and rate; a latency is that of one goroutine")
	case !lat && (p.Goroutines < 1 || p.Goroutines > MaxGoroutines):
		return fmt.Errorf("%d goroutines: want 1 to %d", p.Goroutines, MaxGoroutines)
	case p.Kind == BW && p.Size == 0:
		return errors.New("a Short has no bytes whose bandwidth could be measured; use rate am")
	}
	return nil
}

// Encode writes the plan for the ranks.
func (p *Plan) Encode() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // plain data
	}
	return string(b)
}

// Decode reads what Encode wrote, and checks it.
func Decode(s string) (*Plan, error) {
	var p Plan
	if err := json.Unmarshal([]byte(s), &p); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return &p, p.Validate()
}
