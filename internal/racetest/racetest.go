// Package racetest says whether the build has the race detector, which makes a program some ten
// times slower and lays out its memory otherwise.
package racetest

// Enabled is true with -race.
const Enabled = enabled
