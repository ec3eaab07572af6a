package memevents

// DefaultMaxDeadBytes bounds the registered memory that waits for deregistration while there are no
// calls.
const DefaultMaxDeadBytes = 64 << 20

// WatcherConfig says how a Watcher behaves. The zero value is usable.
type WatcherConfig struct {
	// MaxDeadBytes: above so many bytes of invalidated ranges that were not drained, Wait returns.
	// In bytes; default DefaultMaxDeadBytes; negative: at the first.
	MaxDeadBytes int64
}

func (c WatcherConfig) deadLimit() uint64 {
	switch {
	case c.MaxDeadBytes < 0:
		return 0
	case c.MaxDeadBytes == 0:
		return DefaultMaxDeadBytes
	}
	return uint64(c.MaxDeadBytes)
}
