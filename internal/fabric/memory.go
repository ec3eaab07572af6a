package fabric

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
)

// Memory is memory that its owner registered, see [Lane.Register]: operations move data from and to
// it without a look-up and without a copy. It must stay mapped until Close has succeeded, or the
// network is closed, which ends all registrations; Go memory stays reachable by itself.
type Memory struct {
	bytes   []byte
	network any // whose it is
	key     uint32
	release func() error
	uses    atomic.Int64 // by work requests in flight; closedUses and more below: closed
}

const closedUses = math.MinInt64 / 2

// NewMemory is for networks: key is the network's name for the memory, and release its part of
// Close, or nil.
func NewMemory(network any, b []byte, key uint32, release func() error) *Memory {
	return &Memory{bytes: b, network: network, key: key, release: release}
}

// Bytes is the memory itself.
func (m *Memory) Bytes() []byte { return m.bytes }

// Close ends the registration. It fails with ErrBusy while operations on the memory are in flight,
// also on lanes that were closed since, and does nothing the second time. It may be called from any
// goroutine while no batch with the memory is being posted.
func (m *Memory) Close() error {
	if !m.uses.CompareAndSwap(0, closedUses) {
		if n := m.uses.Load(); n > 0 {
			return fmt.Errorf("fabric: close of registered memory: %w: %d requests that use it are in flight; "+
				"flush the lanes first", ErrBusy, n)
		}
		return nil
	}
	if m.release == nil {
		return nil
	}
	return m.release()
}

// Revoke is for networks that close: the memory is closed, whatever used it.
func (m *Memory) Revoke() { m.uses.Store(closedUses) }

// Check is for networks: nil when the memory is open and is the network's.
func (m *Memory) Check(network any) error {
	switch {
	case m.network != network:
		return fmt.Errorf("%w: the memory is registered with another network", ErrMemory)
	case m.uses.Load() < 0:
		return fmt.Errorf("%w: the memory is closed: %w", ErrMemory, os.ErrClosed)
	}
	return nil
}

// Key is for networks: what NewMemory was given.
func (m *Memory) Key() uint32 { return m.key }

// Use and Unuse are for networks: a work request that uses the memory begins and ends.
func (m *Memory) Use()   { m.uses.Add(1) }
func (m *Memory) Unuse() { m.uses.Add(-1) }
