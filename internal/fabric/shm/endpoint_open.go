package shm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/handle"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/queue"
)

// NewEndpoint opens an endpoint. Each number can be opened once.
func (n *Network) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	if err := n.MessageLimits().Check(i, cfg); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	if n.cfg.Size > maxRank {
		return nil, fmt.Errorf("shm: endpoints serve at most %d ranks", maxRank)
	}
	ep, err := newEndpoint(n, i, cfg)
	if err != nil {
		return nil, err
	}
	requests, err := n.register(ep)
	if err != nil {
		return nil, errors.Join(err, ep.free())
	}
	for _, r := range requests {
		ep.link(r.from).connected(r)
	}
	return ep, nil
}

func newEndpoint(n *Network, num int, cfg fabric.EndpointConfig) (*endpoint, error) {
	region, err := newRegion(cfg.Slots, cfg.SlotSize)
	if err != nil {
		return nil, err
	}
	count, free, err := offheap.Alloc[pollCounts]()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shm: counters of an endpoint: %w", err), region.close())
	}
	ep := &endpoint{n: n, num: num, cfg: cfg, rank: uint32(n.cfg.Rank), region: region,
		links: make([]atomic.Pointer[link], n.cfg.Size), count: count, freeIt: free}
	ep.receive.open(&region.ring)
	ep.noted.open(&region.note)
	ep.sends.open(cfg)
	ep.sleeper.open(num)
	ep.alive.Store(true)
	ep.tracked = handle.New(ep, "shm endpoint", fmt.Sprintf("%d of rank %d", num, n.cfg.Rank))
	return ep, nil
}

// register makes an endpoint known to the network, and returns the connection requests that
// came before it.
func (n *Network) register(ep *endpoint) ([]handshake, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endpointMu.Lock()
	defer n.endpointMu.Unlock()
	switch {
	case n.state != joined:
		return nil, fmt.Errorf("shm: NewEndpoint needs a connected network: %w", os.ErrClosed)
	case n.endpoints[ep.num] != nil:
		return nil, fmt.Errorf("shm: endpoint %d of rank %d was opened before", ep.num, n.cfg.Rank)
	}
	n.endpoints[ep.num] = ep
	n.open++
	requests := n.early[ep.num]
	n.early[ep.num] = nil
	return requests, nil
}

// Close ends the endpoint. A peer that sends to it finds it closed.
func (ep *endpoint) Close() error {
	var err error
	ep.closeAll.Do(func() {
		ep.alive.Store(false)
		ep.attention.Add(1) // ends a Poll
		ep.Wake()
		ep.polling.Lock()
		defer ep.polling.Unlock()
		ep.n.mu.Lock()
		ep.n.open--
		ep.n.mu.Unlock()
		err = ep.free()
	})
	return err
}

// free releases the memory. No poll runs, and every other call finds the endpoint closed.
func (ep *endpoint) free() error {
	var errs []error
	ep.alive.Store(false)
	atomic.StoreUint32(&ep.region.head.closed, 1)
	for i := range ep.links {
		if l := ep.links[i].Load(); l != nil {
			l.mu.Lock()
			errs = append(errs, l.dropLocked())
			l.mu.Unlock()
		}
	}
	ep.receive.mu.Lock()
	errs = append(errs, ep.region.close())
	last := *ep.count
	ep.count = &last
	ep.freeIt()
	ep.receive.mu.Unlock()
	ep.mu.Lock()
	ep.queue = queue.Ring[entry]{}
	ep.mu.Unlock()
	ep.alarms.Clear()
	ep.tracked.Close()
	return errors.Join(errs...)
}
