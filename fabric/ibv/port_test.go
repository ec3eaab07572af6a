//go:build linux && cgo

package ibv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/fabric"
)

// mail is a rig whose ranks have a port each, and the books of who sent what to whom.
type mail struct {
	*rig
	posts []*office
	taken []atomic.Uint64 // messages of rank i that rank j has posted back, at i*n+j
	live  func(rank int) bool
}

// office is a rank's port and what it knows.
type office struct {
	m       *mail
	rank    int
	p       *port
	rng     *rand.Rand
	sent    []uint64
	arrived []uint64
	epoch   []uint32
	open    []bool
	down    []error
	idles   int
	cookies map[uint64]int
	failed  []error // of Sent
	events  [16]fabric.Event
}

func newMail(t testing.TB, n int, cfg Config, pc fabric.PortConfig) *mail {
	t.Helper()
	m := &mail{rig: newRig(t, n, cfg), taken: make([]atomic.Uint64, n*n), live: func(int) bool { return true }}
	for r := range n {
		m.openPort(r, pc)
	}
	return m
}

func (m *mail) openPort(rank int, pc fabric.PortConfig) *office {
	m.Helper()
	n := len(m.nets)
	p, err := m.nets[rank].NewPort(0, pc)
	m.must("new port", err)
	o := &office{m: m, rank: rank, p: p.(*port), rng: rand.New(rand.NewPCG(9, uint64(rank))), sent: make([]uint64, n), arrived: make([]uint64, n),
		epoch: make([]uint32, n), open: make([]bool, n), down: make([]error, n), cookies: map[uint64]int{}}
	m.posts = append(m.posts, o)
	m.Cleanup(func() {
		verifyPort(m.TB, o.p)
		if err := p.Close(); err != nil {
			m.Error(err)
		}
	})
	return o
}

var mailConfig = fabric.PortConfig{Slots: 32, SlotSize: 512, Sends: 16, Reserved: 2}

// send sends the next message to a peer, if one of its part of the peer's slots is free.
func (o *office) send(peer, size int, cookie bool, f fabric.SendFlag) (bool, error) {
	n := len(o.sent)
	if o.sent[peer]-o.m.taken[o.rank*n+peer].Load() >= uint64(o.p.cfg.Slots/n) {
		return false, nil
	}
	b, err := o.p.Reserve(0)
	if errors.Is(err, fabric.ErrAgain) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	seq := o.sent[peer] + 1
	fillLetter(b.Data[:size], o.rank, peer, seq)
	id := uint64(0)
	if cookie {
		id = seq<<16 | uint64(peer)<<8 | 1
	}
	if err := o.p.Send(peer, b, size, nil, id, f); err != nil {
		o.p.Release(b)
		if errors.Is(err, fabric.ErrAgain) {
			return false, nil
		}
		return false, err
	}
	o.sent[peer] = seq
	if cookie {
		o.cookies[id] = peer
	}
	return true, nil
}

func fillLetter(b []byte, from, to int, seq uint64) {
	binary.LittleEndian.PutUint64(b, seq)
	for i := 8; i < len(b); i++ {
		b[i] = byte(seq)*29 + byte(from)*7 + byte(to)*3 + byte(i)
	}
}

// poll takes what there is and checks it.
func (o *office) poll(budget time.Duration) error {
	n, err := o.p.Poll(o.events[:], budget)
	if err != nil {
		return err
	}
	for _, e := range o.events[:n] {
		if err := o.take(e); err != nil {
			return fmt.Errorf("rank %d: event %d of rank %d, epoch %d: %w", o.rank, e.Kind, e.Peer, e.Epoch, err)
		}
	}
	return nil
}

