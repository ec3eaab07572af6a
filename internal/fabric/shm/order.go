package shm

// OrderStores goes before a store to a peer's mapped segment, OrderLoads after a load from one,
// where no Lane is used: puts become visible in the order of the calls, which on arm64 needs a
// barrier.
func OrderStores() { orderStores() }

// OrderLoads: see OrderStores.
func OrderLoads() { orderLoads() }
