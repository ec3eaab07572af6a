package bootstrap

import (
	"context"
	"os"
)

// atHub is what a rank has that is connected to a hub.
type atHub struct {
	identity
	client *hubClient
}

func (s *atHub) id() identity { return s.identity }

func (s *atHub) exchange(ctx context.Context, blob []byte) ([][]byte, error) {
	return s.client.collective(ctx, opExchange, blob)
}

func (s *atHub) barrier(ctx context.Context) error {
	_, err := s.client.collective(ctx, opBarrier, nil)
	return err
}

func (s *atHub) lost() <-chan Loss { return s.client.lost }

// member is a rank that reaches the hub by calling it.
type member struct {
	atHub
	exit func(code int) // nil: Abort ends the rank, not the process
}

func newMember(h *hub, rank int, id identity) *member {
	m := &member{atHub: atHub{id, newHubClient(rank, id.size)}}
	m.client.up = hubUplink{h, rank}
	h.attach(rank, "", m.client.deliver)
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
	m.client.close(&cause{kind: causeAbort, code: int32(code), text: msg})
	if m.exit != nil {
		m.exit(code)
	}
}

func (m *member) close(why *cause) error {
	m.client.close(why)
	return nil
}
