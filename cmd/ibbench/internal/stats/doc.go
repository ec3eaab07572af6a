// Package stats keeps the samples of a measurement and says what they amount
// to.
//
// All samples are kept up to a bound fixed beforehand, so percentiles are exact
// (nearest rank: the smallest sample that at least p percent of the samples do
// not exceed). Beyond the bound they come from the histogram, which holds every
// sample with three significant digits and can be merged with another run's.
package stats
