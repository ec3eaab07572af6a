package coll

import (
	"context"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// closed is what Close adds to the number of running operations.
const closed = math.MinInt64 / 2

// gate counts the operations of all teams, and lets none begin after Close.
type gate struct {
	host    am.Host
	check   func() error // Config.Check
	running atomic.Int64 // operations; closed more when no more may begin
	resting atomic.Bool  // idle has some

	mu     sync.Mutex
	idle   []am.Parker // wait until no operation runs
	closed bool
}

// count is how many operations run, or wait for their turn.
func (m *gate) count() int {
	n := m.running.Load()
	if n < 0 {
		n -= closed
	}
	return int(n)
}

// quiesce waits until no operation runs.
func (m *gate) quiesce(ctx context.Context) error {
	if m.count() == 0 {
		return nil
	}
	idle := m.host.NewParker()
	for {
		m.mu.Lock()
		m.idle = append(m.idle, idle)
		m.resting.Store(true)
		m.mu.Unlock()
		if m.count() == 0 { // else who ends the last one finds idle
			return nil
		}
		if err := idle.Park(ctx); err != nil && m.count() > 0 {
			return err
		}
	}
}

// close lets no operation begin any more, once.
func (m *gate) close() (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first = !m.closed
	if m.closed = true; first {
		m.running.Add(closed)
	}
	return first
}

// admit is called before an operation that blocks: it refuses callers that may not wait. what
// names the operation in the error.
func (m *gate) admit(what any) error {
	lockrank.CheckCommunication("collective operation")
	if m.check != nil {
		if err := m.check(); err != nil {
			return fmt.Errorf("coll: %v: %w", what, err)
		}
	}
	return m.enter()
}

// enter counts an operation that begins.
func (m *gate) enter() error {
	if m.running.Add(1) <= 0 {
		m.leave()
		return fmt.Errorf("coll: the job is closed: %w", os.ErrClosed)
	}
	return nil
}

func (m *gate) leave() {
	if n := m.running.Add(-1); n != 0 && n != closed || !m.resting.Load() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resting.Store(false)
	for _, p := range m.idle {
		p.Unpark()
	}
	m.idle = nil
}
