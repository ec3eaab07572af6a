package coll

import (
	"context"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// Teams are what one rank has of the teams that it is in. Methods may be called from any goroutine.
type Teams struct {
	shared  shared
	gate    gate
	slots   slots
	open    open
	ignore  func() // ends the subscription to deaths
	learned func() // Config.Learned
	watch   func(Operation) func()
	all     *Team
}

// Open makes the team of all ranks. The region of Spec must be laid out, for the same
// configuration.
func Open(e env.Env, cfg Config) (*Teams, error) {
	s, err := newShape(e.Size(), cfg)
	if err != nil {
		return nil, err
	}
	m := &Teams{learned: cfg.Learned, watch: cfg.Watch}
	m.shared = shared{env: e, size: e.Size(), shape: s, region: e.Region(Region), budget: e.Budget(),
		copyMax: e.CopyMax(), crowded: e.Crowded()}
	if has, want := len(m.shared.region.Bytes), uint64(s.slots)*s.slot; uint64(has) < want {
		return nil, fmt.Errorf("coll: region %q has %d bytes, %d are needed: lay out what Spec returns for the same "+
			"Config", Region, has, want)
	}
	if m.shared.lanes, err = e.NewLanes(); err != nil {
		return nil, fmt.Errorf("coll: lanes for collective operations: %w", err)
	}
	m.shared.turns.host = e.Host()
	m.gate.host, m.gate.check = e.Host(), cfg.Check
	m.slots.shared, m.slots.all = &m.shared, make([]slot, s.slots)
	m.slots.all[0] = slot{generation: 1, taken: true}
	m.open.teams = make(map[*health]struct{})
	m.all = m.newTeam(0, 1, nil, e.Rank())
	m.ignore = e.OnDown(m.died)
	return m, nil
}

// All is the team of all ranks of the job, in their order.
func (m *Teams) All() *Team { return m.all }

// Running is how many operations run, or wait for their turn.
func (m *Teams) Running() int { return m.gate.count() }

// Quiesce waits until no operation runs.
func (m *Teams) Quiesce(ctx context.Context) error { return m.gate.quiesce(ctx) }

// Close waits until the operations that run have ended, which they do when the job closes or when
// their contexts end, and gives the lanes back. It waits for no other rank. Later operations fail
// with os.ErrClosed.
func (m *Teams) Close() error {
	if !m.gate.close() {
		return nil
	}
	if err := m.gate.quiesce(context.Background()); err != nil {
		return err
	}
	m.ignore()
	err := m.shared.lanes.Close()
	if errors.Is(err, fabric.ErrPeerDown) { // a put that no operation waited for; the job knows
		return nil
	}
	return err
}

// newTeam makes this rank's view of a team. members are ranks of the job; nil: all.
func (m *Teams) newTeam(slot int, generation uint32, members []int32, me int) *Team {
	s := &m.shared
	n := s.size
	if members != nil {
		n = len(members)
	}
	base := uint64(slot) * s.shape.slot
	t := &Team{teams: m}
	t.membership = membership{shared: s, slot: slot, generation: generation, members: members, me: me, n: n,
		rails: railsOf(n),
		off:   s.region.Off + base, mem: s.region.Bytes[base : base+s.shape.slot]}
	t.health.team, t.health.shared, t.health.open = &t.membership, s, &m.open
	t.turns.host = s.env.Host()
	t.op.init(&t.membership, &t.health)
	m.open.add(&t.health)
	for i := range n { // those that died before
		if err := s.env.Down(t.Member(i)); err != nil {
			t.health.lose(t.Member(i), err)
			break
		}
	}
	return t
}

// died breaks the teams that a rank is in.
func (m *Teams) died(rank int, cause error) {
	for _, h := range m.open.with(rank) {
		h.lose(rank, cause)
	}
}