func (o *office) take(e fabric.Event) error {
	if o.down[e.Peer] != nil {
		return errors.New("it comes after Down")
	}
	switch e.Kind {
	case fabric.Arrived:
		o.arrived[e.Peer]++
		if !o.open[e.Peer] || e.Epoch != o.epoch[e.Peer] {
			return fmt.Errorf("the connection is %v, of epoch %d", o.open[e.Peer], o.epoch[e.Peer])
		}
		want := make([]byte, len(e.Data))
		fillLetter(want, e.Peer, o.rank, o.arrived[e.Peer])
		if string(want) != string(e.Data) {
			return fmt.Errorf("message %d of %d bytes came where %d should, or damaged", binary.LittleEndian.Uint64(e.Data), len(e.Data), o.arrived[e.Peer])
		}
		if err := o.p.Post(e.Slot); err != nil {
			return err
		}
		o.m.taken[e.Peer*len(o.sent)+o.rank].Add(1)
	case fabric.Sent:
		if o.cookies[e.Cookie] != e.Peer || e.Cookie == 0 {
			return fmt.Errorf("cookie %#x is not awaited", e.Cookie)
		}
		delete(o.cookies, e.Cookie)
		if e.Err != nil {
			o.failed = append(o.failed, e.Err)
		}
	case fabric.Up:
		if o.open[e.Peer] || e.Epoch != o.epoch[e.Peer]+1 {
			return fmt.Errorf("after epoch %d, open: %v", o.epoch[e.Peer], o.open[e.Peer])
		}
		o.open[e.Peer], o.epoch[e.Peer] = true, e.Epoch
	case fabric.Idle:
		if !o.open[e.Peer] || e.Epoch != o.epoch[e.Peer] {
			return fmt.Errorf("at epoch %d, open: %v", o.epoch[e.Peer], o.open[e.Peer])
		}
		o.open[e.Peer] = false
		o.idles++
	case fabric.Down:
		for _, peer := range o.cookies {
			if peer == e.Peer {
				return errors.New("a message to it has no end")
			}
		}
		o.down[e.Peer], o.open[e.Peer] = e.Err, false
	}
	return nil
}

// work runs step on every rank that takes part, with polls between, until all say that they are done; they go on polling until then.
func (m *mail) work(step func(o *office) (bool, error)) {
	m.Helper()
	var left atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Bool
	errs := make([]error, len(m.posts))
	for _, o := range m.posts {
		if m.live(o.rank) {
			left.Add(1)
		}
	}
	for i, o := range m.posts {
		if !m.live(o.rank) {
			continue
		}
		wg.Go(func() {
			for done := false; left.Load() > 0 && !failed.Load() && m.ctx.Err() == nil; {
				d, err := step(o)
				if err == nil {
					err = o.poll(50 * time.Microsecond)
				}
				if errs[i] = err; err != nil {
					failed.Store(true)
				}
				if d && !done {
					done = true
					left.Add(-1)
				}
			}
		})
	}
	wg.Wait()
	m.must("work", errors.Join(errs...))
	if m.ctx.Err() != nil {
		for _, o := range m.posts {
			m.Logf("rank %d: sent %v arrived %v epochs %v open %v cookies %d %+v", o.rank, o.sent, o.arrived, o.epoch, o.open, len(o.cookies), o.p.Stats())
		}
		m.Fatal("not done in time")
	}
}

// exchange has every rank send so many messages to random others, and waits until all have arrived.
func (m *mail) exchange(count int) {
	m.Helper()
	n := len(m.nets)
	left := make([]int, n)
	m.work(func(o *office) (bool, error) {
		for left[o.rank] < count {
			peer := (o.rank + 1 + o.rng.IntN(n-1)) % n
			ok, err := o.send(peer, 8+o.rng.IntN(o.p.cfg.SlotSize-8), o.rng.IntN(3) == 0, fabric.SendFlag(o.rng.IntN(2))*fabric.More)
			if err != nil {
				return false, err
			}
			if !ok {
				break
			}
			left[o.rank]++
		}
		return left[o.rank] == count && len(o.cookies) == 0 && o.delivered(), nil
	})
}

func (o *office) delivered() bool {
	for peer, sent := range o.sent {
		if o.m.taken[o.rank*len(o.sent)+peer].Load() != sent {
			return false
		}
	}
	return true
}

// agree checks that both ends of every pair number and count alike, and that no message met no slot.
func (m *mail) agree() {
	m.Helper()
	connects, accepts := uint64(0), uint64(0)
	for _, o := range m.posts {
		s := o.p.Stats()
		connects, accepts = connects+s.Connects, accepts+s.Accepts
		if s.RNR != 0 {
			m.Errorf("rank %d: %d messages met no slot", o.rank, s.RNR)
		}
		for peer, q := range m.posts {
			if o.epoch[peer] != q.epoch[o.rank] {
				m.Errorf("rank %d is at epoch %d with rank %d, which is at %d", o.rank, o.epoch[peer], peer, q.epoch[o.rank])
			}
		}
	}
	if connects != accepts {
		m.Errorf("%d connections were opened and %d accepted", connects, accepts)
	}
}

