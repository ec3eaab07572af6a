// Package machine describes where a measurement runs, and places its ranks on
// processors.
package machine
