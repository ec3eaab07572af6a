//go:build !linux || !cgo || (!amd64 && !arm64)

package regcache

// prepare runs before the tests.
func prepare() {}

// mustWatch reports whether this process has to be able to watch memory of the origin.
func mustWatch(Origin) bool { return false }