// verifyPort checks a port's books: every record, buffer and slot is in one place, and the sums agree.
func verifyPort(t testing.TB, p *port) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.deaf != nil {
		return
	}
	used, bufs := make([]bool, len(p.msgs)), len(p.freeBufs)
	out, records := int32(0), 0
	for rank := range p.peers {
		c := p.peers[rank].conn
		if c == nil {
			continue
		}
		count, wrs := int32(0), int32(0)
		for i := c.head; i != none && count <= c.count; i = p.msgs[i].next {
			m := &p.msgs[i]
			if used[i] || m.conn != c {
				t.Fatalf("record %d is in two lists, or of another connection", i)
			}
			used[i] = true
			if m.buf != none {
				bufs++
			}
			if count < c.count-c.queued {
				wrs += m.wrs
			} else if count == c.count-c.queued && c.first != i {
				t.Errorf("rank %d: the first queued message is %d, not %d", rank, i, c.first)
			}
			count++
		}
		if count != c.count || wrs != c.wrs || c.queued < 0 || c.queued > c.count {
			t.Errorf("rank %d lists %d messages with %d work requests, and says %d with %d, %d queued", rank, count, wrs, c.count, c.wrs, c.queued)
		}
		out += wrs
		records += int(count)
	}
	free := 0
	for i := p.freeMsg; i != none && free <= len(p.msgs); i = p.msgs[i].next {
		if used[i] {
			t.Fatalf("record %d is free and in use", i)
		}
		free++
	}
	if free+records != len(p.msgs) || free != p.freeMsgs || out != p.out {
		t.Errorf("%d records free (%d) and %d in use of %d; %d work requests out, the port says %d", free, p.freeMsgs, records, len(p.msgs), out, p.out)
	}
	for _, b := range p.bufs {
		if b.state == bufOurs {
			bufs++
		}
	}
	if bufs != len(p.bufs) || int(p.count.freeSends.Load()) != len(p.freeBufs) {
		t.Errorf("%d of %d send buffers are somewhere, %d free, %d counted", bufs, len(p.bufs), len(p.freeBufs), p.count.freeSends.Load())
	}
	ours := 0
	for _, o := range p.slotOurs {
		if o {
			ours++
		}
	}
	if ours != int(p.count.posted.Load()) {
		t.Errorf("%d slots are the device's, %d counted", ours, p.count.posted.Load())
	}
}

// storm is a network for datagrams of connection making that drops, doubles, delays and reorders them.
type storm struct {
	mu   sync.Mutex
	rng  *rand.Rand
	held []datagram
}

func newStorm() *storm { return &storm{rng: rand.New(rand.NewPCG(11, 12))} }

func (s *storm) mangle(d datagram) []datagram {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.rng.IntN(5) {
	case 0:
		return nil
	case 1:
		return []datagram{d, d}
	}
	return []datagram{d}
}

// delaying keeps some of one rank's datagrams and sends them again much later, among others.
func (s *storm) delaying(d datagram) []datagram {
	out := s.mangle(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held = append(s.held, d); len(s.held) > 40 {
		i := s.rng.IntN(len(s.held))
		out = append(out, s.held[i])
		s.held[i] = s.held[len(s.held)-1]
		s.held = s.held[:len(s.held)-1]
	}
	return out
}

func TestStormsOfSimultaneousOpensMakeOneConnectionAPair(t *testing.T) {
	for _, n := range []int{2, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			m := newMail(t, n, Config{Lanes: 1, mangle: newStorm().mangle}, mailConfig)
			m.work(func(o *office) (bool, error) { // everybody to everybody, at once
				for peer := range n {
					if o.sent[peer] == 0 && peer != o.rank {
						if _, err := o.send(peer, 8+peer, true, 0); err != nil {
							return false, err
						}
					}
				}
				return len(o.cookies) == 0 && o.delivered() && o.p.Connected() == n-1, nil
			})
			m.agree()
			for _, o := range m.posts {
				for peer, e := range o.epoch {
					if peer != o.rank && (e != 1 || o.arrived[peer] != 1) {
						t.Errorf("rank %d had %d connections with rank %d and got %d messages", o.rank, e, peer, o.arrived[peer])
					}
				}
			}
		})
	}
}

