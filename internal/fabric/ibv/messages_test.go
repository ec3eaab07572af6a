//go:build linux && cgo

package ibv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
)

func TestAConnectionTakes192Bytes(t *testing.T) {
	if n := unsafe.Sizeof(conn{}); n > 192 {
		t.Errorf("a connection costs %d bytes beside its queue pair", n)
	}
}

func TestARankTalksToItself(t *testing.T) {
	m := newMessageRig(t, 1, Config{Lanes: 1}, endpointConfig)
	for round := range uint32(3) {
		last := round == 2
		m.work(func(o *end) (bool, error) {
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
		if m.ends[0].epoch[0] != round+1 {
			t.Fatalf("epoch %d in round %d", m.ends[0].epoch[0], round)
		}
	}
}

// Buffers of messages that ask for no completion come back though nothing more is sent, however
// many connections hold them.
func TestSilentMessagesGiveTheirBuffersBack(t *testing.T) {
	m := newMessageRig(t, 6, Config{Lanes: 1}, fabric.EndpointConfig{Slots: 48, SlotSize: 512, Sends: 16})
	rounds := 0
	m.work(func(o *end) (bool, error) {
		if o.rank != 0 || rounds == 43 { // not a multiple of what asks for a completion by itself
			return o.p.Stats().FreeSends == o.p.cfg.Sends, nil
		}
		if ok, err := o.send(1+rounds%5, 500, false, 0); err != nil || !ok {
			return false, err
		}
		rounds++
		return false, nil
	})
}

// Copied messages in a row share a request, up to the one that asks for a completion. Those of
// replies have one of their own, as nobody asks about these. As many as without that are in flight.
func TestCopiedMessagesShareARequest(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1}, fabric.EndpointConfig{Slots: 2 * (endpointQueue + 8), SlotSize: 64, Sends: 4, Reserved: 1})
	o := m.ends[0]
	o.copied = true
	m.connectAll()
	m.work(func(e *end) (bool, error) { return e.p.out.tx.out == 0, e.p.Kick() })
	p := o.p
	p.mu.Lock()
	inline := p.out.inline
	p.mu.Unlock()
	if inline < 8 {
		t.Skip("the device takes nothing from within the request")
	}
	inUse := func() int { return len(p.out.tx.requests) - int(p.out.tx.unused) }
	send := func(n int, f fabric.SendFlag) {
		t.Helper()
		for range n {
			if ok, err := o.send(1, 8, false, f); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
	}
	for i, want := range []struct{ requests, unconfirmed int }{{1, 5}, {2, 5}, {3, 7}} {
		switch i {
		case 0:
			send(5, 0)
		case 1:
			send(3, fabric.Urgent)
		case 2:
			send(2, 0)
		}
		if s := p.Stats(); inUse() != want.requests || s.Unconfirmed != want.unconfirmed {
			t.Errorf("step %d: %d requests, %d messages unconfirmed, want %+v", i, inUse(), s.Unconfirmed, want)
		}
	}
	verifyEndpoint(t, p)
	send(endpointQueue-10, 0)
	if ok, err := o.send(1, 8, false, 0); ok || err != nil {
		t.Errorf("one more than may be in flight: %v, %v", ok, err)
	}
	verifyEndpoint(t, p)
	if n := inUse(); n > 3+endpointQueue/endpointSignal {
		t.Errorf("%d messages take %d requests", endpointQueue, n)
	}
	m.work(func(e *end) (bool, error) {
		s := e.p.Stats()
		return e.delivered() && s.Unconfirmed == 0, e.p.Kick()
	})
}

// A device may take nothing from within the request, or less than the shortest message of those
// above.
func TestCopiedMessagesArriveWithoutInline(t *testing.T) {
	for _, inline := range []int{0, 16, inlineWish} {
		t.Run(fmt.Sprint(inline), func(t *testing.T) {
			m := connectMessageRig(t, 3, Config{Lanes: 1})
			for r, n := range m.nets {
				n.inline = min(n.inline, inline)
				m.open(r, fabric.EndpointConfig{Slots: 48, SlotSize: 256, Sends: 4, Reserved: 1}).copied = true
			}
			m.exchange(300)
			m.agree()
			m.work(func(o *end) (bool, error) { return o.p.Stats().FreeSends == o.p.cfg.Sends, nil })
		})
	}
}

// Whatever way the source of a write takes, its bytes are there when the message is.
func TestWritesArriveBeforeTheirMessages(t *testing.T) {
	for _, zero := range []int64{0, -1} {
		m := newMessageRig(t, 2, Config{Lanes: 1, ZeroCopyMin: zero}, fabric.EndpointConfig{Slots: 8, SlotSize: 256, Sends: 4})
		m.nets[0].piece = 8 << 10 // longer ones are cut
		a, b := m.ends[0], m.ends[1]
		sources := map[sourceKind][]byte{
			sourceNone: {}, sourceInline: make([]byte, 9), sourceBuffer: make([]byte, 200),
			sourceSegment: m.segs[0][4096:][:5000], sourceRegion: make([]byte, 100<<10),
		}
		if zero < 0 {
			sources[sourceCopy] = sources[sourceRegion]
			delete(sources, sourceRegion)
		}
		for how, src := range sources {
			for i := range src {
				src[i] = byte(i) * 5
			}
			if l := a.p.n.mem.newSource(src, inlineWish, a.p.cfg.SlotSize-8); l.how != how {
				t.Errorf("%d bytes go way %d, want %d", len(src), l.how, how)
			} else {
				l.release(&a.p.n.mem)
			}
			clear(m.segs[1])
			buf, err := a.p.Reserve(0)
			m.must("reserve", err)
			seq := a.sent[1] + 1
			a.sent[1] = seq
			fillMessage(buf.Data[:8], 0, 1, seq)
			a.cookies[seq] = 1
			m.must("send", a.p.Send(1, buf, 8, &fabric.Write{Off: 1000, Src: src}, seq, 0))
			m.work(func(o *end) (bool, error) {
				if o == b && b.arrived[0] == seq && !bytes.Equal(m.segs[1][1000:][:len(src)], src) {
					return false, fmt.Errorf("way %d: the message is there, its write is not", how)
				}
				return m.taken[1].Load() == seq && len(o.cookies) == 0, nil
			})
			if m.segs[1][999] != 0 || m.segs[1][1000+len(src)] != 0 {
				t.Errorf("way %d: bytes beside the write changed", how)
			}
		}
		// More than the queue takes at once.
		buf, err := a.p.Reserve(0)
		m.must("reserve", err)
		var be *fabric.BoundsError
		m.nets[0].piece = 64
		if err := a.p.Send(1, buf, 8, &fabric.Write{Src: m.segs[0][:64*endpointDepth]}, 7, 0); !errors.As(err, &be) {
			t.Errorf("a write of more work requests than a queue has: %v", err)
		}
		a.p.Release(buf)
	}
}

// A queue pair that refuses work takes only its own peer down; what was rung for with it goes.
func TestARefusedPostEndsItsPeerOnly(t *testing.T) {
	m := newMessageRig(t, 4, Config{Lanes: 1}, endpointConfig)
	m.connectAll()
	m.without(2)
	a := m.ends[0]
	m.must("reset", a.p.conns.peers[2].conn.q.qp.Reset())
	for _, peer := range []int{1, 2, 3, 2, 1} {
		_, err := a.send(peer, 400, true, fabric.More)
		m.must("send", err)
	}
	m.must("kick", a.p.Kick())
	m.work(func(o *end) (bool, error) { return o != a || a.down[2] != nil && len(a.cookies) == 0, nil })
	if len(a.failed) != 2 || m.ends[1].arrived[0] != 3 || m.ends[3].arrived[0] != 2 {
		t.Errorf("%d messages failed, rank 1 got %d, rank 3 got %d", len(a.failed), m.ends[1].arrived[0], m.ends[3].arrived[0])
	}
}

// Messages that leave their buffers at once ask for no completion. The third one finds no slot, as
// one whose packet is lost finds no receiver.
func TestAKickProbesWhatIsUnconfirmed(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1, Messages: MessageConfig{Keepalive: -1}}, fabric.EndpointConfig{Slots: 2, SlotSize: 64, Sends: 4})
	m.connectAll()
	m.only(0)
	a := m.ends[0]
	a.sendShort(1, 3, 0)
	m.must("kick", a.p.Kick())
	for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); {
		m.must("poll", a.poll(0))
	}
	if s := a.p.Stats(); s.FreeSends != 4 || s.Unconfirmed == 0 {
		t.Errorf("%d send buffers are free, %d messages may not have arrived, with one that has not", s.FreeSends, s.Unconfirmed)
	}
	m.only(0, 1)
	m.work(func(*end) (bool, error) { return a.p.Stats().Unconfirmed == 0 && a.delivered(), nil })
}

