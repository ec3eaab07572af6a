package am

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
)

// scripted is a port that delivers what a test writes, and keeps the books of slots.
type scripted struct {
	fabric.Endpoint
	cfg    fabric.EndpointConfig
	events []fabric.Event
	ours   map[int32]bool
	free   []int32
	sent   [][]byte
	notes  [][]byte
	down   map[int]bool
	ran    int     // handlers of the endpoint
	cut    []error // for which it has cut peers off

	out         atomic.Int32 // send buffers that are neither free nor sent
	counts      bool         // Stats does
	unconfirmed int          // messages that may not have arrived; a Kick finds that one has,
	lost        bool         // unless none does

	// In place of what the port does, unless nil or without an error.
	reserve  func(fabric.SendFlag) error
	sending  func(b fabric.SendBuf, n int) error
	released func()
	now      func() time.Duration
	wait     func()
}

type scriptedNet struct {
	fabric.Messenger
	p *scripted
}

func (n scriptedNet) Name() string { return "scripted" }
func (n scriptedNet) MessageLimits() fabric.MessageLimits {
	return fabric.MessageLimits{MaxMessage: 1 << 20, MaxNote: 64, MaxSlots: 1 << 16}
}
func (n scriptedNet) NewEndpoint(_ int, cfg fabric.EndpointConfig) (fabric.Endpoint, error) {
	n.p.cfg, n.p.ours, n.p.down = cfg, map[int32]bool{}, map[int]bool{}
	for i := range cfg.Slots {
		n.p.free = append(n.p.free, int32(i))
	}
	return n.p, nil
}

func (p *scripted) Reserve(f fabric.SendFlag) (fabric.SendBuf, error) {
	if p.reserve != nil {
		if err := p.reserve(f); err != nil {
			return fabric.SendBuf{}, err
		}
	}
	p.out.Add(1)
	return fabric.SendBuf{Data: make([]byte, p.cfg.SlotSize)}, nil
}
func (p *scripted) Release(fabric.SendBuf) {
	p.out.Add(-1)
	if p.released != nil {
		p.released()
	}
}
func (p *scripted) Send(_ int, b fabric.SendBuf, n int, w *fabric.Write, _ uint64, _ fabric.SendFlag) error {
	if p.sending != nil {
		if err := p.sending(b, n); err != nil {
			return err
		}
	}
	p.sent = append(p.sent, append([]byte(nil), b.Data[:n]...)) // what was copied is overwritten
	return nil
}
func (p *scripted) Note(_ int, b []byte) error {
	p.notes = append(p.notes, append([]byte(nil), b...))
	return nil
}
func (p *scripted) Poll(e []fabric.Event, _ time.Duration) (int, error) {
	n := copy(e, p.events)
	p.events = p.events[n:]
	return n, nil
}
func (p *scripted) Post(slots ...int32) error {
	for _, s := range slots {
		if !p.ours[s] {
			return fmt.Errorf("slot %d was posted twice", s)
		}
		delete(p.ours, s)
		p.free = append(p.free, s)
	}
	return nil
}
func (p *scripted) Wake() {}
func (p *scripted) Now() time.Duration {
	if p.now != nil {
		return p.now()
	}
	return time.Hour
}

// ticks is a clock that takes a millisecond for each look at it.
func (p *scripted) ticks() func() time.Duration {
	now := time.Hour
	p.wait = func() {}
	return func() time.Duration { now += time.Millisecond; return now }
}
func (p *scripted) Wait(context.Context) error { p.wait(); return nil }
func (p *scripted) Kick() error {
	if !p.lost {
		p.unconfirmed--
	}
	return nil
}
func (p *scripted) After(time.Duration)  {}
func (p *scripted) Disconnect(int) error { return nil }
func (p *scripted) Close() error         { return nil }
func (p *scripted) Stats() fabric.EndpointStats {
	s := fabric.EndpointStats{Posted: len(p.free), FreeSends: p.cfg.Sends, Unconfirmed: p.unconfirmed}
	if p.counts {
		s.FreeSends -= int(p.out.Load())
	}
	return s
}

func (p *scripted) arrive(t *testing.T, from int, b []byte) {
	t.Helper()
	if len(p.free) == 0 {
		t.Fatal("every slot is kept")
	}
	s := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.ours[s] = true
	p.events = append(p.events, fabric.Event{Kind: fabric.Arrived, Peer: from, Slot: s, Epoch: 1, Data: append([]byte(nil), b...)})
}