// Late copies of any datagram must neither close nor open anything: each rank has its own store of old ones.
func TestMoreIdleConnectionsThanTheLimitAreClosedUnderTraffic(t *testing.T) {
	const n, limit = 6, 2
	m := newMail(t, n, Config{Lanes: 1, Messages: MessageConfig{Connections: limit}}, mailConfig)
	for _, net := range m.nets {
		net.cfg.mangle = newStorm().delaying
	}
	m.exchange(80)
	m.work(func(o *office) (bool, error) { return o.p.Connected() <= limit, nil })
	m.agree()
	idles := 0
	for _, o := range m.posts {
		idles += o.idles
	}
	if idles < 2*n {
		t.Errorf("%d connections were closed among %d ranks with %d each", idles, n, limit)
	}
	m.exchange(10) // and everybody can talk to everybody still
	m.agree()
}

func TestEagerPortsConnectToAllWithoutAMessage(t *testing.T) {
	const n = 4
	m := newMail(t, n, Config{Lanes: 1, Messages: MessageConfig{Eager: true}, mangle: newStorm().mangle}, mailConfig)
	m.work(func(o *office) (bool, error) { return o.p.Connected() == n-1, nil })
	m.agree()
}

func TestARankTalksToItself(t *testing.T) {
	m := newMail(t, 1, Config{Lanes: 1}, mailConfig)
	for round := range uint32(3) {
		last := round == 2
		m.work(func(o *office) (bool, error) {
			if o.sent[0] < 20*uint64(round+1) {
				_, err := o.send(0, 300, true, 0)
				return false, err
			}
			if len(o.cookies) > 0 || !o.delivered() {
				return false, nil
			}
			if last || !o.open[0] {
				return true, nil
			}
			return false, o.p.Disconnect(0)
		})
		if m.posts[0].epoch[0] != round+1 {
			t.Fatalf("epoch %d in round %d", m.posts[0].epoch[0], round)
		}
	}
}

// A peer whose port is open and that nobody polls is alive for all its device knows.
func TestAPeerThatAnswersNoAttemptToConnectIsDown(t *testing.T) {
	m := newMail(t, 3, Config{Lanes: 1, Messages: MessageConfig{ConnectTimeout: 200 * time.Millisecond}}, mailConfig)
	m.live = func(rank int) bool { return rank != 1 }
	m.work(func(o *office) (bool, error) {
		if o.rank == 0 && o.sent[1] < 4 && o.down[1] == nil {
			_, err := o.send(1, 400, true, 0)
			return false, err
		}
		return o.rank != 0 || o.down[1] != nil && len(o.cookies) == 0, nil
	})
	o := m.posts[0]
	if len(o.failed) != 4 || !errors.Is(o.down[1], errNoAnswer) {
		t.Errorf("%d of 4 messages failed, the rank is down because of %v", len(o.failed), o.down[1])
	}
	for _, err := range o.failed {
		m.down("message", err, 1, errNoAnswer)
	}
	if o.p.Stats().FreeSends != mailConfig.Sends {
		t.Errorf("%d send buffers are free", o.p.Stats().FreeSends)
	}
}

// hasty are time-outs of the device that a test can wait for: 8 ms, once.
var hasty = Config{Lanes: 1, timeout: 11, retries: 1}

func TestKeepaliveFindsADeadPeerWithoutTraffic(t *testing.T) {
	t.Run("behind messages that told of their end", func(t *testing.T) { findByKeepalive(t, 0) })
	t.Run("behind messages that did not", func(t *testing.T) { findByKeepalive(t, 3) })
}

