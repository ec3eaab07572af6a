//go:build linux && cgo

package ibv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/fabric"
)

// messageRig is a rig whose ranks have an endpoint each, and counts what each sent to each.
type messageRig struct {
	*rig
	ends  []*end
	taken []atomic.Uint64 // messages of rank i that rank j has posted back, at i*n+j
	live  func(rank int) bool
}

// end is a rank's endpoint, and what was sent and arrived there.
type end struct {
	m       *messageRig
	rank    int
	p       *endpoint
	rng     *rand.Rand
	sent    []uint64
	arrived []uint64
	epoch   []uint32
	open    []bool
	down    []error
	idles   int
	cookies map[uint64]int
	failed  []error // of Sent
	copied  bool    // send has messages copied where they may be
	events  [16]fabric.Event
	again   []int // peers whose messages' slots are free again
}

func newMessageRig(t testing.TB, n int, cfg Config, pc fabric.EndpointConfig) *messageRig {
	t.Helper()
	m := connectMessageRig(t, n, cfg)
	for r := range n {
		m.open(r, pc)
	}
	return m
}

// connectMessageRig opens no endpoints.
func connectMessageRig(t testing.TB, n int, cfg Config) *messageRig {
	t.Helper()
	return &messageRig{rig: newRig(t, n, cfg), taken: make([]atomic.Uint64, n*n), live: func(int) bool { return true }}
}

func (m *messageRig) open(rank int, pc fabric.EndpointConfig) *end {
	m.Helper()
	n := len(m.nets)
	p, err := m.nets[rank].NewEndpoint(0, pc)
	m.must("new endpoint", err)
	o := &end{m: m, rank: rank, p: p.(*endpoint), rng: rand.New(rand.NewPCG(9, uint64(rank))), sent: make([]uint64, n), arrived: make([]uint64, n),
		epoch: make([]uint32, n), open: make([]bool, n), down: make([]error, n), cookies: map[uint64]int{}}
	m.ends = append(m.ends, o)
	m.Cleanup(func() {
		verifyEndpoint(m.TB, o.p)
		if err := p.Close(); err != nil {
			m.Error(err)
		}
	})
	return o
}

var endpointConfig = fabric.EndpointConfig{Slots: 32, SlotSize: 512, Sends: 16, Reserved: 2}