// The ends of its own notes are as many completions as a ring takes at once.
func TestAnEmptyPollHasLeftNothingBehind(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1}, endpointConfig)
	m.connectAll()
	a, b := m.ends[0].p, m.ends[1]
	for range 100 {
		m.must("poll", m.ends[0].poll(0)) // nothing is under way
	}
	for notes := a.Stats().NotesDropped; a.Stats().NotesDropped == notes; { // until all buffers are out
		m.must("note", a.Note(1, []byte("note")))
	}
	if n := len(a.datagrams.freeOut); n != 0 {
		t.Fatalf("%d buffers for notes are free", n)
	}
	if ok, err := b.send(0, 8, true, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	m.only(1)
	m.work(func(o *end) (bool, error) { return len(o.cookies) == 0, nil }) // it has arrived
	for {
		n, err := a.Poll(m.ends[0].events[:], 0)
		m.must("poll", err)
		if n == 0 {
			t.Fatal("a poll brought nothing, with a message that had arrived")
		}
		if m.ends[0].events[0].Kind == fabric.Arrived {
			return
		}
	}
}

// Urgent messages are answers. Their receiver may have closed its endpoint since, and would be
// found dead.
func TestAKickDoesNotProbeAnswers(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1, Messages: MessageConfig{Keepalive: -1}}, endpointConfig)
	m.connectAll()
	a := m.ends[0]
	a.sendShort(1, 3, fabric.Urgent)
	m.work(func(*end) (bool, error) { return a.delivered(), nil })
	m.must("close", m.ends[1].p.Close())
	m.only(0)
	m.must("kick", a.p.Kick())
	if s := a.p.Stats(); s.Unconfirmed != 0 || a.p.conns.peers[1].conn.q.probing {
		t.Errorf("%d messages may not have arrived, and it is asked about them: %v", s.Unconfirmed, a.p.conns.peers[1].conn.q.probing)
	}
}

