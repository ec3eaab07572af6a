package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Cache measures kernels of package bench with and without a cache for remote data, in turns.
const Cache = "cache"

// Sides of a measurement of Cache, which are measured in turns.
const (
	SideOff     = "off"     // no cache
	SideOn      = "on"      // one of the sizes asked for
	SidePassive = "passive" // as on, without readahead and without giving up where it is of no use
	SideTiny    = "tiny"    // one of four pages, one of them dirty, one operation in flight
)

// DefCache is what a number of Cache is the time of.
const DefCache = "run"

// MaxRounds bounds the rounds of Cache.
const MaxRounds = 10000

// CacheSizes are the sizes of a cache; 0 is the library's default.
type CacheSizes struct {
	Pages    int    `json:"pages,omitempty"`
	PageSize int    `json:"page_size,omitempty"` // bytes
	LineSize int    `json:"line_size,omitempty"` // bytes
	Policy   string `json:"policy,omitempty"`    // what is evicted, as cache.ParsePolicy names it
}

// Sides reads a list of sides.
func Sides(text string) ([]string, error) {
	var list []string
	for s := range strings.SplitSeq(text, ",") {
		s = strings.TrimSpace(s)
		if s != SideOff && s != SideOn && s != SidePassive && s != SideTiny {
			return nil, fmt.Errorf("%q: want a list of off, on, passive and tiny", s)
		}
		if slices.Contains(list, s) {
			return nil, fmt.Errorf("%s is named twice", s)
		}
		list = append(list, s)
	}
	return list, nil
}

// validateCache returns the fault of a point of Cache by itself, but for the parameters of
// its kernel.
func (p Point) validateCache() error {
	if _, err := Sides(p.Sides); err != nil {
		return fmt.Errorf("sides %w", err)
	}
	switch {
	case p.Op == "":
		return fmt.Errorf("no kernel")
	case p.Rounds < 1 || p.Rounds > MaxRounds:
		return fmt.Errorf("%d rounds: want 1 to %d", p.Rounds, MaxRounds)
	}
	return nil
}
