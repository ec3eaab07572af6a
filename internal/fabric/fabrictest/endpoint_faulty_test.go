package fabrictest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// faultyEndpoints are simulated ranks whose endpoints have a fault, and the host of their checks.
type faultyEndpoints struct {
	sim.Host
	fault endpointFault
}

func (x *faultyEndpoints) ranks(t T, n, size int) []MessageRank {
	w, err := sim.New(sim.Config{Ranks: n, SegmentSize: size, Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	x.W = w
	w.ConnectAll()
	ranks := make([]MessageRank, n)
	for r := range n {
		ranks[r] = MessageRank{Net: &faultyMessenger{w.Rank(r).Net(), x.fault}, Segment: w.Rank(r).Segment()}
	}
	return ranks
}

func recordMessages(t *testing.T, c messageCheck, f endpointFault) (failed bool, log string) {
	x := &faultyEndpoints{fault: f}
	o := MessageOptions{New: x.ranks, Host: x, Rounds: 100, Timeout: time.Second}
	return recordFunc(t, func(r *recorder) { c.run(r, o) })
}

func TestSoundEndpointsPass(t *testing.T) {
	for _, c := range messageCases {
		if failed, log := recordMessages(t, c, endpointFault{}); failed {
			t.Errorf("%s failed:\n%s", c.name, log)
		}
	}
}

// Each fault must be caught by the checks that name what it breaks.
func TestPlantedEndpointFaultsAreCaught(t *testing.T) {
	for _, f := range endpointFaults {
		t.Run(f.name, func(t *testing.T) {
			for _, want := range f.caught {
				i := slices.IndexFunc(messageCases, func(c messageCheck) bool { return c.name == want })
				if i < 0 {
					t.Fatalf("there is no check %q", want)
				}
				if failed, log := recordMessages(t, messageCases[i], f); !failed {
					t.Errorf("%s passed:\n%s", want, log)
				}
			}
		})
	}
}

// A check that no planted fault can fail proves nothing.
func TestEveryEndpointCheckCatchesAFault(t *testing.T) {
	for _, c := range messageCases {
		if !slices.ContainsFunc(endpointFaults, func(f endpointFault) bool { return slices.Contains(f.caught, c.name) }) {
			t.Errorf("no planted fault is caught by %s", c.name)
		}
	}
}

// endpointFault is one way in which endpoints can be broken. The hooks replace one method each.
type endpointFault struct {
	name   string
	caught []string

	event       func(p *faultyEndpoint, e *fabric.Event) (keep bool)
	send        func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error
	reserve     func(p *faultyEndpoint, f fabric.SendFlag) (fabric.SendBuf, error)
	note        func(p *faultyEndpoint, peer int, data []byte) error
	wait        func(p *faultyEndpoint, ctx context.Context) error
	wake        func(p *faultyEndpoint)
	after       func(p *faultyEndpoint, t time.Duration)
	now         func(p *faultyEndpoint) time.Duration
	stats       func(s *fabric.EndpointStats)
	kick        func(p *faultyEndpoint) error
	part        func(p *faultyEndpoint, peer int) error
	end         func(p *faultyEndpoint) error
	newEndpoint func(n *faultyMessenger, i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error)
	down        func(n *faultyMessenger, rank int, cause error)
}

type faultyMessenger struct {
	fabric.Messenger
	endpointFault
}

type faultyEndpoint struct {
	fabric.Endpoint
	endpointFault
	n     int // calls of the faulty method
	held  []fabric.Event
	note2 []byte
}

func (n *faultyMessenger) NewEndpoint(i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	if n.newEndpoint != nil {
		return n.newEndpoint(n, i, cfg)
	}
	p, err := n.Messenger.NewEndpoint(i, cfg)
	if err != nil {
		return nil, err
	}
	return &faultyEndpoint{Endpoint: p, endpointFault: n.endpointFault}, nil
}

func (n *faultyMessenger) PeerDown(rank int, cause error) {
	if n.down != nil {
		n.down(n, rank, cause)
		return
	}
	n.Messenger.PeerDown(rank, cause)
}

func (p *faultyEndpoint) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	n, err := p.Endpoint.Poll(events, budget)
	if p.event == nil {
		return n, err
	}
	k := 0
	for i := range n {
		e := events[i]
		if p.event(p, &e) {
			events[k] = e
			k++
		}
	}
	return k, err
}

func (p *faultyEndpoint) Send(peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
	if p.send != nil {
		return p.send(p, peer, b, n, w, cookie, f)
	}
	return p.Endpoint.Send(peer, b, n, w, cookie, f)
}

func (p *faultyEndpoint) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if p.reserve != nil {
		return p.reserve(p, f)
	}
	return p.Endpoint.Reserve(f)
}

func (p *faultyEndpoint) Note(peer int, data []byte) error {
	if p.note != nil {
		return p.note(p, peer, data)
	}
	return p.Endpoint.Note(peer, data)
}

func (p *faultyEndpoint) Wait(ctx context.Context) error {
	if p.wait != nil {
		return p.wait(p, ctx)
	}
	return p.Endpoint.Wait(ctx)
}

func (p *faultyEndpoint) Wake() {
	if p.wake != nil {
		p.wake(p)
		return
	}
	p.Endpoint.Wake()
}

func (p *faultyEndpoint) After(t time.Duration) {
	if p.after != nil {
		p.after(p, t)
		return
	}
	p.Endpoint.After(t)
}

func (p *faultyEndpoint) Now() time.Duration {
	if p.now != nil {
		return p.now(p)
	}
	return p.Endpoint.Now()
}

func (p *faultyEndpoint) Stats() fabric.EndpointStats {
	s := p.Endpoint.Stats()
	if p.stats != nil {
		p.stats(&s)
	}
	return s
}

func (p *faultyEndpoint) Kick() error {
	if p.kick != nil {
		return p.kick(p)
	}
	return p.Endpoint.Kick()
}

func (p *faultyEndpoint) Disconnect(peer int) error {
	if p.part != nil {
		return p.part(p, peer)
	}
	return p.Endpoint.Disconnect(peer)
}

func (p *faultyEndpoint) Close() error {
	if p.end != nil {
		return p.end(p)
	}
	return p.Endpoint.Close()
}

// nth is true at every n-th event of a kind.
func nth(n int, kind fabric.EventKind, f func(p *faultyEndpoint, e *fabric.Event) bool) func(p *faultyEndpoint, e *fabric.Event) bool {
	return func(p *faultyEndpoint, e *fabric.Event) bool {
		if e.Kind != kind {
			return true
		}
		if p.n++; p.n%n != 0 {
			return true
		}
		return f(p, e)
	}
}

func drop(*faultyEndpoint, *fabric.Event) bool { return false }
