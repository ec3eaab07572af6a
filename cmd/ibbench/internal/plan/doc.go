// Package plan has the measurements: the points of a sweep, how often,
// and what must hold of the result. It also reads what users write on a
// command line: sizes, counts, rates, processor lists, percentiles, assertions.
//
// A Plan travels to the ranks as JSON, so that only one process parses flags.
package plan
