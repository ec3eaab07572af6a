package shm

import "sync/atomic"

// The processor keeps stores in order and loads in order (Intel SDM vol. 3A
// §9.2.2, AMD APM vol. 2 §7.2), and the compiler's copy fences its own
// non-temporal stores, so nothing needs to be done.

func orderStores() {}
func orderLoads()  {}

// fullFence also keeps a later load from passing an earlier store: a locked
// instruction does (ibid. §9.2.3.9).
func fullFence() {
	var word uint64
	atomic.AddUint64(&word, 0)
}

// Reorders: another processor may see stores in another order, so OrderStores and OrderLoads do
// something. A constant, so that the shortest puts stay as short where they do nothing.
const Reorders = false
