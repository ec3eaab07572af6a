//go:build race

package am_test

// How much is simulated: less with the race detector, which is some ten times slower.
const (
	manyRanks = 300
	killSeeds = 1
	volume    = 20_000
)
