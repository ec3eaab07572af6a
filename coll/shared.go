package coll

import (
	"context"
	"errors"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// shared is what all teams of a rank share: the job, how slots are laid out, and lanes. The holder
// of the turn uses these, for a post or while the network completes posts: that ends whatever
// other ranks do, so no turn waits for another rank's program.
type shared struct {
	env     env.Env
	size    int
	shape   shape
	region  env.Region
	budget  env.Budget // of the job's transient memory; nil: it has none
	copyMax int
	crowded bool // Env.Crowded
	turns   turns
	lanes   env.Lanes
}

// near is the slot at an offset in the segment of a rank with memory that loads and stores reach;
// nil: it takes a lane.
func (m *shared) near(rank int, off uint64) []byte {
	if rank == m.env.Rank() {
		return nil
	}
	if seg := m.lanes.To(rank).Mapped(rank); seg != nil {
		return seg[off:][:m.shape.slot]
	}
	return nil
}

// post puts words of this rank's own through the shared lanes. The lock is held while the network
// takes them, which ends whatever other ranks do, and never while another rank's program is waited
// for.
func (m *shared) post(ctx context.Context, rank int, off uint64, data []byte) error {
	if err := m.turns.lock(ctx); err != nil {
		return err
	}
	defer m.turns.unlock()
	_, err := m.lanes.To(rank).Put(rank, off, data, fabric.Implicit)
	return err
}

// flush waits until all that was posted through the shared lanes is where it belongs, or its rank
// is down.
func (m *shared) flush(ctx context.Context) error {
	if err := m.turns.lock(ctx); err != nil {
		return err
	}
	defer m.turns.unlock()
	for _, l := range m.lanes.All() {
		for {
			err := l.Flush(ctx)
			if err == nil {
				break
			}
			// A death ends the writes on their way to that rank, perhaps of another team. It is said
			// once; other writes may still be on their way.
			if down := (*fabric.PeerDownError)(nil); !errors.As(err, &down) {
				return err
			}
		}
	}
	return nil
}

// poll makes progress while an operation waits without a lane, if the lanes are free.
func (m *shared) poll() error {
	if !m.turns.try() {
		return nil
	}
	defer m.turns.unlock()
	for _, l := range m.lanes.All() {
		if err := l.Poll(); err != nil {
			return err
		}
	}
	return nil
}

// get reads from another rank's segment through the shared lanes.
func (m *shared) get(ctx context.Context, rank int, off uint64, dst []byte) error {
	if err := m.turns.lock(ctx); err != nil {
		return err
	}
	defer m.turns.unlock()
	lane := m.lanes.To(rank)
	h, err := lane.Get(rank, off, dst, fabric.Blocking)
	if err == nil {
		_, err = lane.Wait(ctx, h)
	}
	return err
}
