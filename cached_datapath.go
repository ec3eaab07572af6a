package conduit

import (
	"runtime"
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
	if f == nil || f.cache == nil || f.w.inChain || f.w.peers[node-1].size != 0 || int(node)-1 == f.job.rank {
		return false
	}
	if flag != fabric.Blocking && n >= f.cache.DirectMin() {
		return false
	}
	f.catchUp()
	return true
}

// hit returns where n bytes of a rank's user region lie if the cache can be read there, or nil.
func (f *fences) hit(node uint32, off uint64, n int) unsafe.Pointer {
	if f == nil || f.cache == nil || f.w.inChain || f.epoch != f.job.epoch.Load() {
		return nil
	}
	return f.cache.Hit(int(node)-1, off, uint64(n))
}

// hold and letGo mark the worker as in use while it has a cache: all that uses its lanes, or
// changes what the cache has. A hit need not.
func (f *fences) hold() {
	if f == nil || f.cache == nil {
		return
	}
	for !f.mark.CompareAndSwap(false, true) { // a collective operation of the job releases it
		runtime.Gosched()
	}
}

func (f *fences) letGo() {
	if f != nil && f.cache != nil {
		f.mark.Store(false)
	}
}

// stats are the counters of the cache.
func (f *fences) stats() cache.Stats {
	if f == nil || f.cache == nil {
		return cache.Stats{}
	}
	return f.cache.Stats()
}
