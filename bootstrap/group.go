package bootstrap

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
)

// NewGroup makes a job of n ranks inside this process, for tests and for
// programs that run their ranks as goroutines. Abort marks its rank as dead
// for the others and returns; everything else is as between processes.
func NewGroup(n int) []Bootstrap {
	h := newHub(n)
	id := fmt.Sprintf("group-%d-%d", os.Getpid(), groups.Add(1))
	ranks := make([]Bootstrap, n)
	for r := range ranks {
		m := newMember(h, r, identity{rank: r, size: n, job: id, localRank: r, localSize: n, localKnown: true})
		ranks[r] = newJob(m, "group", Options{}.withDefaults())
	}
	return ranks
}

// groups makes job ids unique within the process.
var groups atomic.Uint64

// seated is what every rank has that is seated at a hub.
type seated struct {
	identity
	seat *seat
}

func (s *seated) id() identity { return s.identity }

func (s *seated) exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	return s.seat.collective(ctx, opExchange, blob)
}

func (s *seated) barrier(ctx context.Context) error {
	_, err := s.seat.collective(ctx, opBarrier, nil)
	return err
}

func (s *seated) lost() <-chan Loss { return s.seat.lost }

// member is a rank that reaches the hub by calling it.
type member struct {
	seated
	exit func(code int) // nil: Abort ends the rank, not the process
}

func newMember(h *hub, rank int, id identity) *member {
	m := &member{seated: seated{id, newSeat(rank, id.size)}}
	m.seat.up = hubUplink{h, rank}
	h.attach(rank, "", m.seat.deliver)
	return m
}

// newSelf is the job of one rank.
func newSelf() *member {
	id := identity{size: 1, job: "self-" + randomID(), localSize: 1, localKnown: true}
	m := newMember(newHub(1), 0, id)
	m.exit = os.Exit
	return m
}

func (m *member) abort(code int, msg string) {
	m.seat.close(&cause{kind: causeAbort, code: int32(code), text: msg})
	if m.exit != nil {
		m.exit(code)
	}
}

func (m *member) close(why *cause) error {
	m.seat.close(why)
	return nil
}
