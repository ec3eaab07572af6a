// Package report is the form in which ibbench gives its results: the schema of
// its JSON, which README.md of cmd/ibbench documents, and the writers for text,
// JSON, CSV and Go benchmark lines.
//
// Inside, durations are ns and throughputs are bytes or operations per second;
// only text shows them in other units.
package report
