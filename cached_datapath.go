package conduit

import (
	"unsafe"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/fabric"
)

// Where a worker has a cache, puts and gets of ranks that are not mapped here go through it, but
// for large ones and those of chains.

// cached returns where n bytes of a rank's user region lie in the lines that the worker's cache
// read last, or nil.
func (f *fences) cached(node uint32, off, n uint64) unsafe.Pointer {
	if f == nil || f.cache == nil || f.epoch != f.job.epoch.Load() {
		return nil
	}
	return f.cache.Peek(int(node)-1, off, n)
}

// takes reports whether the cache, if there is one, has an operation on a rank. One that waits it
// takes whatever the size, also if it passes it by itself.
func (f *fences) takes(node uint32, n int, flag fabric.Flag) bool {
	if f == nil || f.cache == nil || f.w.inChain || f.w.peers[node-1].size != 0 {
		return false
	}
	if flag != fabric.Blocking && n >= f.cache.DirectMin() {
		return false
	}
	f.catchUp()
	return true
}

// reads reports whether a get that does not wait is a hit, and does it then.
func (f *fences) reads(node uint32, off uint64, dst []byte) bool {
	at := f.cache.Hit(int(node)-1, off, uint64(len(dst)))
	if at == nil {
		return false
	}
	copy(dst, unsafe.Slice((*byte)(at), len(dst)))
	return true
}

// stats are the counters of the cache.
func (f *fences) stats() cache.Stats {
	if f == nil || f.cache == nil {
		return cache.Stats{}
	}
	return f.cache.Stats()
}
