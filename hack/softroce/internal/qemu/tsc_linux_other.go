//go:build linux && !amd64

package qemu

// clockArgs: the emulated time stamp counter is not the host's, its speed is left to the guest's
// kernel to measure.
func clockArgs() string { return "" }
