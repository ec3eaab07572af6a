package shm

// OrderStores is called in front of a store to the segment of a peer where it is mapped here, OrderLoads behind a load from one, by
// those who do not use a Lane: puts become visible in the order of the calls, which on arm64 needs a barrier.
func OrderStores() { orderStores() }

// OrderLoads: see OrderStores.
func OrderLoads() { orderLoads() }
