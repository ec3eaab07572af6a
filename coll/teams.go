package coll

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/env"
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/internal/lockrank"
)

// Teams are what one rank has of the teams that it is in. Methods may be called from any goroutine.
type Teams struct {
	env     env.Env
	size    int
	shape   shape
	region  env.Region
	budget  env.Budget // of the job's transient memory; nil: it has none
	copyMax int
	crowded bool      // Env.Crowded
	lanes   env.Lanes // used by who has shared
	shared  turns
	ignore  func()       // ends the subscription to deaths
	check   func() error // Config.Check
	learned func()       // Config.Learned
	watch   func(Operation) func()
	all     *Team

	running atomic.Int64 // operations; closed more when no more may begin
	resting atomic.Bool  // idle has some

	mu     sync.Mutex
	slots  []slot
	open   map[*Team]struct{}
	idle   []am.Parker // wait until no operation runs
	closed bool
}

// closed is what Close adds to the number of running operations.
const closed = math.MinInt64 / 2

// slot is one of a rank's shares of the region.
type slot struct {
	generation uint32 // of the last team in it
	taken      bool
	left       *Team // was given up here, and others may still send; nil else
}

// A generation names a team among those that its slot has had on any of its members, in 24 bits.
// The lower half counts. The upper half is a hash of the Split that the team is from: where a
// Split fails on some members the others do not know that it took the next number.
const (
	generations = 1<<24 - 1
	counts      = 1<<12 - 1
)

// successor is the generation behind one. The counter comes round to 2: memory that nobody has
// written has words of generation 0, and odd and even follow each other (reportAt).
func successor(g uint32) uint32 {
	if g&counts == counts {
		return g&^counts | 2
	}
	return g + 1
}

// Open makes the team of all ranks. The region of Spec must be laid out, for the same
// configuration.
func Open(e env.Env, cfg Config) (*Teams, error) {
	s, err := newShape(e.Size(), cfg)
	if err != nil {
		return nil, err
	}
	m := &Teams{env: e, size: e.Size(), shape: s, region: e.Region(Region), budget: e.Budget(), copyMax: e.CopyMax(), crowded: e.Crowded(),
		check: cfg.Check, learned: cfg.Learned, watch: cfg.Watch,
		slots: make([]slot, s.slots), open: make(map[*Team]struct{})}
	if want := uint64(s.slots) * s.slot; uint64(len(m.region.Bytes)) < want {
		return nil, fmt.Errorf("coll: region %q has %d bytes, %d are needed: lay out what Spec returns for the same Config", Region, len(m.region.Bytes), want)
	}
	if m.lanes, err = e.NewLanes(); err != nil {
		return nil, fmt.Errorf("coll: lanes for collective operations: %w", err)
	}
	m.shared.host = e.Host()
	m.slots[0] = slot{generation: 1, taken: true}
	m.all = m.newTeam(0, 1, nil, e.Rank())
	m.ignore = e.OnDown(m.died)
	return m, nil
}

// All is the team of all ranks of the job, in their order.
func (m *Teams) All() *Team { return m.all }

// Running is how many operations run, or wait for their turn.
func (m *Teams) Running() int {
	n := m.running.Load()
	if n < 0 {
		n -= closed
	}
	return int(n)
}

// Quiesce waits until no operation runs.
func (m *Teams) Quiesce(ctx context.Context) error {
	if m.Running() == 0 {
		return nil
	}
	idle := m.env.Host().NewParker()
	for {
		m.mu.Lock()
		m.idle = append(m.idle, idle)
		m.resting.Store(true)
		m.mu.Unlock()
		if m.Running() == 0 { // else who ends the last one finds idle
			return nil
		}
		if err := idle.Park(ctx); err != nil && m.Running() > 0 {
			return err
		}
	}
}

// Close waits until the operations that run have ended, which they do when the job closes or when
// their contexts end, and gives the lanes back. It waits for no other rank. Later operations fail
// with os.ErrClosed.
func (m *Teams) Close() error {
	m.mu.Lock()
	again := m.closed
	m.closed = true
	m.mu.Unlock()
	if again {
		return nil
	}
	m.running.Add(closed)
	if err := m.Quiesce(context.Background()); err != nil {
		return err
	}
	m.ignore()
	err := m.lanes.Close()
	if errors.Is(err, fabric.ErrPeerDown) { // a put that no operation waited for; the job knows
		return nil
	}
	return err
}

// admit is asked before an operation that blocks: it refuses callers that may not wait. what is
// the operation, for the error.
func (m *Teams) admit(what any) error {
	lockrank.CheckCommunication("collective operation")
	if m.check != nil {
		if err := m.check(); err != nil {
			return fmt.Errorf("coll: %v: %w", what, err)
		}
	}
	return m.enter()
}

