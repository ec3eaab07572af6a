package conduit

import (
	"errors"

	"github.com/ibconduit/conduit/internal/fabric"
)

// maxNetworks is how many there can be, a power of two: shared memory and verbs.
const maxNetworks = 2

// networks are what a rank reaches the others by. They are fixed before Join returns.
type networks struct {
	all     []fabric.Network // fastest first
	routes  []route          // by rank
	copyMax int              // the least Limits.CopyMax
}

// route is how operations on one rank travel.
type route struct {
	data, amo  fabric.Network
	net        int    // index of data among the networks
	amoNet     int    // index of amo
	cpuAtomics bool   // amo works on mapped memory with the processor's atomics
	user       uint64 // bytes of the user's region of the rank's segment
}

// to is the route to a rank, nil if there is no such rank.
func (n *networks) to(rank int) *route {
	if rank < 0 || rank >= len(n.routes) {
		return nil
	}
	return &n.routes[rank]
}

func (n *networks) names() (names []string) {
	for _, net := range n.all {
		names = append(names, net.Name())
	}
	return names
}

func (n *networks) close() error {
	var errs []error
	for _, net := range n.all {
		errs = append(errs, net.Close())
	}
	return errors.Join(errs...)
}
