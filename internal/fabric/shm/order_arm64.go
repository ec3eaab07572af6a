package shm

// The processor reorders plain loads and stores (Arm ARM §B2.3); these are its
// barriers, in order_arm64.s.

//go:noescape
func orderStores() // DMB ISHST

//go:noescape
func orderLoads() // DMB ISHLD

//go:noescape
func fullFence() // DMB ISH

// Reorders: another processor may see stores in another order, so OrderStores and OrderLoads do
// something. A constant, so that the shortest puts stay as short where they do nothing.
const Reorders = true