// enter counts an operation that begins.
func (m *Teams) enter() error {
	if m.running.Add(1) <= 0 {
		m.leave()
		return fmt.Errorf("coll: the job is closed: %w", os.ErrClosed)
	}
	return nil
}

func (m *Teams) leave() {
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

// newTeam makes this rank's view of a team. members are ranks of the job; nil: all.
func (m *Teams) newTeam(slot int, generation uint32, members []int32, me int) *Team {
	n := m.size
	if members != nil {
		n = len(members)
	}
	base := uint64(slot) * m.shape.slot
	rails := railsOf(n)
	t := new(Team)
	t.roster = roster{teams: m, slot: slot, generation: generation, members: members, me: me, n: n, rails: rails,
		off: m.region.Off + base, mem: m.region.Bytes[base : base+m.shape.slot], rail: make([]rail, rails)}
	t.turns.host = m.env.Host()
	t.op.t, t.op.looks = t, t.op.look
	for i := range t.rail {
		r := &t.rail[i]
		r.ahead, r.behind = m.near(t.Member(t.after(i)), t.off), m.near(t.Member(t.before(i)), t.off)
		r.begin = m.shape.entries + uint64(i)*depth*m.shape.entry
	}
	m.mu.Lock()
	m.open[t] = struct{}{}
	m.mu.Unlock()
	for i := range n { // those that died before
		if err := m.env.Down(t.Member(i)); err != nil {
			t.lose(t.Member(i), err)
			break
		}
	}
	return t
}

// near is the slot at an offset in the segment of a rank whose memory loads and stores reach; nil:
// it takes a lane.
func (m *Teams) near(rank int, off uint64) []byte {
	if rank == m.env.Rank() {
		return nil
	}
	if seg := m.lanes.To(rank).Mapped(rank); seg != nil {
		return seg[off:][:m.shape.slot]
	}
	return nil
}

// died breaks the teams that a rank is in.
func (m *Teams) died(rank int, cause error) {
	for _, t := range m.with(rank) {
		t.lose(rank, cause)
	}
}

// with are the teams that a rank is in, and this one.
func (m *Teams) with(rank int) (teams []*Team) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for t := range m.open {
		if t.Index(rank) >= 0 {
			teams = append(teams, t)
		}
	}
	slices.SortFunc(teams, func(a, b *Team) int { return a.slot - b.slot }) // a simulation repeats itself
	return teams
}

// vacate ends a team, and does to its slot what follows from how.
func (m *Teams) vacate(t *Team, then func(*slot)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, t)
	then(&m.slots[t.slot])
}

// offer is the slots of this rank, as Split tells the others.
func (m *Teams) offer() []slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.slots {
		if s := &m.slots[i]; s.left != nil && s.left.quiet() {
			s.left.over = true
			s.left, s.taken = nil, false
		}
	}
	return append([]slot(nil), m.slots...)
}

// reserve takes a slot for a team, unless another Split of this rank was faster.
func (m *Teams) reserve(slot int, generation uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.slots[slot]
	if s.taken {
		return false
	}
	s.taken, s.generation = true, generation
	atomic.StoreUint64(m.reserved(slot), uint64(generation))
	return true
}

func (m *Teams) unreserve(slot int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slots[slot].taken = false
	atomic.StoreUint64(m.reserved(slot), 0)
}

func (m *Teams) reserved(slot int) *uint64 {
	return word(m.region.Bytes, uint64(slot)*m.shape.slot+reservedWord)
}

// post puts words of this rank's own through the shared lanes. The lock is held while the network
// takes them, which ends whatever other ranks do, and never while another rank's program is waited
// for.
func (m *Teams) post(ctx context.Context, rank int, off uint64, data []byte) error {
	if err := m.shared.lock(ctx); err != nil {
		return err
	}
	defer m.shared.unlock()
	_, err := m.lanes.To(rank).Put(rank, off, data, fabric.Implicit)
	return err
}

// flush waits until all that was posted through the shared lanes is where it belongs, or its rank
// is down.
func (m *Teams) flush(ctx context.Context) error {
	if err := m.shared.lock(ctx); err != nil {
		return err
	}
	defer m.shared.unlock()
	for _, l := range m.lanes.All() {
		for {
			err := l.Flush(ctx)
			if err == nil {
				break
			}
			// A death ends what was on its way to that rank, perhaps of another team. It is said
			// once; what went elsewhere may still be on its way.
			if down := (*fabric.PeerDownError)(nil); !errors.As(err, &down) {
				return err
			}
		}
	}
	return nil
}

// poll makes progress while an operation waits without a lane, if nobody uses the lanes.
func (m *Teams) poll() error {
	if !m.shared.try() {
		return nil
	}
	defer m.shared.unlock()
	for _, l := range m.lanes.All() {
		if err := l.Poll(); err != nil {
			return err
		}
	}
	return nil
}

func word(mem []byte, off uint64) *uint64 { return (*uint64)(unsafe.Pointer(&mem[off])) }
