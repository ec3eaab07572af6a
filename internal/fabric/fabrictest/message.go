package fabrictest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// MessageRank is one rank of a group whose network carries messages.
type MessageRank struct {
	Net     fabric.Messenger
	Segment []byte // as in Rank
}

// MessageOptions are how the contract of fabric.Messenger is checked.
type MessageOptions struct {
	// New is as in Options. Endpoints that are open when a check ends are closed before the networks.
	New func(t T, n int, size int) []MessageRank

	Ranks   int           // default 3, at least 3
	Rounds  int           // repetitions; default 300
	Timeout time.Duration // bounds each check; default one minute
	Host    Host          // default goroutines, in real time
}

// RunMessages checks the contract of endpoints.
func RunMessages(t *testing.T, o MessageOptions) {
	for _, c := range messageCases {
		t.Run(c.name, func(t *testing.T) { c.run(t, o) })
	}
}

type messageCheck struct {
	name string
	f    func(*messageGroup)
}

var messageCases = []messageCheck{
	{"MessagesArriveInOrderExactlyOnce", (*messageGroup).order},
	{"WritesArriveBeforeTheirMessages", (*messageGroup).writes},
	{"DisconnectingLosesNothing", (*messageGroup).disconnecting},

	{"ReservedBuffersAreForTheUrgent", (*messageGroup).reserve},
	{"WrongSendsAreRefusedAndChangeNothing", (*messageGroup).refusals},
	{"FullQueuesAnswerErrAgain", (*messageGroup).fullQueue},
	{"MissingSlotsAreCounted", (*messageGroup).missingSlots},
	{"KickPostsWhatMoreHeldBack", (*messageGroup).kick},
	{"SilentMessagesGiveTheirBuffersBack", (*messageGroup).silent},

	{"ConnectionsAreMadeByTheFirstMessage", (*messageGroup).firstMessage},
	{"CrossingFirstMessagesMakeOneConnection", (*messageGroup).crossing},
	{"IdleConnectionsOpenAgainWithTheNextEpoch", (*messageGroup).idle},
	{"MessagesWaitForThePeersEndpoint", (*messageGroup).lateEndpoint},

	{"NotesVanishButNeverLie", (*messageGroup).notes},

	{"SolicitedMessagesEndWait", (*messageGroup).pingPong},
	{"WakeIsNeverLost", (*messageGroup).wake},
	{"AfterEndsWait", (*messageGroup).after},
	{"WaitEndsWhenAFullEndpointHasRoom", (*messageGroup).full},
	{"EndpointWaitEndsWithItsContext", (*messageGroup).waitContext},

	{"DownIsTheLastEventOfAPeer", (*messageGroup).down},
	{"DownComesOfRanksThatWereNeverConnected", (*messageGroup).downUnmet},
	{"ClosedEndpointsRefuse", (*messageGroup).closedEndpoint},
}

// The sizes of the endpoints of most checks.
const (
	slotSize  = 512
	slotCount = 24
	sendCount = 16
)

// run makes a group and checks one clause on it.
func (c messageCheck) run(t T, o MessageOptions) {
	o.Ranks = max(3, orDefault(o.Ranks, 3))
	o.Rounds = orDefault(o.Rounds, 300)
	const segmentSize = 64 << 10
	g := &messageGroup{o: o, ranks: o.New(t, o.Ranks, segmentSize)}
	g.run(t, o.Host, o.Timeout, func() { c.f(g) })
}

// messageGroup is a group under one check.
type messageGroup struct {
	base
	o       MessageOptions
	ranks   []MessageRank
	drivers []*driver
	drained []atomic.Uint64 // messages of rank i that rank j has consumed, at i*ranks+j
}

// open opens endpoint 0 of all ranks.
func (g *messageGroup) open() []*driver {
	g.Helper()
	for r := range g.ranks {
		g.openOne(r, fabric.EndpointConfig{Slots: slotCount, SlotSize: slotSize, Sends: sendCount, Reserved: 2})
	}
	return g.drivers
}

func (g *messageGroup) openOne(rank int, cfg fabric.EndpointConfig) *driver {
	g.Helper()
	p, err := g.ranks[rank].Net.NewEndpoint(0, cfg)
	if err != nil {
		g.Fatalf("endpoint of rank %d: %v", rank, err)
	}
	g.Cleanup(func() { _ = p.Close() })
	n := len(g.ranks)
	if g.drained == nil {
		g.drained = make([]atomic.Uint64, n*n)
	}
	c := &driver{g: g, rank: rank, p: p, cfg: cfg, events: make([]fabric.Event, 8), peers: make([]peerState, n),
		cookies: make(map[uint64]int), held: make(map[int32][]byte), rng: rand.New(rand.NewPCG(5, uint64(rank)))}
	g.drivers = append(g.drivers, c)
	return c
}

