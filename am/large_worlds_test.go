package am_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
	"github.com/ibconduit/conduit/internal/parttest"
)

var largePayloads = flag.Int("payloads", 0, "large payloads of the random worlds; 0: 20000, or the part of it that parttest.Of says")

const (
	blockSize = 2048 // the most that is sent
	blocks    = 4    // a rank grants at once
)

// pattern is the payload number id, of n bytes.
func pattern(id uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(id, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// largeWorld is a simulated job whose ranks send each other large payloads, and grant, refuse and
// put off as they please.
type largeWorld struct {
	*testing.T
	seed    uint64
	rng     *rand.Rand
	w       *sim.World
	ranks   []*largeRank
	table   *am.Table
	x       *am.Large
	each    int // payloads of a goroutine
	left    int // goroutines of live ranks that send
	resting int // live ranks that have quiesced
	live    int
	dies    map[int]bool

	sent, refused, given, dead int // as senders learn
}

// largeRank is one rank's receiver.
type largeRank struct {
	l        *am.Endpoint
	free     []uint64 // offsets of blocks
	owner    map[uint64]*am.Announcement
	deferred []*am.Announcement
	arrived  map[uint64]int // payloads by number
	refused  map[uint64]int
	sent     map[uint64]int // the receivers of what was sent without an error
	over     map[*am.Announcement]bool
}

func newLargeWorld(t *testing.T, seed uint64) *largeWorld {
	x := &largeWorld{T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 99)), table: am.NewTable(), each: 12, dies: make(map[int]bool)}
	x.x = x.table.HandleLarge("block", am.Receiver{Announced: x.announced, Ended: x.ended, Quick: x.quick()})
	n := 2 + x.rng.IntN(5)
	cfg := sim.Config{Ranks: n, Seed: seed, SegmentSize: blocks * blockSize, MaxTime: time.Minute,
		Connections: x.rng.IntN(3), Jitter: time.Duration(x.rng.IntN(3)) * 20 * time.Microsecond, Queue: []int{1, 4, 64}[x.rng.IntN(3)],
		Notes: sim.Notes{Loss: float64(x.rng.IntN(3)) / 10}, HandshakeTries: 40}
	var err error
	if x.w, err = sim.New(cfg); err != nil {
		t.Fatal(err)
	}
	x.w.ConnectAll()
	for range n {
		r := &largeRank{owner: make(map[uint64]*am.Announcement), arrived: make(map[uint64]int), refused: make(map[uint64]int),
			sent: make(map[uint64]int), over: make(map[*am.Announcement]bool)}
		for b := range blocks {
			r.free = append(r.free, uint64(b*blockSize))
		}
		x.ranks = append(x.ranks, r)
	}
	for range x.rng.IntN(n) { // at least one lives
		if r := x.rng.IntN(n); x.rng.IntN(2) == 0 && len(x.dies) < n-1 && !x.dies[r] {
			x.dies[r] = true
			x.w.At(time.Duration(x.rng.IntN(3000))*time.Microsecond, func() { x.w.Kill(r) })
		}
	}
	for range x.rng.IntN(3) {
		x.w.Slow(x.rng.IntN(n), time.Duration(x.rng.IntN(50))*time.Microsecond)
	}
	x.live = n - len(x.dies)
	return x
}

// quick reports whether the receivers of the world never wait.
func (x *largeWorld) quick() bool { return x.seed%3 == 0 }

// announced decides at random.
func (x *largeWorld) announced(a *am.Announcement) {
	r := x.ranks[a.Endpoint().Rank()]
	if x.rng.IntN(4) == 0 && !x.quick() {
		x.w.Sleep(context.Background(), time.Duration(x.rng.IntN(100))*time.Microsecond) // it may
	}
	switch x.rng.IntN(8) {
	case 0:
		x.refuse(r, a)
	case 1:
		if x.rng.IntN(4) == 0 {
			panic("a receiver of the test")
		}
		r.deferred = append(r.deferred, a)
	case 2, 3, 4:
		r.deferred = append(r.deferred, a)
	default:
		if !x.grant(r, a) {
			r.deferred = append(r.deferred, a)
		}
	}
}

func (x *largeWorld) refuse(r *largeRank, a *am.Announcement) {
	if err := a.Refuse(errors.New("as it pleases")); err == nil {
		r.refused[a.Arg(0)]++
	}
}

// grant gives a free block, and reports whether a is settled.
func (x *largeWorld) grant(r *largeRank, a *am.Announcement) bool {
	if len(r.free) == 0 {
		return false
	}
	off := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.owner[off] = a
	if err := a.Grant(off); err != nil { // it has ended: the block is ours still
		delete(r.owner, off)
		r.free = append(r.free, off)
	}
	return true
}

// ended takes memory back, and looks at what is in it.
func (x *largeWorld) ended(a *am.Announcement, err error) {
	r := x.ranks[a.Endpoint().Rank()]
	if r.over[a] {
		x.Errorf("seed %d: payload %d has ended twice", x.seed, a.Arg(0))
	}
	r.over[a] = true
	off, granted := a.Granted()
	if err == nil {
		id := a.Arg(0)
		r.arrived[id]++
		if want := pattern(id, a.Size()); !granted || string(a.Payload()) != string(want) {
			x.Errorf("seed %d: payload %d of rank %d arrived with other bytes", x.seed, id, a.From())
		}
	}
	if !granted {
		return
	}
	if r.owner[off] != a {
		x.Errorf("seed %d: a block came back that is not payload %d's", x.seed, a.Arg(0))
	}
	clear(x.w.Rank(a.Endpoint().Rank()).Segment()[off : off+blockSize])
	delete(r.owner, off)
	r.free = append(r.free, off)
}

