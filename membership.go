package conduit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ibconduit/conduit/bootstrap"
)

// state is how far a rank is in a job. It only grows.
type state int

const (
	joined  state = iota
	leaving       // Close has begun
	left          // Close has ended, or a peer of this host said that it left
	dead          // it cannot be reached, and there is a cause
)

// membership is the state of this rank and of its peers, as this rank knows it. A peer that was
// found dead stays so. The networks are informed of a death outside of the lock, as they may be the
// ones that report the next.
type membership struct {
	rank, size int
	log        *slog.Logger

	deaths     atomic.Uint32 // how many peers are dead
	generation atomic.Uint64 // how often this rank has learned of a death, or of what others wrote; workers compare it
	gone       chan struct{} // closed when this rank has left, or Join has failed

	// over ends then, or when RunLocal's context does. Its cause is the error of what waits.
	over    context.Context
	endOver context.CancelCauseFunc

	// complete ends with the first death; its cause is a *PeerDownError.
	complete context.Context
	broken   context.CancelCauseFunc

	anyReported   chan struct{} // closed when the bootstrap has reported the end of a rank,
	firstReported chan struct{} // and of the rank whose death was found first

	mu     sync.Mutex // taken last
	own    state
	peers  map[int]member // those that left or are dead
	order  []int          // the dead, in the order in which they were found
	inform []*listener    // of deaths: the networks first, then parts
}

// member is a peer that is not joined any more.
type member struct {
	state state
	cause error // why it is dead
}

func newMembership(log *slog.Logger) *membership {
	m := &membership{log: log, gone: make(chan struct{}), peers: make(map[int]member),
		anyReported: make(chan struct{}), firstReported: make(chan struct{})}
	m.complete, m.broken = context.WithCancelCause(context.Background())
	m.over, m.endOver = context.WithCancelCause(context.Background())
	return m
}

// advance brings this rank to a later state, and returns the one before.
func (m *membership) advance(to state) (before state) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before = m.own
	m.own = max(before, to)
	return before
}

// has reports whether this rank is in a state, or a later one.
func (m *membership) has(s state) bool { return m.advance(joined) >= s }

// end ends what still waits for the job. It may be called again.
func (m *membership) end() {
	m.advance(left)
	m.mu.Lock()
	defer m.mu.Unlock()
	closeOnce(m.gone)
	m.endOver(errClosed("wait", "job"))
}

// closeOnce closes c, whose closing is under a lock, unless it is closed.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// leftUnmet is the cause where a rank left that others may still need.
type leftUnmet struct{}

func (leftUnmet) Error() string { return "left the job without the others, after rank 0 was lost" }
func (leftUnmet) Unwrap() error { return bootstrap.ErrLeft }

// die records the death of a peer.
func (m *membership) die(rank int, cause error) { m.change(rank, member{dead, cause}) }

// leave records that a peer of this host has closed the job. Where a rank is lost no other leaves
// in good order. The bootstrap says so, but over TCP through rank 0: once rank 0 is dead, those
// that leave are dead too.
func (m *membership) leave(rank int) { m.change(rank, member{state: left}) }

func (m *membership) change(rank int, to member) {
	if rank < 0 || rank >= m.size || rank == m.rank {
		return
	}
	m.mu.Lock()
	found := len(m.order)
	m.changeLocked(rank, to)
	if m.peers[0].state == dead {
		for r := range m.peers {
			m.changeLocked(r, member{dead, leftUnmet{}})
		}
	}
	found, inform := len(m.order)-found, m.inform
	died := m.order[len(m.order)-found:]
	m.mu.Unlock()
	for _, r := range died {
		cause := m.cause(r)
		m.log.Warn("rank is down", "rank", r, "cause", cause)
		for _, f := range inform {
			f.died(r, cause)
		}
	}
}

func (m *membership) changeLocked(rank int, to member) {
	if m.peers[rank].state >= to.state {
		return
	}
	m.peers[rank] = to
	if to.state == dead {
		m.order = append(m.order, rank)
		m.deaths.Add(1)
		m.generation.Add(1)
		m.broken(&PeerDownError{Rank: rank, Op: "close", Cause: to.cause}) // the first call counts
	}
}

// listener is informed of deaths, of each once.
type listener struct {
	f     func(rank int, cause error)
	ended atomic.Bool
}

func (l *listener) died(rank int, cause error) {
	if !l.ended.Load() {
		l.f(rank, cause)
	}
}

// informs has f called for each death, also for those so far: they may be found while this rank
// still connects. stop ends it; a call that has begun may still run.
func (m *membership) informs(f func(rank int, cause error)) (stop func()) {
	l := &listener{f: f}
	m.mu.Lock()
	m.inform = append(m.inform, l)
	far := m.causesLocked() // in the same hold: of each death either this or who finds it tells
	m.mu.Unlock()
	for rank, cause := range far {
		l.died(rank, cause)
	}
	return func() {
		l.ended.Store(true)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.inform = slices.DeleteFunc(slices.Clone(m.inform), func(o *listener) bool { return o == l }) // others may walk the old one
	}
}

// watch takes the bootstrap's reports until this rank has left.
func (m *membership) watch(lost <-chan bootstrap.Loss) {
	for {
		select {
		case l, ok := <-lost:
			if !ok {
				return
			}
			m.die(l.Rank, l.Cause)
			m.mu.Lock()
			closeOnce(m.anyReported)
			if len(m.order) > 0 && m.order[0] == l.Rank {
				closeOnce(m.firstReported)
			}
			m.mu.Unlock()
		case <-m.gone:
			return
		}
	}
}

// causes are the dead ranks, and why they are.
func (m *membership) causes() map[int]error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.causesLocked()
}

func (m *membership) causesLocked() map[int]error {
	d := make(map[int]error)
	for _, rank := range m.order {
		d[rank] = m.peers[rank].cause
	}
	return d
}

// cause is why a rank is dead, nil while it is not.
func (m *membership) cause(rank int) error {
	if m.deaths.Load() == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.peers[rank].cause
}

// first is the death that was found first, nil before there is one: operations that need all ranks
// fail with it, as the ranks that leave because of it are found dead as well.
func (m *membership) first(op string) error {
	if m.deaths.Load() == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.downLocked(op, m.order[0])
}

// latest is the death that was found last.
func (m *membership) latest(op string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.downLocked(op, m.order[len(m.order)-1])
}

func (m *membership) downLocked(op string, rank int) error {
	return &PeerDownError{Rank: rank, Op: op, Cause: m.peers[rank].cause}
}
