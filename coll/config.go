package coll

import (
	"fmt"
	"math/bits"

	"github.com/ibconduit/conduit/internal/env"
)

// Region is the name of coll's region of a segment.
const Region = "conduit.coll"

// Config is equal on all ranks, but for Check, Learned and Watch.
type Config struct {
	// Slots is how many teams a rank can be in at a time, with the team of all; 1 to 4096, default 4.
	Slots int
	// SlotBytes is about how much memory a team has for data on its way to this rank, in bytes; 4 KiB
	// to 64 MiB, default 64 KiB. Each message has a share of it, 1/(4 log2 of the number of ranks).
	SlotBytes int
	// WindowBytes is about how much memory a team has for long data, in bytes, where members of a pair
	// write to each other or read from each other; 4 KiB to 256 MiB, default 4 times
	// SlotBytes.
	WindowBytes int
	// Short is how many bytes all members' data may have together for operations on it to take the
	// least number of messages: reductions gather it all, all-to-all passes blocks on; 1 byte to
	// WindowBytes, default 8 KiB or an eighth of WindowBytes, whichever is less.
	Short int
	// Long is how many bytes each member's share of a reduction has at least, in bytes of its buffer
	// over members, for the members to reduce one share each; 1 byte and more, default 4 KiB. Below
	// that reductions go up a tree. docs/collectives.md has what these defaults were measured with.
	Long int
	// Check says why the calling goroutine may not wait for other ranks now; nil: it always may.
	Check func() error
	// Learned is called when an operation has ended well, on its goroutine: this rank knows then the
	// others' accesses before they took part. May be nil.
	Learned func()
	// Watch is called when an operation begins, and its result when the operation has ended well,
	// before Learned, both on its goroutine. May be nil.
	Watch func(Operation) (ended func())
}

// Operation is one of a team, which has members, numbered from 0.
type Operation struct {
	Kind       Kind
	Root       int    // of the members, where the kind has one
	Me, Size   int    // this rank among the members, and how many there are
	First      int    // the rank of member 0
	Slot       int    // of the team
	Generation uint32 // of the team: with First and Slot its name
	Number     uint64 // of the team's operations
}

const (
	depth    = 4       // messages of a rail that are on their way or not read
	maxRanks = 1 << 20 // what the word that breaks a team has room for
	minChunk = 64      // bytes of data of a message
	line     = 64      // bytes of a cache line
	places   = 4       // where messages of pairs arrive, in a slot
	panes    = 5       // of a slot, each with a piece of what mapped members reduce

	wordBytes = 8 // of a message, in front of its data: short data shares its cache line
)

// shape is the layout of a slot, equal on all ranks; doc.go describes it.
type shape struct {
	slots int
	rails int    // of the team of all
	chunk uint64 // bytes of data of a message

	acks, notices, reports, sets, entries uint64 // where these begin
	entry                                 uint64 // bytes
	slot                                  uint64 // bytes

	grants, arrivals, refs   uint64 // words of pairs
	places, panes, scratch   uint64 // where these begin
	place, pane, scratchSize uint64 // bytes of a place, a pane, and all of scratch
	short, long              int    // of Config
}

// withDefaults fills in zeros and checks the rest.
func (c Config) withDefaults() (Config, error) {
	if c.Slots == 0 {
		c.Slots = 4
	}
	if c.SlotBytes == 0 {
		c.SlotBytes = 64 << 10
	}
	if c.WindowBytes == 0 {
		c.WindowBytes = 4 * c.SlotBytes
	}
	if c.Short == 0 {
		c.Short = min(8<<10, c.WindowBytes/8)
	}
	if c.Long == 0 {
		c.Long = 4 << 10
	}
	if c.Slots < 1 || c.Slots > 4096 {
		return c, fmt.Errorf("coll: Config.Slots is %d, want 1 to 4096", c.Slots)
	}
	if c.SlotBytes < 4<<10 || c.SlotBytes > 64<<20 {
		return c, fmt.Errorf("coll: Config.SlotBytes is %d, want 4 KiB to 64 MiB", c.SlotBytes)
	}
	if c.WindowBytes < 4<<10 || c.WindowBytes > 256<<20 {
		return c, fmt.Errorf("coll: Config.WindowBytes is %d, want 4 KiB to 256 MiB", c.WindowBytes)
	}
	if c.Short < 1 || c.Short > c.WindowBytes {
		return c, fmt.Errorf("coll: Config.Short is %d, want 1 to %d, which is WindowBytes", c.Short, c.WindowBytes)
	}
	if c.Long < 1 {
		return c, fmt.Errorf("coll: Config.Long is %d, want at least 1", c.Long)
	}
	return c, nil
}

func newShape(size int, cfg Config) (shape, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return shape{}, err
	}
	if size < 1 || size > maxRanks {
		return shape{}, fmt.Errorf("coll: a job of %d ranks, want 1 to %d", size, maxRanks)
	}
	s := shape{slots: cfg.Slots, rails: railsOf(size)}
	share := uint64(cfg.SlotBytes) / uint64(depth*max(1, s.rails))
	s.chunk = max(minChunk, share&^(line-1)-min(share&^(line-1), line))
	s.entry = line + s.chunk
	s.acks = line
	s.notices = s.acks + roundUp(8*uint64(s.rails))
	s.reports = s.notices + roundUp(8*uint64(s.rails))
	s.sets = s.reports + 2*roundUp(8*uint64(size))
	s.grants = s.sets + roundUp(16*uint64(setWords(size)))
	s.arrivals = s.grants + roundUp(8*uint64(size))
	s.refs = s.arrivals + roundUp(8*uint64(size))
	s.entries = s.refs + roundUp(8*uint64(size))
	s.places = s.entries + s.entry*uint64(depth*s.rails)
	s.place = uint64(cfg.WindowBytes/8) &^ (line - 1)
	s.pane = 4 * s.place // of 1 MiB an all-reduce takes two thirds of what it does in panes of a place
	s.panes = s.places + places*s.place
	s.scratch = s.panes + panes*s.pane
	s.short, s.long = cfg.Short, cfg.Long
	s.scratchSize = 2 * roundUp(max(s.place, s.chunk, uint64(s.short)))
	s.slot = s.scratch + s.scratchSize
	return s, nil
}

// railsOf is the number of rails of a team of n: the logarithm of n to base 2, rounded up.
func railsOf(n int) int { return bits.Len(uint(n - 1)) }

// setWords is the number of words that a set of ranks has.
func setWords(size int) int { return (size + 63) / 64 }

func roundUp(n uint64) uint64 { return (n + line - 1) &^ (line - 1) }

// Spec is the region that the ranks of a job of a size need for a configuration.
func Spec(size int, cfg Config) (env.Spec, error) {
	s, err := newShape(size, cfg)
	if err != nil {
		return env.Spec{}, err
	}
	return env.Spec{Name: Region, Size: uint64(s.slots) * s.slot, Align: line}, nil
}