// pollAndWait polls an endpoint, and sleeps when there is nothing, until ctx ends.
func (o *end) pollAndWait(ctx context.Context, take func(e fabric.Event) error) error {
	for ctx.Err() == nil {
		n, err := o.p.Poll(o.events[:], 0)
		for _, e := range o.events[:n] {
			err = errors.Join(err, take(e))
		}
		if err == nil && n == 0 {
			err = o.p.Wait(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// Senders that do not poll, and a poller that sleeps whenever it can.
func TestManySendersAndASleepingPoller(t *testing.T) {
	const senders, each = 4, 50
	m := newMessageRig(t, 2, Config{Lanes: 1}, fabric.EndpointConfig{Slots: 64, SlotSize: 256, Sends: 8})
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	var got, sent atomic.Int64
	var wg, pollers sync.WaitGroup
	check := func(err error) {
		if err != nil {
			t.Error(err)
			cancel()
		}
	}
	for _, o := range m.ends {
		pollers.Go(func() {
			check(o.pollAndWait(ctx, func(e fabric.Event) error {
				switch e.Kind {
				case fabric.Arrived:
					got.Add(1)
					return o.p.Post(e.Slot)
				case fabric.Sent:
					sent.Add(1)
				}
				return e.Err
			}))
		})
	}
	for s := range senders {
		wg.Go(func() {
			p := m.ends[s%2].p
			for i := 0; i < each && ctx.Err() == nil; {
				b, err := p.Reserve(0)
				if err == nil {
					if err = p.Send(1-s%2, b, 8+i*4, nil, uint64(s*each+i+1), fabric.Solicited); err != nil {
						p.Release(b)
					}
				}
				if err == nil {
					i++
				} else if errors.Is(err, fabric.ErrAgain) {
					time.Sleep(time.Millisecond) // only the poller makes room
				} else {
					check(err)
				}
			}
		})
	}
	wg.Wait()
	for got.Load() < senders*each || sent.Load() < senders*each {
		if ctx.Err() != nil {
			t.Fatalf("%d messages arrived and %d are complete, of %d", got.Load(), sent.Load(), senders*each)
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	pollers.Wait()
}

// Nothing but its own completion can wake this poller: it had armed for messages only.
func TestASleepingPollerSeesWhatIsSentMeanwhile(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1, Messages: MessageConfig{Keepalive: -1}}, endpointConfig)
	m.connectAll()
	o := m.ends[0]
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	var ended atomic.Uint64
	var wg sync.WaitGroup
	wg.Go(func() {
		err := o.pollAndWait(ctx, func(e fabric.Event) error {
			if e.Kind == fabric.Sent {
				ended.Store(e.Cookie)
			}
			return e.Err
		})
		if err != nil {
			t.Error(err)
		}
	})
	for i := range uint64(8) {
		for asleep := false; !asleep && m.ctx.Err() == nil; time.Sleep(time.Millisecond) {
			o.p.mu.Lock()
			asleep = o.p.sleeping && !o.p.armedAny
			o.p.mu.Unlock()
		}
		time.Sleep(2 * time.Millisecond) // from armed to parked
		b, err := o.p.Reserve(0)
		m.must("reserve", err)
		m.must("send", o.p.Send(1, b, 300, nil, i+1, 0))
		for ended.Load() != i+1 {
			if m.ctx.Err() != nil {
				t.Fatalf("the poller did not see that message %d is complete", i+1)
			}
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	wg.Wait()
}

// The note may be about slots that were given back: its answer may be there before the doorbell has
// come to the next queue.
func TestSlotsAreOnTheDeviceBeforeANote(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1}, endpointConfig)
	m.connectAll()
	p := m.ends[0].p
	for p.mu.Lock(); len(p.slots.bare) == 0; p.mu.Lock() {
		p.mu.Unlock()
		_, err := m.ends[1].send(0, 8, false, 0)
		m.must("send", err)
		m.must("poll", m.ends[1].poll(0))
		m.must("poll", m.ends[0].poll(time.Millisecond)) // which gives the slot back
	}
	p.mu.Unlock()
	m.must("note", p.Note(1, []byte("send")))
	if runs := p.out.tx.runs[:2]; runs[0].receives != &p.slots.receiveQueue || runs[1].queue != &p.datagrams.q { // posted, in this order
		t.Errorf("posted %+v", runs)
	}
}

func TestTwoEndpointsOfARankAreApart(t *testing.T) {
	m := newMessageRig(t, 2, Config{Lanes: 1, Messages: MessageConfig{Endpoints: 2}}, endpointConfig)
	for r := range 2 {
		p, err := m.nets[r].NewEndpoint(1, endpointConfig)
		m.must("second endpoint", err)
		m.Cleanup(func() { m.must("close", p.Close()) })
		if _, err := m.nets[r].NewEndpoint(1, endpointConfig); err == nil {
			t.Error("an endpoint was opened twice")
		}
		if _, err := m.nets[r].NewEndpoint(2, endpointConfig); err == nil {
			t.Error("an endpoint too many was opened")
		}
	}
	m.exchange(10)
	m.agree()
	if n := m.nets[0].endpoints[1].Connected(); n != 0 {
		t.Errorf("the other endpoint has %d connections", n)
	}
}

// What asked for no completion, at this rank or another, would keep its room for ever.
func TestTheLargestWriteFollowsSilentMessages(t *testing.T) {
	for _, silent := range []int{1, 2} {
		m := newMessageRig(t, 3, Config{Messages: MessageConfig{Keepalive: -1}}, fabric.EndpointConfig{Slots: 32, SlotSize: 512, Sends: 4})
		m.connectAll()
		o := m.ends[0]
		m.nets[0].piece = 64
		o.sendShort(silent, 3, 0)
		b, err := o.p.Reserve(0)
		m.must("reserve", err)
		o.sent[1]++
		fillMessage(b.Data[:8], 0, 1, o.sent[1])
		o.cookies[7] = 1
		m.must("send", o.p.Send(1, b, 8, &fabric.Write{Src: m.segs[0][:64*(endpointDepth-1)]}, 7, 0))
		m.work(func(o *end) (bool, error) { return len(o.cookies) == 0 && o.delivered(), nil })
	}
}

// Messages that share requests are more than requests: together those at several ranks must leave
// room for the largest write to another.
func TestTheLargestWriteFollowsSharedRequests(t *testing.T) {
	m := newMessageRig(t, 5, Config{Messages: MessageConfig{Keepalive: -1}}, fabric.EndpointConfig{Slots: 128, SlotSize: 512, Sends: 4})
	m.connectAll()
	o := m.ends[0]
	m.nets[0].piece = 64
	for peer := 1; peer < 4; peer++ {
		for run := range endpointSignal - 1 {
			o.sendShort(peer, endpointSignal-1, fabric.SendFlag(run%2)*fabric.Urgent)
		}
	}
	b, err := o.p.Reserve(0)
	m.must("reserve", err)
	o.sent[4]++
	fillMessage(b.Data[:8], 0, 4, o.sent[4])
	o.cookies[7] = 4
	m.must("send", o.p.Send(4, b, 8, &fabric.Write{Src: m.segs[0][:64*(endpointDepth-1)]}, 7, 0))
	m.work(func(o *end) (bool, error) { return len(o.cookies) == 0 && o.delivered(), nil })
}
