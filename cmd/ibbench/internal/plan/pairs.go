package plan

import (
	"errors"
	"fmt"
)

// Pairs measures every pair of ranks, one after the other: the latency of Get, the bandwidth of
// Put.
const Pairs = "pairs"

// PairsDepth is the number of puts in flight.
const PairsDepth = 16

// validatePairs returns what is wrong with a point of Pairs by itself.
func (p Point) validatePairs() error {
	switch {
	case p.Op != Get && p.Op != Put:
		return fmt.Errorf("operation %q is not measured by %s", p.Op, p.Kind)
	case p.Op == Get && p.Depth != 1:
		return errors.New("a latency has depth 1")
	case p.Duration <= 0:
		return errors.New("a duration that is not above 0")
	case !(p.Factor > 1) || p.Factor > 1000:
		return fmt.Errorf("a factor of %g: want one above 1, to 1000", p.Factor)
	}
	return nil
}

// Measured is the point that a pair measures by.
func (p Point) Measured() Point {
	p.Kind = Lat
	if p.Op == Put {
		p.Kind = BW
	}
	return p
}
