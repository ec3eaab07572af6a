//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// onDemand connects nothing at start.
func onDemand(cfg Config) Config {
	cfg.Eager = -1
	return cfg
}

// mangling changes what one rank sends in connection making.
func (r *rig) mangling(rank int, f func(datagram) []datagram) { r.nets[rank].cfg.mangle = f }

// until waits until f holds.
func (r *rig) until(what string, f func() bool) {
	r.Helper()
	for !f() {
		if r.ctx.Err() != nil {
			r.Fatalf("%s: not in time", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// putWord puts a word and waits for it.
func (r *rig) putWord(l *lane, peer int, off, v uint64) error {
	h, err := l.Put(peer, off, word(v), fabric.Blocking)
	if err == nil {
		_, err = l.Wait(r.ctx, h)
	}
	return err
}

// connected is to which ranks a lane is connected.
func connected(l *lane) (ranks []int) {
	for rank, q := range l.set.queues {
		if q != nil {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

func TestLanesConnectWithTheFirstOperation(t *testing.T) {
	r := newRig(t, 7, Config{Eager: 2, Lanes: 1})
	l := r.lane(3)
	if got := fmt.Sprint(connected(l)); got != "[2 3 4]" {
		t.Errorf("at start it is connected to %s", got)
	}
	for _, peer := range []int{0, 6, 0, 2} {
		r.must("put", r.putWord(l, peer, 8, uint64(peer+1)))
		if got := r.word(peer, 8); got != uint64(peer+1) {
			t.Errorf("rank %d has %d", peer, got)
		}
	}
	if got := fmt.Sprint(connected(l)); got != "[0 2 3 4 6]" {
		t.Errorf("it is connected to %s", got)
	}
	for rank, n := range r.nets {
		want := uint64(0)
		if rank == 0 || rank == 6 {
			want = 1
		}
		if s := n.ConnectionStats(); s.Accepted != want || s.Open != want || s.Dropped != 0 {
			t.Errorf("rank %d: %+v", rank, s)
		}
	}
	if len(r.nets[0].all[0].dialer.dialed) != 0 {
		t.Error("the peer's lane is connected too")
	}
}

// A job whose ranks are all near has nothing that waits for requests.
func TestSmallJobsHaveNoConnector(t *testing.T) {
	r := newRig(t, 3, Config{Eager: 2})
	for _, n := range r.nets {
		if n.connector.ended != nil || n.connector.listener.qp != nil || n.peers[1].listener != 0 {
			t.Error("there is one")
		}
	}
}

// The ranks that a lane has used last stay connected.
func TestTheConnectionNotUsedForLongestIsClosed(t *testing.T) {
	r := newRig(t, 5, onDemand(Config{Connections: 2, Lanes: 1}))
	l := r.lane(0)
	epochs := map[int]uint32{}
	for _, c := range []struct {
		peer int
		want string
	}{{1, "[0 1]"}, {2, "[0 1 2]"}, {1, "[0 1 2]"}, {3, "[0 1 3]"}, {1, "[0 1 3]"}, {4, "[0 1 4]"}, {4, "[0 1 4]"}, {3, "[0 3 4]"}, {1, "[0 1 3]"}} {
		r.must("put", r.putWord(l, c.peer, 8, 1))
		if got := fmt.Sprint(connected(l)); got != c.want {
			t.Errorf("after a put to rank %d: connected to %s, want %s", c.peer, got, c.want)
		}
		e := l.set.queues[c.peer].epoch
		if e < epochs[c.peer] {
			t.Errorf("epoch %d follows %d", e, epochs[c.peer])
		}
		epochs[c.peer] = e
	}
	r.until("targets are closed", func() bool {
		return r.nets[2].ConnectionStats().Open == 0 && r.nets[4].ConnectionStats().Open == 0
	})
	if s := r.nets[1].ConnectionStats(); s.Open != 1 || s.Accepted != 2 || s.Closed != 1 {
		t.Errorf("rank 1: %+v", s)
	}
}

// What is in flight ends before its connection is closed, also where no request asks for a
// completion.
func TestNothingIsLostWithAConnection(t *testing.T) {
	const ranks = 5
	r := newRig(t, ranks, onDemand(Config{Connections: 1, Lanes: 1, Depth: 16}))
	l := r.lane(0)
	big := make([]byte, 20*bigBlock)
	var hs []fabric.Handle
	var told fabric.Completions
	for round := range uint64(40) {
		peer := 1 + int(round)%(ranks-1)
		_, err := l.Put(peer, 8, word(round), fabric.Implicit)
		r.must("implicit put", err)
		if round%4 == 0 { // pieces to all peers, of which the lane is connected to one
			var b fabric.Batch
			for p := 1; p < ranks; p++ {
				b.Put(p, 32, word(round))
				b.Put(p, 8192, big)
			}
			b.Tag(fabric.Tag(round + 1))
			r.must("batch", l.Post(&b, &told, 0))
		}
		h, err := l.Put(peer, 4096, big, 0)
		r.must("put", err)
		_, add, err := l.Atomic(peer, 16, fabric.Atomic{Operand: 1}, 0)
		r.must("fetch-add", err)
		_, swap, err := l.Atomic(peer, 24, fabric.Atomic{Op: fabric.Swap, Operand: round}, 0)
		r.must("swap", err)
		hs = append(hs, h, add, swap)
		verify(t, l.set)
		if len(l.set.dialer.dialed) != 1 {
			t.Fatalf("%d connections", len(l.set.dialer.dialed))
		}
	}
	r.collect(l, hs)
	r.must("flush", l.Flush(r.ctx))
	for tags := make([]fabric.Completion, 10); told.InFlight()+told.Len() > 0; {
		if told.Len() == 0 {
			r.must("await", l.Await(r.ctx, &told))
		}
		for _, c := range tags[:told.Take(tags)] {
			r.must("group", c.Err)
		}
	}
	for peer := 1; peer < ranks; peer++ {
		if got, last := r.word(peer, 16), uint64(35+peer); got != 10 || r.word(peer, 8) != last || r.word(peer, 32) != 36 || r.word(peer, 24) != last {
			t.Errorf("rank %d: %d additions of 10, words %d and %d", peer, got, r.word(peer, 8), r.word(peer, 24))
		}
	}
	r.idle(l)
}

// No request of the connection to be closed asks for a completion.
func TestAConnectionWithSilentPutsIsClosed(t *testing.T) {
	r := newRig(t, 3, onDemand(Config{Connections: 1, Lanes: 1}))
	l := r.lane(0)
	ctx, cancel := context.WithTimeout(r.ctx, testTimeout/3)
	defer cancel()
	l.SetContext(ctx)
	for round := range uint64(6) {
		_, err := l.Put(1+int(round%2), 8, word(round), fabric.Implicit)
		r.must("put", err)
	}
	r.must("flush", l.Flush(r.ctx))
	if r.word(1, 8) != 4 || r.word(2, 8) != 5 {
		t.Errorf("words are %d and %d", r.word(1, 8), r.word(2, 8))
	}
}

// Every lane of every rank uses all ranks at once, with few connections, while datagrams are lost,
// doubled, and late.
func TestACrowdWithFewConnectionsLosesNothing(t *testing.T) {
	const ranks, lanes, limit, rounds = 5, 2, 2, 40
	r := newRig(t, ranks, onDemand(Config{Connections: limit, Lanes: lanes}))
	for rank := range r.nets {
		r.mangling(rank, newStorm().delaying) // each has its own store of old ones
	}
	var added [ranks]atomic.Uint64
	var wg sync.WaitGroup
	start := make(chan struct{})
	var opened []*lane
	for i := range ranks * lanes {
		l := r.lane(i / lanes)
		opened = append(opened, l)
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(8, uint64(i)))
			var last [ranks]uint64
			<-start // all ask first at once
			for round := range rounds {
				peer, off := rng.IntN(ranks), 64+uint64(8*i)
				var err error
				switch rng.IntN(3) {
				case 0:
					last[peer]++
					err = r.putWord(l, peer, off, last[peer])
				case 1:
					got := make([]byte, 8)
					if err = r.whole(l.Get(peer, off, got, 0))(l); err == nil && string(got) != string(word(last[peer])) {
						err = fmt.Errorf("got %x, want %d", got, last[peer])
					}
				default:
					var h fabric.Handle
					if _, h, err = l.Atomic(peer, 0, fabric.Atomic{Operand: 1}, 0); err == nil {
						_, err = l.Wait(r.ctx, h)
					}
					added[peer].Add(1)
				}
				if err == nil && len(l.set.dialer.dialed) > limit {
					err = fmt.Errorf("%d connections", len(l.set.dialer.dialed))
				}
				if err != nil {
					t.Errorf("lane %d of rank %d, round %d, rank %d: %v", i%lanes, i/lanes, round, peer, err)
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for rank, n := range r.nets {
		if got := r.word(rank, 0); got != added[rank].Load() {
			t.Errorf("%d additions at rank %d gave %d", added[rank].Load(), rank, got)
		}
		if s := n.ConnectionStats(); s.Open > (ranks-1)*lanes || s.Accepted < 2*ranks {
			t.Errorf("rank %d: %+v", rank, s)
		}
	}
	for _, l := range opened {
		r.idle(l)
	}
}

func TestADeathEndsTheMakingOfAConnection(t *testing.T) {
	r := newRig(t, 3, onDemand(Config{Lanes: 1}))
	asked := make(chan struct{})
	var once sync.Once
	r.mangling(1, func(datagram) []datagram { once.Do(func() { close(asked) }); return nil })
	l := r.lane(0)
	go func() {
		<-asked
		r.nets[0].PeerDown(1, errKilled)
	}()
	_, err := l.Put(1, 0, word(1), fabric.Blocking)
	r.down("put", err, 1, errKilled)
	_, err = l.Get(1, 0, make([]byte, 8), 0)
	r.down("get", err, 1, errKilled)
	r.must("put to another", r.putWord(l, 2, 0, 1))
	r.nets[0].PeerDown(2, errKilled)
	_, err = l.Put(2, 0, word(1), 0)
	r.down("put to a rank that was connected", err, 2, errKilled)
	r.idle(l)
	r.nets[1].PeerDown(0, errKilled)
	r.until("the end of the dead rank's connection", func() bool { return r.nets[1].ConnectionStats().Open == 0 })
}

func TestAPeerThatNeverAnswersIsNamed(t *testing.T) {
	var d deaths
	r := newRig(t, 3, onDemand(Config{Lanes: 1, ConnectTimeout: 200 * time.Millisecond, OnDown: d.onDown}))
	r.mangling(1, func(datagram) []datagram { return nil })
	l := r.lane(0)
	_, err := l.Put(1, 0, word(1), fabric.Implicit)
	var pd *fabric.PeerDownError
	if !errors.As(err, &pd) || pd.Rank != 1 || !strings.Contains(err.Error(), "rank 1 left requests") || !strings.Contains(err.Error(), "Config.ConnectTimeout") {
		t.Errorf("put: %v", err)
	}
	if len(d.of(1)) != 1 || len(d.of(2)) != 0 {
		t.Errorf("OnDown was called %d times for rank 1, %d times for rank 2", len(d.of(1)), len(d.of(2)))
	}
	r.must("flush", l.Flush(r.ctx))
	r.must("put to another", r.putWord(l, 2, 0, 1))
	r.idle(l)
}

// A rank that lives and has no queue pair to spare is not dead: the operation fails, and a later
// one may succeed.
func TestARankWithoutQueuePairsIsNotDown(t *testing.T) {
	r := newRig(t, 2, onDemand(Config{Lanes: 1, ConnectTimeout: 300 * time.Millisecond}))
	refusing := atomic.Bool{}
	refusing.Store(true)
	r.mangling(1, func(d datagram) []datagram {
		if d.kind == dgReply && refusing.Load() {
			return []datagram{{kind: dgRefusal, endpoint: d.endpoint, to: d.to, epoch: d.epoch, errno: uint32(syscall.ENOMEM)}}
		}
		return []datagram{d}
	})
	l := r.lane(0)
	_, err := l.Put(1, 0, word(1), 0)
	if !errors.Is(err, syscall.ENOMEM) || errors.Is(err, fabric.ErrPeerDown) || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("put: %v", err)
	}
	refusing.Store(false)
	r.must("later put", r.putWord(l, 1, 0, 1))
}

// The program may give up, close its lane, and the network, while a connection is being made.
func TestAContextEndsTheMakingOfAConnection(t *testing.T) {
	r := newRig(t, 2, onDemand(Config{Lanes: 1}))
	r.mangling(1, func(d datagram) []datagram {
		if d.kind == dgReply {
			return nil
		}
		return []datagram{d}
	})
	l := r.lane(0)
	ctx, cancel := context.WithCancelCause(r.ctx)
	l.SetContext(ctx)
	go func() {
		r.until("the request", func() bool { return r.nets[1].ConnectionStats().Accepted > 0 })
		cancel(errKilled)
	}()
	if _, err := l.Put(1, 0, word(1), 0); !errors.Is(err, errKilled) || errors.Is(err, fabric.ErrPeerDown) {
		t.Errorf("put: %v", err)
	}
	if len(l.set.queues[0:]) != 2 || l.set.queues[1] != nil || len(l.set.dialer.dialed) != 0 {
		t.Error("something is left of the connection")
	}
	r.idle(l)
	r.must("close", l.Close())
	r.until("the other end is closed", func() bool { return r.nets[1].ConnectionStats().Open == 0 })
	r.must("close of the network", r.nets[0].Close())
}

// A request that arrives late, of a connection that is closed, makes an end that its rank has
// closed again; it does not disturb the connection that there is.
func TestLateRequestsMakeNoConnection(t *testing.T) {
	r := newRig(t, 3, onDemand(Config{Lanes: 1, Connections: 1}))
	var mu sync.Mutex
	var first []datagram
	release := atomic.Bool{}
	r.mangling(0, func(d datagram) []datagram {
		mu.Lock()
		defer mu.Unlock()
		out := []datagram{d}
		if d.kind == dgRequest && len(first) < 1 {
			first = append(first, d)
		}
		if release.Load() && d.to != first[0].to {
			out = append(out, first...)
		}
		return out
	})
	l := r.lane(0)
	r.must("put", r.putWord(l, 1, 0, 1))
	r.must("put", r.putWord(l, 2, 0, 1)) // closes the first
	r.until("the first is closed", func() bool { return r.nets[1].ConnectionStats().Open == 0 })
	release.Store(true)
	r.must("put", r.putWord(l, 1, 0, 2)) // hangs up on rank 2, with the old request beside
	r.must("put", r.putWord(l, 2, 0, 2)) // and once more
	r.until("late copies are closed", func() bool {
		s := r.nets[1].ConnectionStats()
		return s.Open == 0 && s.Accepted >= 2
	})
	r.must("put", r.putWord(l, 1, 0, 3))
	if r.word(1, 0) != 3 || r.word(2, 0) != 2 {
		t.Errorf("words are %d and %d", r.word(1, 0), r.word(2, 0))
	}
}

// Datagrams that are well made and make no sense are counted, and change nothing.
func TestHostileDatagramsAboutLanesAreDropped(t *testing.T) {
	r := newRig(t, 3, onDemand(Config{Lanes: 2}))
	victim, other := r.lane(0), r.lane(1)
	r.must("put", r.putWord(victim, 1, 0, 1)) // epoch 1 of rank 0
	r.must("put", r.putWord(other, 0, 0, 1))  // of rank 1, at rank 0
	before := r.nets[0].ConnectionStats()
	bad := []datagram{
		{kind: dgRequest, endpoint: laneBit | 2, epoch: 1, qpn: 5, psn: 6},       // a lane that there is not
		{kind: dgRequest, endpoint: laneBit | maxLanes, epoch: 1, qpn: 5},        //
		{kind: dgRequest, endpoint: laneBit, epoch: 1, qpn: 0},                   // no queue pair
		{kind: dgRequest, endpoint: laneBit, epoch: 1, qpn: 1 << 24},             //
		{kind: dgRequest, endpoint: laneBit, epoch: 0, qpn: 5},                   // no epoch
		{kind: dgReady, endpoint: laneBit, epoch: 1},                             // of messages only
		{kind: dgStay, endpoint: laneBit, epoch: 1},                              //
		{kind: dgNote, endpoint: laneBit, note: []byte("x")},                     //
		{kind: dgReply, endpoint: laneBit, epoch: 1, qpn: 5, psn: 6},             // rank 0 has that with rank 1
		{kind: dgReply, endpoint: laneBit, epoch: 9, qpn: 5, psn: 6},             // never asked for
		{kind: dgRefusal, endpoint: laneBit, epoch: 1, errno: 12},                //
		{kind: dgClosed, endpoint: laneBit, epoch: 1},                            //
		{kind: datagramKind(77), endpoint: laneBit, epoch: 1},                    //
		{kind: dgRequest, endpoint: 0, epoch: 1, qpn: 5, psn: 6, slotSize: 1000}, // laneBit is set when it is sent
	}
	var sent sync.Once
	r.mangling(2, func(d datagram) []datagram {
		out := []datagram{d}
		sent.Do(func() {
			for _, b := range bad {
				b.to = 0
				out = append(out, b)
			}
			out = append(out, datagram{kind: dgClose, endpoint: laneBit, to: 0, epoch: 2}, // which there is not
				datagram{kind: dgClose, endpoint: laneBit | 1, to: 0, epoch: 1})
		})
		return out
	})
	l := r.lane(2)
	r.must("put", r.putWord(l, 0, 8, 7))
	// The last of bad makes a connection for rank 2's lane 0 or is out of date, all others are
	// dropped.
	r.until("all are dropped", func() bool {
		return r.nets[0].ConnectionStats().Dropped-before.Dropped >= uint64(len(bad)-1)
	})
	if s := r.nets[0].ConnectionStats(); s.Open != 2 {
		t.Errorf("rank 0: %+v", s)
	}
	r.must("put", r.putWord(victim, 1, 0, 2))
	r.must("put", r.putWord(other, 0, 0, 2))
	r.must("put", r.putWord(l, 0, 8, 8))
	if r.word(1, 0) != 2 || r.word(0, 0) != 2 || r.word(0, 8) != 8 {
		t.Errorf("words are %d, %d and %d", r.word(1, 0), r.word(0, 0), r.word(0, 8))
	}
}

// A connector whose queue is lost ends what waits for it.
func TestALostConnectorFailsNewConnections(t *testing.T) {
	r := newRig(t, 3, onDemand(Config{Lanes: 1}))
	l := r.lane(0)
	r.must("put", r.putWord(l, 1, 0, 1))
	r.nets[0].connector.lose(errKilled)
	if _, err := l.Put(2, 0, word(1), 0); !errors.Is(err, errKilled) || errors.Is(err, fabric.ErrPeerDown) {
		t.Errorf("put: %v", err)
	}
	r.must("put to a rank that is connected", r.putWord(l, 1, 0, 2))
	r.idle(l)
}

func TestDifferentEagerIsRefusedByName(t *testing.T) {
	r := newRig(t, 1, Config{Lanes: 1})
	a := r.nets[0].self
	a.eager = 3
	if err := r.nets[0].Reach(0, a.encode()); !errors.Is(err, fabric.ErrUnreachable) || !strings.Contains(err.Error(), "Config.EagerPeers") {
		t.Errorf("reach: %v", err)
	}
}
