// Package racesync shows the race detector the order that communication brings about. The
// detector sees neither what other processes do nor stores through another mapping of the same
// memory: without it, a handler that reads what its own rank wrote before a barrier looks like a
// data race. As package syscall does for files, all communication is one: what goroutines did
// before they sent (Release) is before what they do with what arrives (Acquire). Without -race both
// are nothing.
package racesync
