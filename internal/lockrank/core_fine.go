//go:build !biglock

package lockrank

import "sync"

// OneLock reports whether all Mutexes share one lock.
const OneLock = false

type core = sync.Mutex
