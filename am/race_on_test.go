//go:build race

package am_test

// manyRanks is less with the race detector, which is some ten times slower.
const manyRanks = 300
