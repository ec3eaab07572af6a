//go:build !amd64 && !arm64

package shm

import "sync/atomic"

var fence atomic.Uint64

// On other processors Go's atomics, which are sequentially consistent, order
// everything.

func orderStores() { fence.Add(0) }
func orderLoads()  { fence.Add(0) }
func fullFence()   { fence.Add(0) }

// Reorders: another processor may see stores in another order, so OrderStores and OrderLoads do
// something. A constant, so that the shortest puts stay as short where they do nothing.
const Reorders = true