func (p *scripted) note(from int, b []byte) {
	p.events = append(p.events, fabric.Event{Kind: fabric.NoteArrived, Peer: from, Data: append([]byte(nil), b...)})
}

// queuedHost runs goroutines when the test says so, and those that would wait for credits when the
// endpoint is closed.
type queuedHost struct {
	Goroutines
	todo, blocked []func()
}

func (h *queuedHost) Go(name string, f func()) {
	if name == stepSender {
		h.blocked = append(h.blocked, f)
		return
	}
	h.todo = append(h.todo, f)
}

// Sleep is what Close waits with.
func (h *queuedHost) Sleep(d time.Duration) {
	if len(h.todo)+len(h.blocked) == 0 {
		h.Goroutines.Sleep(d)
	}
	h.todo, h.blocked = append(h.todo, h.blocked...), nil
	h.run()
}

func (h *queuedHost) run() {
	for len(h.todo) > 0 {
		f := h.todo[0]
		h.todo = h.todo[1:]
		f()
	}
}

// target is an endpoint whose peers are the test.
func target(t *testing.T) (*Endpoint, *scripted) {
	t.Helper()
	return targetWith(t, Config{Credits: 8}, func(*Table) {})
}

// greeted is a target with a connection of credits to rank 1.
func greeted(t *testing.T) (*Endpoint, *scripted) {
	t.Helper()
	l, s := target(t)
	hello(t, l, s, 1)
	return l, s
}

// targetWith is a target with other credits and more handlers, whose names come behind "run".
func targetWith(t *testing.T, c Config, more func(*Table)) (*Endpoint, *scripted) {
	t.Helper()
	p := &scripted{}
	table := NewTable()
	table.Handle("run", func(*Call) { p.ran++ })
	more(table)
	l, err := Open(scriptedNet{p: p}, 0, Config{Rank: 0, Size: 4, Table: table, Segment: make([]byte, 100), AttendAfter: -1, Credits: c.Credits, Flow: c.Flow, Replies: 4,
		Host: &queuedHost{}, SegmentSize: func(int) uint64 { return 100 },
		OnClosed: func(rank int, cause error) { p.cut = append(p.cut, cause) }})
	if err != nil {
		t.Fatal(err)
	}
	return l, p
}

func (l *Endpoint) pollAll(t *testing.T, p *scripted) {
	t.Helper()
	for len(p.events) > 0 {
		if _, err := l.Test(); err != nil {
			t.Fatal(err)
		}
		l.core.cfg.Host.(*queuedHost).run()
	}
}

// hello opens the connection of credits.
func hello(t *testing.T, l *Endpoint, p *scripted, from int) {
	t.Helper()
	h := head{kind: control, credit: credit.Header{Epoch: connection, Want: 4, Answer: true, Granted: 2}}
	b := make([]byte, headSize)
	h.encode(b, l.core.hash, nil)
	p.note(from, b)
	l.pollAll(t, p)
}

func message(l *Endpoint, h head, payload []byte) []byte {
	h.credit.Epoch = connection
	b := make([]byte, h.size())
	if h.cat == medium {
		copy(b[headSize:], payload)
	}
	h.encode(b, l.core.hash, h.args[:h.nargs])
	return b
}