// send sends the next message to a peer, if one of its part of the peer's slots is free.
func (o *end) send(peer, size int, cookie bool, f fabric.SendFlag) (bool, error) {
	n := len(o.sent)
	if o.sent[peer]-o.m.taken[o.rank*n+peer].Load() >= uint64(o.p.cfg.Slots/n) {
		return false, nil
	}
	b := fabric.SendBuf{ID: fabric.Copied}
	if o.copied && !cookie {
		b.Data = make([]byte, size)
		defer clear(b.Data)
	} else {
		var err error
		if b, err = o.p.Reserve(0); errors.Is(err, fabric.ErrAgain) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	seq := o.sent[peer] + 1
	fillMessage(b.Data[:size], o.rank, peer, seq)
	id := uint64(0)
	if cookie {
		id = seq<<16 | uint64(peer)<<8 | 1
	}
	if err := o.p.Send(peer, b, size, nil, id, f); err != nil {
		if b.ID != fabric.Copied {
			o.p.Release(b)
		}
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

func fillMessage(b []byte, from, to int, seq uint64) {
	binary.LittleEndian.PutUint64(b, seq)
	for i := 8; i < len(b); i++ {
		b[i] = byte(seq)*29 + byte(from)*7 + byte(to)*3 + byte(i)
	}
}

// poll takes what there is and checks it.
func (o *end) poll(budget time.Duration) error {
	defer o.tell()
	return o.takeAll(budget)
}

func (o *end) takeAll(budget time.Duration) error {
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

// tell has the senders know of slots that are free again.
func (o *end) tell() {
	for _, peer := range o.again {
		o.m.taken[peer*len(o.sent)+o.rank].Add(1)
	}
	o.again = o.again[:0]
}

// pollAndPost is poll where senders run beside: what they count tells them of a slot at once, and
// Post may keep it back until something is sent.
func (o *end) pollAndPost(budget time.Duration) error {
	err := o.takeAll(budget)
	if len(o.again) > 0 {
		o.p.mu.Lock()
		err = errors.Join(err, o.p.flushLocked())
		o.p.mu.Unlock()
		o.tell()
	}
	return err
}

func (o *end) take(e fabric.Event) error {
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
		fillMessage(want, e.Peer, o.rank, o.arrived[e.Peer])
		if string(want) != string(e.Data) {
			return fmt.Errorf("message %d of %d bytes came where %d should, or damaged", binary.LittleEndian.Uint64(e.Data), len(e.Data), o.arrived[e.Peer])
		}
		if err := o.p.Post(e.Slot); err != nil {
			return err
		}
		o.again = append(o.again, e.Peer)
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

// work runs step on every rank that takes part, with polls between, until it has returned true for
// all of them.
func (m *messageRig) work(step func(o *end) (bool, error)) {
	m.Helper()
	var left atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Bool
	errs := make([]error, len(m.ends))
	for _, o := range m.ends {
		if m.live(o.rank) {
			left.Add(1)
		}
	}
	for i, o := range m.ends {
		if !m.live(o.rank) {
			continue
		}
		wg.Go(func() {
			for done := false; left.Load() > 0 && !failed.Load() && m.ctx.Err() == nil; {
				d, err := step(o)
				if err == nil {
					err = o.pollAndPost(50 * time.Microsecond)
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
		for _, o := range m.ends {
			m.Logf("rank %d: sent %v arrived %v epochs %v open %v down %v cookies %d %+v", o.rank, o.sent, o.arrived, o.epoch, o.open, o.down, len(o.cookies), o.p.Stats())
		}
		m.Fatal("not done in time")
	}
}

// exchange has every rank send so many messages to random others, and waits until all have arrived.
func (m *messageRig) exchange(count int) {
	m.Helper()
	n := len(m.nets)
	left := make([]int, n)
	m.work(func(o *end) (bool, error) {
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

func (o *end) delivered() bool {
	for peer, sent := range o.sent {
		if o.m.taken[o.rank*len(o.sent)+peer].Load() != sent {
			return false
		}
	}
	return true
}

// agree checks that both ends of every pair number and count alike, and that no message met no
// slot.
func (m *messageRig) agree() {
	m.Helper()
	connects, accepts := uint64(0), uint64(0)
	for _, o := range m.ends {
		s := o.p.Stats()
		connects, accepts = connects+s.Connects, accepts+s.Accepts
		if s.RNR != 0 {
			m.Errorf("rank %d: %d messages met no slot", o.rank, s.RNR)
		}
		for peer, q := range m.ends {
			if o.epoch[peer] != q.epoch[o.rank] {
				m.Errorf("rank %d is at epoch %d with rank %d, which is at %d", o.rank, o.epoch[peer], peer, q.epoch[o.rank])
			}
		}
	}
	if connects != accepts {
		m.Errorf("%d connections were opened and %d accepted", connects, accepts)
	}
}

// verifyEndpoint checks an endpoint: every request, buffer and slot is in one place, and the sums
// agree.
func verifyEndpoint(t testing.TB, p *endpoint) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.out.lost != nil {
		return
	}
	var queues []*sendQueue
	var waiting []list
	for rank := range p.conns.peers {
		if c := p.conns.to(rank); c != nil {
			queues, waiting = append(queues, &c.q), append(waiting, c.waiting)
		}
	}
	joined := map[*conn]int32{}
	for _, i := range verifySender(t, &p.out.tx, queues, waiting...) {
		if m := &p.out.all[i]; m.copied && !p.out.tx.requests[i].probe {
			joined[m.conn] += m.wrs - 1
		}
	}
	for _, q := range queues {
		if int32(q.conn.joined) != joined[q.conn] {
			t.Errorf("rank %d: %d messages share requests, the connection says %d", q.rank, joined[q.conn], q.conn.joined)
		}
	}
	bufs := p.out.bufs.Left()
	for i := range p.out.all {
		if m := &p.out.all[i]; m.conn != nil && m.buf != none {
			bufs++
		}
	}
	for id := range int32(p.cfg.Sends) {
		if p.out.bufs.Check("look", id) == nil {
			bufs++
		}
	}
	if bufs != p.cfg.Sends {
		t.Errorf("%d of %d send buffers are somewhere, %d free", bufs, p.cfg.Sends, p.out.bufs.Left())
	}
	posted := 0
	for _, ok := range p.slots.posted {
		if ok {
			posted++
		}
	}
	if posted != p.slots.count {
		t.Errorf("%d slots are the device's, %d counted", posted, p.slots.count)
	}
}

// connectAll sends one message along each pair.
func (m *messageRig) connectAll() {
	m.Helper()
	m.work(func(o *end) (bool, error) {
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

// sendShort sends short messages that need no send buffer, without regard to the peer's slots.
func (o *end) sendShort(peer, count int, f fabric.SendFlag) {
	o.m.Helper()
	for range count {
		o.sent[peer]++
		b := make([]byte, 8)
		fillMessage(b, o.rank, peer, o.sent[peer])
		o.m.must("send", o.p.Send(peer, fabric.SendBuf{Data: b, ID: fabric.Copied}, len(b), nil, 0, f))
	}
}

// stopDevice has a rank's device answer nothing more.
func (m *messageRig) stopDevice(rank int) {
	m.Helper()
	for _, c := range m.ends[rank].p.conns.byQPN {
		m.must("stop of a queue pair", c.q.qp.ToError())
	}
	m.without(rank)
}

// without lets all ranks but one work.
func (m *messageRig) without(rank int) { m.live = func(r int) bool { return r != rank } }

// only lets some ranks work.
func (m *messageRig) only(ranks ...int) {
	m.live = func(rank int) bool { return slices.Contains(ranks, rank) }
}