// driver uses the endpoint of one rank. It checks of every event what the contract demands of all.
type driver struct {
	g      *messageGroup
	rank   int
	p      fabric.Endpoint
	cfg    fabric.EndpointConfig
	events []fabric.Event
	peers  []peerState
	rng    *rand.Rand

	scratch [slotSize]byte   // of messages that are copied
	cookie  uint64           // the last one used
	cookies map[uint64]int   // peers of messages that are not Sent yet
	errors  int              // Sent events with an error
	held    map[int32][]byte // slots in hand, and what they must hold
	slots   []int32          // of them, in order of arrival
	from    map[int32]int    // whose they are
	keep    int              // how many slots to keep in hand before posting
	notes   int
	onNote  func(e fabric.Event) error
	onMail  func(e fabric.Event, seq uint64) error
}

// peerState is the events and messages of one peer so far.
type peerState struct {
	sent, arrived uint64
	epoch         uint32 // of the last connection
	open, down    bool
	ups, idles    int
}

// fillMessage writes a message: sender, receiver, number, and a body that follows from these.
func fillMessage(b []byte, from, to int, seq uint64) {
	binary.LittleEndian.PutUint64(b, seq)
	b[8], b[9] = byte(from), byte(to)
	for i := headLen; i < len(b); i++ {
		b[i] = byte(seq)*31 + byte(from)*7 + byte(i)
	}
}

const headLen = 10

// drained is how many of its messages a peer has consumed.
func (c *driver) drained(peer int) uint64 { return c.g.drained[c.rank*len(c.g.ranks)+peer].Load() }

