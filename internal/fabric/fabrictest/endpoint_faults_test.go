package fabrictest

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// endpointFaults are all, with the checks that must catch each.
var endpointFaults = []endpointFault{
	{
		name:   "a message is lost",
		caught: []string{"MessagesArriveInOrderExactlyOnce", "DisconnectingLosesNothing"},
		event: nth(20, fabric.Arrived, func(p *faultyEndpoint, e *fabric.Event) bool {
			_ = p.Post(e.Slot)
			return false
		}),
	},
	{
		name:   "a byte of a message is wrong",
		caught: []string{"MessagesArriveInOrderExactlyOnce", "SolicitedMessagesEndWait"},
		event: nth(10, fabric.Arrived, func(_ *faultyEndpoint, e *fabric.Event) bool {
			e.Data[len(e.Data)-1]++
			return true
		}),
	},
	{
		name:   "two messages change places",
		caught: []string{"MessagesArriveInOrderExactlyOnce"},
		event: func(p *faultyEndpoint, e *fabric.Event) bool {
			if e.Kind != fabric.Arrived {
				return true
			}
			if p.n++; p.n == 10 {
				p.held = append(p.held, *e)
				return false
			}
			if len(p.held) > 0 && p.held[0].Peer == e.Peer {
				*e, p.held = p.held[0], nil // the later one is lost besides
			}
			return true
		},
	},
	{
		name:   "slots are filled again before they are posted",
		caught: []string{"MessagesArriveInOrderExactlyOnce"},
		event: nth(1, fabric.Arrived, func(p *faultyEndpoint, e *fabric.Event) bool {
			if p.held = append(p.held, *e); len(p.held) > 1 {
				old := p.held[0]
				p.held = p.held[1:]
				if len(old.Data) > headLen {
					old.Data[headLen] ^= 1
				}
			}
			return true
		}),
	},
	{
		name:   "a cookie is forgotten",
		caught: []string{"MessagesArriveInOrderExactlyOnce", "FullQueuesAnswerErrAgain"},
		event:  nth(1, fabric.Sent, drop),
	},
	{
		name:   "a cookie comes of another message",
		caught: []string{"MessagesArriveInOrderExactlyOnce"},
		event:  nth(5, fabric.Sent, func(_ *faultyEndpoint, e *fabric.Event) bool { e.Cookie++; return true }),
	},
	{
		name:   "send buffers are lost",
		caught: []string{"MessagesArriveInOrderExactlyOnce", "DownIsTheLastEventOfAPeer", "SilentMessagesGiveTheirBuffersBack"},
		stats:  func(s *fabric.EndpointStats) { s.FreeSends-- },
	},
	{
		name:   "writes are lost",
		caught: []string{"WritesArriveBeforeTheirMessages"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, _ *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			return p.Endpoint.Send(peer, b, n, nil, cookie, f)
		},
	},
	{
		name:   "writes are Sent before they are read",
		caught: []string{"WritesArriveBeforeTheirMessages"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			err := p.Endpoint.Send(peer, b, n, w, 0, f)
			if err == nil && cookie != 0 {
				p.held = append(p.held, fabric.Event{Kind: fabric.Sent, Peer: peer, Cookie: cookie})
				p.Endpoint.Wake()
			}
			return err
		},
		newEndpoint: func(n *faultyMessenger, i int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
			p, err := n.Messenger.NewEndpoint(i, cfg)
			return &earlySent{faultyEndpoint{Endpoint: p, endpointFault: n.endpointFault}}, err
		},
	},
	{
		name:   "disconnecting drops what is queued",
		caught: []string{"DisconnectingLosesNothing"},
		part: func(p *faultyEndpoint, peer int) error {
			p.n = peer + 1
			return p.Endpoint.Disconnect(peer)
		},
		event: func(p *faultyEndpoint, e *fabric.Event) bool {
			if e.Kind == fabric.Arrived && p.n == e.Peer+1 {
				_ = p.Post(e.Slot)
				p.n = 0
				return false
			}
			return true
		},
	},
	{
		name:   "disconnecting does nothing",
		caught: []string{"DisconnectingLosesNothing", "IdleConnectionsOpenAgainWithTheNextEpoch"},
		part:   func(*faultyEndpoint, int) error { return nil },
	},
	{
		name:   "everything is urgent",
		caught: []string{"ReservedBuffersAreForTheUrgent"},
		reserve: func(p *faultyEndpoint, _ fabric.SendFlag) (fabric.SendBuf, error) {
			return p.Endpoint.Reserve(fabric.Urgent)
		},
	},
	{
		name:   "nothing is urgent",
		caught: []string{"ReservedBuffersAreForTheUrgent"},
		reserve: func(p *faultyEndpoint, _ fabric.SendFlag) (fabric.SendBuf, error) {
			return p.Endpoint.Reserve(0)
		},
	},
	{
		name:   "a wrong send eats the buffer",
		caught: []string{"WrongSendsAreRefusedAndChangeNothing"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			err := p.Endpoint.Send(peer, b, n, w, cookie, f)
			if err != nil && !errors.Is(err, fabric.ErrAgain) {
				if p.n++; p.n == 1 {
					p.Release(b)
				}
			}
			return err
		},
	},
	{
		name:   "long messages are cut",
		caught: []string{"WrongSendsAreRefusedAndChangeNothing"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			return p.Endpoint.Send(peer, b, min(n, len(b.Data)), w, cookie, f)
		},
	},
	{
		name:   "bytes to be copied are read after Send",
		caught: []string{"MessagesArriveInOrderExactlyOnce"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			if b.ID == fabric.Copied {
				b.Data = make([]byte, n) // what the caller makes of them
			}
			return p.Endpoint.Send(peer, b, n, w, cookie, f)
		},
	},
	{
		name:   "a full queue takes messages and loses them",
		caught: []string{"FullQueuesAnswerErrAgain"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			err := p.Endpoint.Send(peer, b, n, w, cookie, f)
			if errors.Is(err, fabric.ErrAgain) {
				p.Release(b)
				return nil
			}
			return err
		},
	},
	{
		name:   "missing slots are not counted",
		caught: []string{"MissingSlotsAreCounted"},
		stats:  func(s *fabric.EndpointStats) { s.RNR = 0 },
	},
	{
		name:   "slots are missing though they are posted",
		caught: []string{"MessagesArriveInOrderExactlyOnce"},
		stats:  func(s *fabric.EndpointStats) { s.RNR++ },
	},
	{
		name:   "a kick does nothing",
		caught: []string{"KickPostsWhatMoreHeldBack"},
		kick:   func(*faultyEndpoint) error { return nil },
	},
	{
		name:   "all are connected from the start",
		caught: []string{"ConnectionsAreMadeByTheFirstMessage"},
		stats:  func(s *fabric.EndpointStats) { s.Handshakes++ },
	},
	{
		name:   "both ends think that they began",
		caught: []string{"ConnectionsAreMadeByTheFirstMessage"},
		stats:  func(s *fabric.EndpointStats) { s.Connects, s.Accepts = s.Connects+s.Accepts, 0 },
	},
	{
		name:   "crossing requests make two connections",
		caught: []string{"CrossingFirstMessagesMakeOneConnection"},
		event:  nth(1, fabric.Up, func(_ *faultyEndpoint, e *fabric.Event) bool { e.Epoch *= 2; return true }),
	},
	{
		name:   "a connection opens in silence",
		caught: []string{"CrossingFirstMessagesMakeOneConnection", "MessagesArriveInOrderExactlyOnce"},
		event:  nth(2, fabric.Up, drop),
	},
	{
		name:   "epochs are not counted",
		caught: []string{"IdleConnectionsOpenAgainWithTheNextEpoch"},
		event: func(_ *faultyEndpoint, e *fabric.Event) bool {
			if e.Epoch != 0 {
				e.Epoch = 1
			}
			return true
		},
	},
	{
		name:   "Idle comes at one end only",
		caught: []string{"IdleConnectionsOpenAgainWithTheNextEpoch"},
		event:  nth(2, fabric.Idle, drop),
	},
	{
		name:   "messages to an endpoint that is not open are lost",
		caught: []string{"MessagesWaitForThePeersEndpoint"},
		event:  nth(1, fabric.Arrived, func(p *faultyEndpoint, e *fabric.Event) bool { return p.n > 3 || p.Post(e.Slot) != nil }),
	},
	{
		name:   "messages to an endpoint that is not open fail",
		caught: []string{"MessagesWaitForThePeersEndpoint"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			if p.Connected() == 0 {
				return &fabric.PeerDownError{Rank: peer, Op: "send"}
			}
			return p.Endpoint.Send(peer, b, n, w, cookie, f)
		},
	},
	{
		name:   "notes are corrupt",
		caught: []string{"NotesVanishButNeverLie"},
		event: nth(2, fabric.NoteArrived, func(_ *faultyEndpoint, e *fabric.Event) bool {
			e.Data[len(e.Data)/2] ^= 4
			return true
		}),
	},
	{
		name:   "notes are sent from the caller's memory",
		caught: []string{"NotesVanishButNeverLie"},
		note: func(p *faultyEndpoint, peer int, data []byte) error {
			was := p.note2
			if p.note2 = data; was != nil && len(was) < len(data) {
				return p.Endpoint.Note(peer, was)
			}
			return p.Endpoint.Note(peer, data)
		},
	},
	{
		name:   "notes never arrive",
		caught: []string{"NotesVanishButNeverLie"},
		event:  nth(1, fabric.NoteArrived, drop),
	},
	{
		name:   "solicited messages do not wake",
		caught: []string{"SolicitedMessagesEndWait"},
		send: func(p *faultyEndpoint, peer int, b fabric.SendBuf, n int, w *fabric.Write, cookie uint64, f fabric.SendFlag) error {
			return p.Endpoint.Send(peer, b, n, w, cookie, f&^fabric.Solicited)
		},
	},
	{
		name:   "every fifth wake is lost",
		caught: []string{"WakeIsNeverLost"},
		wake: func(p *faultyEndpoint) {
			if p.n++; p.n%5 != 0 {
				p.Endpoint.Wake()
			}
		},
	},
	{
		name:   "After is ignored",
		caught: []string{"AfterEndsWait"},
		after:  func(*faultyEndpoint, time.Duration) {},
	},
	{
		name:   "the clock stands still",
		caught: []string{"AfterEndsWait"},
		now:    func(*faultyEndpoint) time.Duration { return time.Hour },
	},
	{
		name:   "only the first After counts",
		caught: []string{"AfterEndsWait"},
		after: func(p *faultyEndpoint, t time.Duration) {
			if p.n++; p.n%2 == 0 {
				p.Endpoint.After(t)
			}
		},
	},
	{
		name:   "Wait after ErrAgain sleeps on",
		caught: []string{"WaitEndsWhenAFullEndpointHasRoom"},
		reserve: func(p *faultyEndpoint, f fabric.SendFlag) (fabric.SendBuf, error) {
			b, err := p.Endpoint.Reserve(f)
			if errors.Is(err, fabric.ErrAgain) {
				p.n = 1
			}
			return b, err
		},
		wait: func(p *faultyEndpoint, ctx context.Context) error {
			err := p.Endpoint.Wait(ctx)
			for p.n == 1 && err == nil {
				err = p.Endpoint.Wait(ctx)
			}
			return err
		},
	},
	{
		name:   "Wait ignores its context",
		caught: []string{"EndpointWaitEndsWithItsContext"},
		wait:   func(p *faultyEndpoint, ctx context.Context) error { return p.Endpoint.Wait(context.WithoutCancel(ctx)) },
	},
	{
		name:   "the cause of a context is lost",
		caught: []string{"EndpointWaitEndsWithItsContext"},
		wait: func(p *faultyEndpoint, ctx context.Context) error {
			err := p.Endpoint.Wait(ctx)
			if err != nil && ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		},
	},
	{
		name:   "deaths are ignored",
		caught: []string{"DownIsTheLastEventOfAPeer"},
		down:   func(*faultyMessenger, int, error) {},
	},
	{
		name:   "only deaths of connected ranks are events",
		caught: []string{"DownComesOfRanksThatWereNeverConnected"},
		event: func(p *faultyEndpoint, e *fabric.Event) bool {
			if e.Kind == fabric.Up {
				p.n |= 1 << e.Peer
			}
			return e.Kind != fabric.Down || p.n&(1<<e.Peer) != 0
		},
	},
	{
		name:   "Down comes before the ends of messages",
		caught: []string{"DownIsTheLastEventOfAPeer"},
		event: func(p *faultyEndpoint, e *fabric.Event) bool {
			if e.Kind == fabric.Sent && e.Err != nil {
				e.Kind, e.Cookie = fabric.Down, 0
			}
			return true
		},
	},
	{
		name:   "a death ends all messages",
		caught: []string{"DownIsTheLastEventOfAPeer"},
		down: func(n *faultyMessenger, _ int, cause error) {
			n.Messenger.PeerDown(1, cause)
			n.Messenger.PeerDown(2, cause)
		},
	},
	{
		name:   "closing an endpoint does not close it",
		caught: []string{"ClosedEndpointsRefuse"},
		end:    func(*faultyEndpoint) error { return nil },
	},
	{
		name:   "waiting at a closed endpoint is fine",
		caught: []string{"ClosedEndpointsRefuse"},
		wait: func(p *faultyEndpoint, ctx context.Context) error {
			err := p.Endpoint.Wait(ctx)
			if errors.Is(err, os.ErrClosed) {
				return nil
			}
			return err
		},
	},
}

// earlySent reports Sent events of its own making.
type earlySent struct{ faultyEndpoint }

func (p *earlySent) Poll(events []fabric.Event, budget time.Duration) (int, error) {
	n := copy(events, p.held)
	p.held = p.held[n:]
	if n > 0 {
		return n, nil
	}
	return p.Endpoint.Poll(events, budget)
}