func TestABrokenMessageCutsOffItsSenderOnly(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes func(l *Endpoint) []byte
		open  bool
	}{
		{"a request without a connection", func(l *Endpoint) []byte { return message(l, head{kind: request}, nil) }, false},
		{"a reply without a connection", func(l *Endpoint) []byte { return message(l, head{kind: reply, token: 1<<32 | 1}, nil) }, false},
		{"a reply to no call", func(l *Endpoint) []byte { return message(l, head{kind: reply, token: 1<<32 | 1}, nil) }, true},
		{"another version", func(l *Endpoint) []byte { b := message(l, head{kind: request}, nil); b[0] = 9; return b }, true},
		{"another table", func(l *Endpoint) []byte { b := message(l, head{kind: request}, nil); b[20]++; return b }, true},
		{"a control message that takes a slot", func(l *Endpoint) []byte { return message(l, head{kind: control}, nil) }, true},
		{"nothing", func(*Endpoint) []byte { return nil }, true},
		{"credits beyond the window", func(l *Endpoint) []byte {
			return message(l, head{kind: request, credit: credit.Header{Granted: 1 << 20}}, nil)
		}, true},
		{"credits returned that it never had", func(l *Endpoint) []byte {
			return message(l, head{kind: request, credit: credit.Header{Granted: 2, Extended: true, Returned: 99}}, nil)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, p := target(t)
			if c.open {
				hello(t, l, p, 1)
			}
			hello(t, l, p, 2)
			p.arrive(t, 1, c.bytes(l))
			l.pollAll(t, p)
			if len(p.cut) != 1 || p.ran != 0 {
				t.Fatalf("cut off for %v, %d handlers ran", p.cut, p.ran)
			}
			var e *MessageError
			var v *credit.ViolationError
			if errors.As(p.cut[0], &e) && e.Peer != 1 || errors.As(p.cut[0], &v) && v.Peer != 1 {
				t.Fatalf("the error does not name rank 1: %v", p.cut[0])
			}
			p.arrive(t, 1, message(l, head{kind: request}, nil)) // ignored from now on
			p.arrive(t, 2, message(l, head{kind: request}, nil))
			l.pollAll(t, p)
			s := l.Stats()
			if p.ran != 1 || s.Broken != 1 || s.Ignored != 1 || s.Handled != 1 {
				t.Fatalf("%d handlers ran; %+v", p.ran, s)
			}
			if err := errors.Join(s.Check(), l.core.pool.Check()); err != nil {
				t.Fatal(err)
			}
			if err := l.core.table.find(0).Post(NoWait, l, 1); !errors.Is(err, fabric.ErrPeerDown) {
				t.Fatalf("post to the rank that was cut off: %v", err)
			}
			if len(p.free)+len(l.inbox.bare) != p.cfg.Slots {
				t.Fatalf("%d of %d slots are posted", len(p.free)+len(l.inbox.bare), p.cfg.Slots)
			}
		})
	}
}

func TestARefusedRequestKeepsTheConnection(t *testing.T) {
	for _, c := range []struct {
		name string
		h    head
	}{
		{"handler", head{kind: request, handler: 1}},
		{"segment", head{kind: request, cat: long, off: 99, length: 2}},
		{"segment, far", head{kind: request, cat: long, off: 1 << 63, length: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, p := greeted(t)
			p.sent = nil
			p.arrive(t, 1, message(l, c.h, nil))
			c.h.wants, c.h.token = true, 77
			p.arrive(t, 1, message(l, c.h, nil))
			l.pollAll(t, p)
			var got head
			if len(p.sent) != 1 {
				t.Fatalf("%d messages were sent, want a failure", len(p.sent))
			}
			text, err := got.decode(p.sent[0], l.core.hash)
			if err != nil || got.kind != failure || got.token != 77 || Reason(got.args[0]) != Refused || len(text) == 0 {
				t.Fatalf("%+v, %v", got, err)
			}
			if s := l.Stats(); len(p.cut) != 0 || p.ran != 0 || s.Refused != 2 || s.Check() != nil || len(l.Errors()) != 2 {
				t.Fatalf("%v, %+v", p.cut, s)
			}
		})
	}
}

func TestBrokenNotesAreCountedAndDropped(t *testing.T) {
	l, p := target(t)
	for _, b := range [][]byte{nil, {1}, make([]byte, headSize), message(l, head{kind: request}, nil)} {
		p.note(1, b)
	}
	l.pollAll(t, p)
	if s := l.Stats(); s.BadNotes != 4 || len(p.cut) != 0 {
		t.Fatalf("%+v, %v", s, p.cut)
	}
}

// Whatever bytes arrive, nothing breaks, and every slot comes back.
func FuzzArrivals(f *testing.F) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 20 {
		h, payload, _ := random(rng)
		f.Add(encoded(&h, payload, h.args[:h.nargs]), false)
		f.Add(encoded(&h, payload, h.args[:h.nargs]), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, note bool) {
		l, p := target(t)
		if len(b) > 24 {
			b[20], b[21], b[22], b[23] = byte(l.core.hash), byte(l.core.hash>>8), byte(l.core.hash>>16), byte(l.core.hash>>24)
		}
		hello(t, l, p, 1)
		for range 3 {
			if len(b) > p.cfg.SlotSize {
				return
			}
			if note {
				p.note(1, b)
			} else {
				p.arrive(t, 1, b)
			}
			l.pollAll(t, p)
		}
		s := l.Stats()
		if err := errors.Join(s.Check(), l.core.pool.Check()); err != nil {
			t.Fatal(err)
		}
		if len(p.free)+len(l.inbox.bare) != p.cfg.Slots {
			t.Fatalf("%d of %d slots are posted", len(p.free)+len(l.inbox.bare), p.cfg.Slots)
		}
	})
}
