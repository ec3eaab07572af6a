//go:build !race

package am_test

// How much is simulated.
const (
	manyRanks = 2000
	killSeeds = 5
	volume    = 200_000
)
