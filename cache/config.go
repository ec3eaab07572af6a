package cache

import (
	"fmt"
	"math/bits"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fencecheck"
)

// Config sizes a cache. The zero value, with a Region or a Size, is right for most programs.
type Config struct {
	// Region names the region that offsets count from and end with, the same on all ranks. With it
	// Begin and Size are filled in.
	Region string
	// Begin is the offset in bytes that the cache's offset 0 has in every segment.
	Begin uint64
	// Size is how many bytes from Begin on a rank has: nothing beyond them is read or written. Of a
	// rank with 0 the cache keeps nothing. One of Region and Size must be set.
	Size func(rank int) uint64

	// Pages is how many pages the cache has. Range 1 to 43,690, which with the ghosts (Policy) are
	// 65,535 entries. Default 1024.
	Pages int
	// PageSize is the bytes of a page, the most that one operation fetches or writes. A power of two
	// from 64 to 4096. Default 1024: Chapel's choice, the smallest request with close to the peak
	// bandwidth of its InfiniBand network.
	PageSize int
	// LineSize is the bytes of a line, the least that a miss fetches. A power of two from 8 to
	// PageSize, at least PageSize/64. Default 64: as fast as 8 bytes on that network.
	LineSize int
	// Dirty is how many pages may have writes that were not sent. When half of them do, the oldest
	// begin to be written. Range 1 to Pages. Default Pages/8, at least 1.
	Dirty int
	// Ring is how many operations are in flight to one rank at a time: gets, prefetches, and chains
	// of puts. Range 1 to 65,535. Default 32.
	Ring int
	// DirectMin is from how many bytes on a get or put passes the cache by. Range 1 to 1 MiB, and
	// to 8192 pages. Default: PageSize, at least 1024.
	DirectMin int
	// Policy chooses what is evicted. Default TwoQueues.
	Policy Policy
	// Mapped has a conduit.Worker cache also ranks whose memory is mapped here, though loads and
	// stores are faster: for tests. The own rank's never is.
	Mapped bool
	// NoReadahead has nothing fetched that was not asked for.
	NoReadahead bool
	// NoBypass keeps the cache in use where it brings nothing in.
	NoBypass bool
	// Check has a conduit.Job look for missing fences (package fencecheck): accesses to the same bytes
	// by two ranks, one of them writing, without a release and an acquire between them. Of a job whose
	// ranks are in one process (conduit.RunLocal) it knows all accesses through workers; else it reads
	// some of what the cache has again, and compares. Each access then takes microseconds. Own memory
	// that a rank uses as memory it has to be told of: conduit.NoteLoad, conduit.NoteStore.
	Check bool
	// Report is called with what Check has found, each pair of lines once, on the goroutine of the
	// second access, inside of the operation: it must not use the worker. Default: it is printed to
	// standard error.
	Report func(Report)
}

// Report is a missing fence: two accesses, and which half of a fence is not there.
type Report = fencecheck.Report

const (
	defaultPages    = 1024
	defaultPageSize = 1024
	defaultLineSize = 64
	defaultRing     = 32
	maxPages        = 43690 // with half as many ghosts below 1<<16
	minPageSize     = 64
	maxPageSize     = 4096
	minLineSize     = 8
	maxLines        = 64 // of a page: bits of a word
	maxRing         = 1<<16 - 1
	maxDirectMin    = 1 << 20
	maxPieces       = 8192 // pages of a request: with what is dirty fewer operations than 1<<16
)

// ConfigError says which field of a Config is wrong.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("cache: Config.%s is %v, want %s", e.Field, e.Value, e.Want)
}

// WithDefaults fills in what is zero, but for the place of the data, and checks the rest.
func (c Config) WithDefaults() (Config, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Pages, defaultPages)
	def(&c.PageSize, defaultPageSize)
	def(&c.LineSize, min(defaultLineSize, c.PageSize))
	def(&c.Dirty, max(c.Pages/8, 1))
	def(&c.Ring, defaultRing)
	def(&c.DirectMin, max(c.PageSize, 1024))
	within := func(field string, v, low, high int) error {
		if v < low || v > high {
			return &ConfigError{field, v, fmt.Sprintf("%d to %d", low, high)}
		}
		return nil
	}
	power := func(field string, v, low, high int) error {
		if err := within(field, v, low, high); err != nil || bits.OnesCount(uint(v)) == 1 {
			return err
		}
		return &ConfigError{field, v, "a power of two"}
	}
	for _, err := range []error{
		within("Pages", c.Pages, 1, maxPages),
		power("PageSize", c.PageSize, minPageSize, maxPageSize),
		power("LineSize", c.LineSize, max(minLineSize, c.PageSize/maxLines), c.PageSize),
		within("Dirty", c.Dirty, 1, c.Pages),
		within("Ring", c.Ring, 1, maxRing),
		within("DirectMin", c.DirectMin, 1, min(maxDirectMin, maxPieces*c.PageSize)),
		within("Policy", int(c.Policy), 0, int(numPolicies)-1),
	} {
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

// place fills in where the data lie.
func (c *Config) place(e env.Env) error {
	if c.Region != "" {
		r := e.Region(c.Region)
		size := uint64(len(r.Bytes))
		c.Begin, c.Size = r.Off, func(int) uint64 { return size }
	}
	if c.Size == nil {
		return &ConfigError{"Size", "nil", "the bytes of each rank, or a Region"}
	}
	return nil
}
