//go:build !linux

package regcache

func mapRegistered(int, bool) ([]byte, error) {
	return nil, &Error{Op: "mmap", Err: ErrNotSupported, Detail: "buffers are mapped on Linux only"}
}

func unmapRegistered([]byte) error { return nil }