// findByKeepalive: rank 1 dies when the last messages of each rank to each other were some that ask for no completion.
func findByKeepalive(t *testing.T, silent int) {
	cfg := hasty
	cfg.Messages.Keepalive = 20 * time.Millisecond
	var d deaths
	cfg.OnDown = d.onDown
	m := newMail(t, 3, cfg, mailConfig)
	m.connectAll()
	for range silent {
		for _, o := range m.posts {
			for peer := range m.posts {
				if peer != o.rank {
					_, err := o.send(peer, 8, false, 0)
					m.must("send", err)
				}
			}
		}
		m.work(func(o *office) (bool, error) { return o.delivered(), nil })
	}
	m.live = func(rank int) bool { return rank != 1 }
	for _, c := range m.posts[1].p.byQPN { // its device answers nothing more
		m.must("stop of a queue pair", c.qp.ToError())
	}
	m.work(func(o *office) (bool, error) { return o.down[1] != nil, nil })
	if m.posts[0].down[2] != nil || !m.posts[0].open[2] || len(d.of(1)) != 2 || len(d.of(2)) != 0 {
		t.Errorf("rank 2 is down at rank 0: %v; OnDown was told of rank 1 %d times, of rank 2 %d times", m.posts[0].down[2], len(d.of(1)), len(d.of(2)))
	}
	for _, e := range m.posts {
		if e.rank != 1 && !errors.Is(e.down[1], fabric.ErrPeerDown) && e.down[1] == nil {
			t.Errorf("rank %d has no cause", e.rank)
		}
	}
}

// The peer that is asked whether a connection may be closed has ConnectTimeout to answer, since it must poll for that. Its
// device must answer at once.
func TestClosingTheConnectionToADeadPeerFindsItDead(t *testing.T) {
	cfg := hasty
	cfg.Messages.Keepalive = -1
	cfg.Messages.ConnectTimeout = time.Hour
	m := newMail(t, 3, cfg, mailConfig)
	m.connectAll()
	m.live = func(rank int) bool { return rank != 1 }
	for _, c := range m.posts[1].p.byQPN { // its device answers nothing more
		m.must("stop of a queue pair", c.qp.ToError())
	}
	for _, o := range m.posts {
		if o.rank != 1 {
			m.must("disconnect", o.p.Disconnect(1))
		}
	}
	m.work(func(o *office) (bool, error) { return o.down[1] != nil, nil })
}

// connectAll sends one message along each pair.
func (m *mail) connectAll() {
	m.Helper()
	m.work(func(o *office) (bool, error) {
		for peer := range o.sent {
			if o.sent[peer] == 0 && peer != o.rank {
				if _, err := o.send(peer, 8, true, 0); err != nil {
					return false, err
				}
			}
		}
		return len(o.cookies) == 0 && o.delivered(), nil
	})
}

// A port that closes while everybody sends to it: each message has its end, and the others go on.
func TestClosingInMidTrafficEndsEveryMessageOnce(t *testing.T) {
	m := newMail(t, 4, hasty, mailConfig)
	m.connectAll()
	closed := false
	m.work(func(o *office) (bool, error) {
		if o.rank == 0 {
			if o.arrived[1] > 5 && o.arrived[2] > 5 {
				closed = true
			}
			return closed, nil
		}
		_, err := o.send(0, 500, true, 0)
		return true, err
	})
	// Their messages are on their way when it goes.
	for _, o := range m.posts[1:] {
		for range 4 {
			_, err := o.send(0, 500, true, 0)
			m.must("send", err)
		}
	}
	m.must("close", m.posts[0].p.Close())
	m.live = func(rank int) bool { return rank != 0 }
	m.work(func(o *office) (bool, error) {
		if o.down[0] == nil {
			_, err := o.send(0, 500, true, 0)
			if errors.Is(err, fabric.ErrPeerDown) {
				err = nil
			}
			return false, err
		}
		return len(o.cookies) == 0, nil
	})
	for _, o := range m.posts[1:] {
		if len(o.failed) == 0 || o.p.Stats().FreeSends != mailConfig.Sends {
			t.Errorf("rank %d: %d messages failed, %d send buffers are free", o.rank, len(o.failed), o.p.Stats().FreeSends)
		}
	}
	got := m.posts[1].arrived[2]
	m.work(func(o *office) (bool, error) {
		if o.rank == 2 && m.posts[2].sent[1] < got+10 {
			_, err := o.send(1, 500, true, 0)
			return false, err
		}
		return len(o.cookies) == 0, nil
	})
}
