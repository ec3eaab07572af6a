//go:build race

package sim

// manyRanks keeps well below the 8128 goroutines that the race detector can follow, which is
// slow with thousands of them.
const manyRanks = 1000

// How much of the suites is run: the detector makes them some ten times slower.
const rounds, checks, messageRounds = 40, 15, 50
