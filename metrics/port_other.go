//go:build !linux

package metrics

import "github.com/ibconduit/conduit/verbs"

// readPort reads a port's counters.
func readPort(device string, port int) (map[string]uint64, error) {
	return verbs.PortCounters(device, port)
}
