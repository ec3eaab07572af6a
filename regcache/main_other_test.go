//go:build !linux || !cgo || (!amd64 && !arm64)

package regcache

// prepare runs before the tests.
func prepare() {}