// decide settles what was put off.
func (x *largeWorld) decide(ctx context.Context, s *sim.Rank) error {
	r := x.ranks[s.ID()]
	for x.resting < x.live {
		if n := len(r.deferred); n > 0 {
			i := x.rng.IntN(n)
			a := r.deferred[i]
			r.deferred = append(r.deferred[:i], r.deferred[i+1:]...)
			if x.rng.IntN(6) == 0 {
				x.refuse(r, a)
			} else if !x.grant(r, a) {
				r.deferred = append(r.deferred, a)
			}
		}
		if err := s.Sleep(ctx, time.Duration(1+x.rng.IntN(60))*time.Microsecond); err != nil {
			return err
		}
	}
	return nil
}

// send sends payloads, some of which it gives up soon.
func (x *largeWorld) send(ctx context.Context, s *sim.Rank, worker int) error {
	r := x.ranks[s.ID()]
	if !x.dies[s.ID()] {
		defer func() { x.left-- }()
	}
	for i := range x.each {
		to, n := x.rng.IntN(len(x.ranks)), x.rng.IntN(blockSize+1)
		id := uint64(s.ID())<<40 | uint64(worker)<<20 | uint64(i)
		c, cancel := ctx, context.CancelFunc(func() {})
		if x.rng.IntN(4) == 0 {
			c, cancel = s.WithTimeout(ctx, time.Duration(x.rng.IntN(200))*time.Microsecond)
		}
		err := x.x.Send(c, r.l, to, pattern(id, n), id, 7)
		cancel()
		var refused *am.RefusedError
		switch {
		case err == nil:
			x.sent++
			r.sent[id] = to
		case errors.As(err, &refused):
			x.refused++
		case errors.Is(err, fabric.ErrPeerDown) && x.dies[to]:
			x.dead++
		case errors.Is(err, context.DeadlineExceeded) && c != ctx:
			x.given++
		default:
			return fmt.Errorf("payload %d to rank %d: %w", id, to, err)
		}
	}
	return nil
}

// rank is the life of one rank.
func (x *largeWorld) rank(ctx context.Context, s *sim.Rank) error {
	cfg := am.Config{Rank: s.ID(), Size: s.Size(), Table: x.table, Host: amtest.SimHost(s), Segment: s.Segment(), StallAfter: -1,
		Credits: 8, Replies: 2, Spares: 2, Sends: 4, ReplySends: 2, MaxMedium: 512, PingAfter: 2 * time.Millisecond, SilentAfter: 5 * time.Second,
		SegmentSize: func(int) uint64 { return blocks * blockSize }}
	l, err := am.Open(s.Net(), 0, cfg)
	if err != nil {
		return err
	}
	x.ranks[s.ID()].l = l
	s.Go("decide", func(ctx context.Context) error { return x.decide(ctx, s) })
	workers := 1 + x.rng.IntN(24)
	for k := range workers {
		s.Go("send", func(ctx context.Context) error { return x.send(ctx, s, k) })
	}
	if x.dies[s.ID()] {
		return s.Sleep(ctx, time.Hour)
	}
	x.left += workers
	for x.left > 0 {
		if err := s.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	if err := l.Quiesce(ctx); err != nil {
		return fmt.Errorf("quiesce: %w", err)
	}
	x.resting++
	for x.resting < x.live {
		if err := s.Sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	if err := l.Drain(ctx); err != nil {
		return err
	}
	return x.rest(s.ID())
}

// rest checks a rank that has nothing in flight.
func (x *largeWorld) rest(rank int) error {
	r := x.ranks[rank]
	stats := r.l.Stats()
	g := &stats.Large
	if err := errors.Join(stats.Check(), am.CheckAccounts(r.l)); err != nil {
		return err
	}
	if len(r.free) != blocks || g.InFlight+g.Held > 0 {
		return fmt.Errorf("%d of %d blocks are back: %+v", len(r.free), blocks, *g)
	}
	for id, times := range r.arrived {
		if times != 1 {
			return fmt.Errorf("payload %d arrived %d times", id, times)
		}
	}
	return r.l.Close()
}

// check compares what live ranks sent and received.
func (x *largeWorld) check() {
	for i, r := range x.ranks {
		for id, to := range r.sent {
			if !x.dies[i] && !x.dies[to] && x.ranks[to].arrived[id] != 1 {
				x.Errorf("seed %d: payload %d was sent to rank %d and arrived %d times", x.seed, id, to, x.ranks[to].arrived[id])
			}
		}
		for id := range r.arrived {
			from := int(id >> 40)
			if _, ok := x.ranks[from].sent[id]; !ok && !x.dies[from] {
				x.Errorf("seed %d: payload %d arrived, and its sender has an error", x.seed, id)
			}
		}
	}
}

// In random worlds with deaths, delays, lost notes and senders that give up, every payload that was
// sent arrives once and is right, and every block that was granted comes back once.
func TestLargePayloadsInRandomWorlds(t *testing.T) {
	goal := cmp.Or(*largePayloads, parttest.Of(20000))
	var sent, refused, given, dead, worlds int
	for seed := uint64(1); sent+refused+given+dead < goal; seed++ {
		x := newLargeWorld(t, seed)
		if err := x.w.Run(x.rank); err != nil {
			t.Fatalf("seed %d, %d ranks, %d die: %v", seed, len(x.ranks), len(x.dies), err)
		}
		x.check()
		if t.Failed() {
			return
		}
		sent, refused, given, dead, worlds = sent+x.sent, refused+x.refused, given+x.given, dead+x.dead, worlds+1
	}
	t.Logf("%d worlds: %d payloads arrived, %d refused, %d given up, %d to dead ranks", worlds, sent, refused, given, dead)
	if sent == 0 || refused == 0 || given == 0 || dead == 0 {
		t.Error("a case is missing")
	}
}
