package sim

import (
	"math/bits"
	"time"
)

// generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom
// Number Generators, OOPSLA 2014). It is written out here so that a seed means
// the same run with every version of Go.
type generator uint64

func (g *generator) next() uint64 {
	*g += 0x9e3779b97f4a7c15
	return mix(uint64(*g))
}

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Uint64 makes it a math/rand/v2 source.
func (g *generator) Uint64() uint64 { return g.next() }

// below is uniform in [0, n); 0 for n < 1.
func (g *generator) below(n int64) int64 {
	if n < 1 {
		return 0
	}
	hi, _ := bits.Mul64(g.next(), uint64(n))
	return int64(hi)
}

// upTo is uniform in [0, d].
func (g *generator) upTo(d time.Duration) int64 {
	if d == 0 {
		return 0
	}
	return g.below(int64(d) + 1)
}

// chance is true with probability p.
func (g *generator) chance(p float64) bool {
	return p > 0 && float64(g.next()>>11)*0x1p-53 < p
}
