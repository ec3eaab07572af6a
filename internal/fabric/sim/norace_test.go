//go:build !race

package sim

const manyRanks = 10_000

const rounds, checks, messageRounds = 200, 100, 300
