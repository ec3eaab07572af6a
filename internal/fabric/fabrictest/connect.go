package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ibconduit/conduit/internal/fabric"
)

// Connect connects the ranks of one job in this process, each to all, with an
// exchange among them.
func Connect(ctx context.Context, nets []fabric.Network) error {
	x := &exchange{blobs: make(map[int][][]byte), size: len(nets)}
	x.cond = sync.NewCond(&x.mu)
	addrs := make([][]byte, len(nets))
	for r, n := range nets {
		addrs[r] = n.Addr()
	}
	for r, n := range nets {
		for p, a := range addrs {
			if err := n.Reach(p, a); err != nil {
				return fmt.Errorf("rank %d reaches rank %d: %w", r, p, err)
			}
		}
	}
	// A rank that fails must not let the others wait for its next exchange.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, x.wake)
	defer stop()
	errs := make([]error, len(nets))
	var wg sync.WaitGroup
	for r, n := range nets {
		wg.Go(func() {
			if err := n.Connect(ctx, addrs, x.of(r)); err != nil {
				errs[r] = fmt.Errorf("rank %d connects: %w", r, err)
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// exchange is an all-gather between goroutines, any number of times.
type exchange struct {
	mu    sync.Mutex
	cond  *sync.Cond
	size  int
	blobs map[int][][]byte // by turn
}

// wake lets waiters look at their context. The lock keeps it from passing
// between a waiter's look and its wait.
func (x *exchange) wake() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cond.Broadcast()
}

// of is the exchange as seen by one rank.
func (x *exchange) of(rank int) fabric.Exchange {
	turn := 0
	return func(ctx context.Context, blob []byte) ([][]byte, error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		turn++
		all := x.blobs[turn]
		if all == nil {
			all = make([][]byte, x.size)
			x.blobs[turn] = all
		}
		all[rank] = append([]byte{}, blob...)
		x.cond.Broadcast()
		for !complete(all) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			x.cond.Wait()
		}
		return all, nil
	}
}

func complete(all [][]byte) bool {
	for _, b := range all {
		if b == nil {
			return false
		}
	}
	return true
}
