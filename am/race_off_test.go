//go:build !race

package am_test

const manyRanks = 2000
