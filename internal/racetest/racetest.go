// Package racetest tells tests whether they were built with the race detector, under which what
// they run is some ten times slower and the memory laid out otherwise.
package racetest

// Enabled is true with -race.
const Enabled = enabled