// send sends the next message to a peer if a slot must be free there. It reports
// whether it did.
func (c *driver) send(peer, n int, w *fabric.Write, cookie bool, f fabric.SendFlag) (bool, error) {
	l := &c.peers[peer]
	if l.sent-c.drained(peer) >= uint64(c.cfg.Slots/len(c.g.ranks)) {
		return false, nil
	}
	// Messages in send buffers and copied ones go the same way; the copied ones' memory is reused.
	b := fabric.SendBuf{Data: c.scratch[:], ID: fabric.Copied}
	if w != nil || cookie || c.rng.IntN(2) == 0 {
		var err error
		if b, err = c.p.Reserve(f); errors.Is(err, fabric.ErrAgain) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	fillMessage(b.Data[:n], c.rank, peer, l.sent+1)
	id := uint64(0)
	if cookie {
		c.cookie++
		id = c.cookie<<8 | uint64(c.rank) + 1
	}
	err := c.p.Send(peer, b, n, w, id, f)
	clear(c.scratch[:])
	if err != nil {
		if b.ID != fabric.Copied {
			c.p.Release(b)
		}
		if errors.Is(err, fabric.ErrAgain) {
			err = nil
		}
		return false, err
	}
	l.sent++
	if cookie {
		c.cookies[id] = peer
	}
	return true, nil
}

// poll makes progress and checks what happened.
func (c *driver) poll(budget time.Duration) (int, error) {
	n, err := c.p.Poll(c.events, budget)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > len(c.events) {
		return 0, fmt.Errorf("rank %d: Poll filled %d of %d events", c.rank, n, len(c.events))
	}
	for _, e := range c.events[:n] {
		if err := c.take(e); err != nil {
			return n, fmt.Errorf("rank %d: event of kind %d from rank %d: %w", c.rank, e.Kind, e.Peer, err)
		}
	}
	return n, nil
}

func (c *driver) take(e fabric.Event) error {
	if e.Peer < 0 || e.Peer >= len(c.peers) {
		return errors.New("there is no such rank")
	}
	l := &c.peers[e.Peer]
	if l.down {
		return errors.New("it comes after Down")
	}
	switch e.Kind {
	case fabric.Arrived:
		return c.arrived(e, l)
	case fabric.NoteArrived:
		c.notes++
		if c.onNote != nil {
			return c.onNote(e)
		}
	case fabric.Sent:
		peer, ok := c.cookies[e.Cookie]
		if !ok || peer != e.Peer {
			return fmt.Errorf("cookie %#x is not awaited from this rank", e.Cookie)
		}
		delete(c.cookies, e.Cookie)
		if e.Err != nil {
			c.errors++
		}
	case fabric.Up:
		if l.open || e.Epoch != l.epoch+1 {
			return fmt.Errorf("epoch %d follows %d, which is open: %v", e.Epoch, l.epoch, l.open)
		}
		l.open, l.epoch = true, e.Epoch
		l.ups++
	case fabric.Idle:
		if !l.open || e.Epoch != l.epoch {
			return fmt.Errorf("epoch %d ends, %d was the last, which is open: %v", e.Epoch, l.epoch, l.open)
		}
		l.open = false
		l.idles++
	case fabric.Down:
		for id, peer := range c.cookies {
			if peer == e.Peer {
				return fmt.Errorf("the message with cookie %#x has no end", id)
			}
		}
		if e.Err == nil {
			return errors.New("no cause")
		}
		l.down = true
	default:
		return errors.New("there is no such kind")
	}
	return nil
}

func (c *driver) arrived(e fabric.Event, l *peerState) error {
	if !l.open || e.Epoch != l.epoch {
		return fmt.Errorf("a message of epoch %d while %d was the last one up, and is open: %v", e.Epoch, l.epoch, l.open)
	}
	if e.Slot < 0 || int(e.Slot) >= c.cfg.Slots || c.held[e.Slot] != nil {
		return fmt.Errorf("slot %d is not one of the %d or is in use", e.Slot, c.cfg.Slots)
	}
	if len(e.Data) < headLen || len(e.Data) > c.cfg.SlotSize {
		return fmt.Errorf("%d bytes", len(e.Data))
	}
	seq := binary.LittleEndian.Uint64(e.Data)
	if l.arrived++; seq != l.arrived {
		return fmt.Errorf("message %d came where %d should", seq, l.arrived)
	}
	want := make([]byte, len(e.Data))
	fillMessage(want, e.Peer, c.rank, seq)
	if err := differ(e.Data, want); err != nil {
		return err
	}
	if c.from == nil {
		c.from = make(map[int32]int)
	}
	c.held[e.Slot], c.from[e.Slot] = e.Data, e.Peer
	c.slots = append(c.slots, e.Slot)
	if c.onMail != nil {
		if err := c.onMail(e, seq); err != nil {
			return err
		}
	}
	return c.post(c.keep)
}

// post gives slots back until only so many are in hand. What they hold must be what came.
func (c *driver) post(keep int) error {
	for len(c.slots) > keep {
		id := c.slots[0]
		c.slots = c.slots[1:]
		data, from := c.held[id], c.from[id]
		want := make([]byte, len(data))
		fillMessage(want, from, c.rank, binary.LittleEndian.Uint64(data))
		if err := differ(data, want); err != nil {
			return fmt.Errorf("slot %d changed before it was posted: %w", id, err)
		}
		delete(c.held, id)
		if err := c.p.Post(id); err != nil {
			return err
		}
		c.g.drained[from*len(c.g.ranks)+c.rank].Add(1)
	}
	return nil
}

// work runs a step of every driver again and again, and polls, until all of them
// are done. A driver that is goes on polling.
func (g *messageGroup) work(step func(c *driver) (done bool, err error)) {
	g.Helper()
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(g.drivers)))
	errs := make([]error, len(g.drivers))
	g.host.Concurrently(len(g.drivers), func(i int) {
		defer cancelOn(&errs[i], cancel)
		c, done := g.drivers[i], false
		for left.Load() > 0 {
			d, err := step(c)
			if err == nil && d && !done {
				done = true
				left.Add(-1)
			}
			if err == nil {
				_, err = c.poll(100 * time.Microsecond)
			}
			if err == nil && ctx.Err() != nil {
				err = fmt.Errorf("rank %d was not done: %w", c.rank, context.Cause(ctx))
			}
			if err != nil {
				errs[i] = err
				return
			}
		}
	})
	g.must("work", errors.Join(errs...))
}

func cancelOn(err *error, cancel func()) {
	if *err != nil {
		cancel()
	}
}

// settled reports whether a driver waits for nothing more.
func (c *driver) settled() bool { return len(c.cookies) == 0 }

// expect is work until a condition holds at all drivers, or at those that are named.
func (g *messageGroup) expect(holds func(c *driver) bool) {
	g.Helper()
	g.work(func(c *driver) (bool, error) { return holds(c), nil })
}

// balance checks the counters when nothing is in flight.
func (g *messageGroup) balance() {
	g.Helper()
	var sends, bytes, arrivals, arrived, rnr uint64
	for _, c := range g.drivers {
		s := c.p.Stats()
		sends, bytes, arrivals, arrived, rnr = sends+s.Sends, bytes+s.SendBytes, arrivals+s.Arrivals,
			arrived+s.ArrivalBytes, rnr+s.RNR
		if s.Posted != c.cfg.Slots-len(c.slots) || s.FreeSends != c.cfg.Sends {
			g.Fatalf("rank %d has %d slots posted and %d send buffers free, want %d and %d",
				c.rank, s.Posted, s.FreeSends, c.cfg.Slots-len(c.slots), c.cfg.Sends)
		}
	}
	if sends != arrivals || bytes != arrived || rnr != 0 {
		g.Fatalf("%d messages of %d bytes were sent, %d of %d arrived, %d met no slot", sends, bytes, arrivals, arrived, rnr)
	}
}
