package am

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/fabric"
)

// largeSize is the length of payloads to and from a target.
const largeSize = 10

// largeBook is the receiver of a target, "take", and counts what becomes of payloads.
type largeBook struct {
	t         *testing.T
	decide    func(*Announcement)
	x         *Large
	delivered int
	ends      map[*Announcement]int
	seen      []*Announcement
	sends     []*sending
}

func (r *largeBook) register(t *Table) {
	r.ends = make(map[*Announcement]int)
	r.x = t.HandleLarge("take", Receiver{
		Announced: func(a *Announcement) { r.seen = append(r.seen, a); r.decide(a) },
		Ended: func(a *Announcement, err error) {
			if r.ends[a]++; err == nil {
				r.delivered++
			}
		},
	})
}

// announce announces a payload to rank 1 as Send does, if that needs no wait.
func (r *largeBook) announce(l *Endpoint) *sending {
	s := &sending{p: l.core.known(1), h: r.x.h, size: largeSize, w: l.core.newWaiter()}
	l.core.mu.Lock()
	err := l.core.transfersLocked(s.p).queue(s)
	l.core.mu.Unlock()
	if err != nil {
		return nil
	}
	if err := l.emitter.trySend(s.p, &outgoing{kind: announce, handler: s.h.index, token: s.token}, []uint64{largeSize}, nil); err != nil {
		_ = l.giveUp(s, err)
		return nil
	}
	s.announce = true
	l.core.stats.large.Announced++
	r.sends = append(r.sends, s)
	return s
}

// atRest checks that everything has ended, once.
func (r *largeBook) atRest(l *Endpoint) {
	r.t.Helper()
	for _, a := range r.seen {
		refused := a.decided && !a.granted
		if n := r.ends[a]; refused && n != 0 || !refused && n != 1 {
			r.t.Fatalf("a payload has ended %d times (refused: %v)", n, refused)
		}
	}
	if l.core.transfers+l.core.functions+l.core.calls.grants != 0 {
		r.t.Fatalf("there are %d transfers, %d of %d functions run, %d entries", l.core.transfers, l.core.functions, len(r.seen), l.core.calls.grants)
	}
}

func TestHostileStepsCutOffTheirSender(t *testing.T) {
	type script struct {
		*testing.T
		l     *Endpoint
		p     *scripted
		token uint64 // of a payload that is announced to rank 1
	}
	from := func(x *script, rank int, h head) {
		x.p.arrive(x.T, rank, message(x.l, h, make([]byte, h.length)))
		x.l.pollAll(x.T, x.p)
	}
	granted := func(token uint64, args ...uint64) head {
		h := head{kind: grant, token: token, nargs: 2}
		copy(h.args[:], args)
		return h
	}
	announced := func(token, size uint64) head {
		return head{kind: announce, handler: 1, token: token, nargs: 1, args: [MaxArgs]uint64{size}}
	}
	sent := func(token, off uint64, n uint32) head {
		return head{kind: data, cat: long, token: token, off: off, length: n}
	}
	for _, c := range []struct {
		name, rule string
		play       func(x *script)
	}{
		{"a grant of nothing", "answers a payload that is not announced", func(x *script) { from(x, 1, granted(x.token+1<<32, 8, largeSize)) }},
		{"a grant by another rank", "answers a payload that is not announced", func(x *script) { from(x, 2, granted(x.token, 8, largeSize)) }},
		{"two grants", "answers a payload twice", func(x *script) {
			from(x, 1, granted(x.token, 8, largeSize))
			from(x, 1, granted(x.token, 8, largeSize))
		}},
		{"a refusal after a grant", "answers a payload twice", func(x *script) {
			from(x, 1, granted(x.token, 8, largeSize))
			from(x, 1, head{kind: refusal, cat: medium, token: x.token, length: 1})
		}},
		{"a grant after a refusal", "answers a payload that is not announced", func(x *script) {
			from(x, 1, head{kind: refusal, cat: medium, token: x.token, length: 1})
			from(x, 1, granted(x.token, 8, largeSize))
		}},
		{"a smaller grant", "of another size", func(x *script) { from(x, 1, granted(x.token, 8, largeSize-1)) }},
		{"a grant beyond the segment", "beyond its segment", func(x *script) { from(x, 1, granted(x.token, 91, largeSize)) }},
		{"a grant far beyond", "beyond its segment", func(x *script) { from(x, 1, granted(x.token, 1<<64-4, largeSize)) }},
		{"too many announcements", "announces more payloads than it may", func(x *script) {
			for i := range uint64(maxAnnounced + 1) {
				from(x, 1, announced(50+i, largeSize))
			}
		}},
		{"an announcement twice", "announces a payload twice", func(x *script) { from(x, 1, announced(50, 1)); from(x, 1, announced(50, 1)) }},
		{"an announcement of too much", "that no write carries", func(x *script) { from(x, 1, announced(50, maxLong+1)) }},
		{"data of nothing", "sends a payload that is not announced", func(x *script) { from(x, 1, sent(50, 8, largeSize)) }},
		{"data without a grant", "that was granted no memory", func(x *script) { from(x, 1, announced(51, largeSize)); from(x, 1, sent(51, 8, largeSize)) }},
		{"data elsewhere", "to other memory than was granted", func(x *script) { from(x, 1, announced(50, largeSize)); from(x, 1, sent(50, 9, largeSize)) }},
		{"less data", "to other memory than was granted", func(x *script) { from(x, 1, announced(50, largeSize)); from(x, 1, sent(50, 8, largeSize-1)) }},
		{"data twice", "sends a payload that is not announced", func(x *script) {
			from(x, 1, announced(50, largeSize))
			from(x, 1, sent(50, 8, largeSize))
			from(x, 1, sent(50, 8, largeSize))
		}},
		{"data of another rank", "sends a payload that is not announced", func(x *script) { from(x, 1, announced(50, largeSize)); from(x, 2, sent(50, 8, largeSize)) }},
		{"an announcement with no size", "in another form", func(x *script) { from(x, 1, head{kind: announce, handler: 1, token: 50}) }},
		{"a grant without a token", "with the fields of a request", func(x *script) { from(x, 1, granted(0, 8, largeSize)) }},
		{"a withdrawal of nothing", "", func(x *script) { from(x, 1, head{kind: withdraw, token: 50}) }},
		{"an announcement to no handler", "", func(x *script) { h := announced(50, 1); h.handler = 7; from(x, 1, h) }},
		{"an announcement to another handler", "", func(x *script) { h := announced(50, 1); h.handler = 0; from(x, 1, h) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &largeBook{t: t, decide: func(a *Announcement) {
				if a.token%2 == 0 { // the others are put off
					if err := a.Grant(8); err != nil {
						t.Error(err)
					}
				}
			}}
			l, p := targetWith(t, Config{Credits: 64, Flow: flow.Config{Initial: 24}}, r.register)
			hello(t, l, p, 1)
			hello(t, l, p, 2)
			s := r.announce(l)
			if s == nil {
				t.Fatal("no payload is announced")
			}
			c.play(&script{t, l, p, s.token})
			var e *MessageError
			switch {
			case c.rule == "" && len(p.cut) > 0:
				t.Errorf("cut off for %v", p.cut)
			case c.rule != "" && (len(p.cut) != 1 || !errors.As(p.cut[0], &e) || !strings.Contains(e.Rule, c.rule)):
				t.Errorf("cut off for %v, want one that %s", p.cut, c.rule)
			}
			stats := l.Stats()
			if err := errors.Join(stats.Check(), l.core.pool.Check()); err != nil || len(p.free)+len(l.inbox.bare) != p.cfg.Slots {
				t.Errorf("%v; %d of %d slots are posted", err, len(p.free)+len(l.inbox.bare), p.cfg.Slots)
			}
			if down := l.core.known(1).down; down != nil && s.err == nil {
				t.Error("the payload that is announced to a rank that was cut off goes on")
			} else if down != nil && !errors.Is(s.err, fabric.ErrPeerDown) && !errors.As(s.err, new(*RefusedError)) {
				t.Error(s.err)
			}
			_ = l.Close()
			l.core.cfg.Host.(*queuedHost).run()
			r.atRest(l)
		})
	}
}

// An announcement that names what is not there is refused, and so is one to an ordinary handler.
func TestAnAnnouncementToNobodyIsRefused(t *testing.T) {
	for _, handler := range []uint16{0, 7} {
		r := &largeBook{t: t}
		l, p := targetWith(t, Config{Credits: 64, Flow: flow.Config{Initial: 24}}, r.register)
		hello(t, l, p, 1)
		p.sent = nil
		p.arrive(t, 1, message(l, head{kind: announce, handler: handler, token: 50, nargs: 1}, nil))
		l.pollAll(t, p)
		var got head
		if len(p.sent) != 1 {
			t.Fatalf("%d messages were sent, want a refusal", len(p.sent))
		}
		text, err := got.decode(p.sent[0], l.core.hash)
		if err != nil || got.kind != refusal || got.token != 50 || !strings.Contains(string(text), "names a receiver of large payloads that is not there") {
			t.Errorf("%+v %q, %v", got, text, err)
		}
		if len(l.Errors()) != 1 || len(p.cut) > 0 {
			t.Errorf("kept %v, cut off for %v", l.Errors(), p.cut)
		}
	}
}

// The network tells of the end of data whose peer is dead as of any others: until then their entry
// has the waiter of Send, which must not become another's.
func TestDataOfADeadPeerKeepTheirWaiter(t *testing.T) {
	for _, end := range []string{"their end", "Close", "a stall"} {
		t.Run(end, func(t *testing.T) { dataOfADeadPeer(t, end) })
	}
}

func dataOfADeadPeer(t *testing.T, end string) {
	r := &largeBook{t: t}
	l, p := targetWith(t, Config{Credits: 64, Flow: flow.Config{Initial: 24}}, r.register)
	hello(t, l, p, 1)
	p.events = append(p.events, fabric.Event{Kind: fabric.Up, Peer: 1, Epoch: 1})
	s := r.announce(l)
	p.arrive(t, 1, message(l, head{kind: grant, token: s.token, nargs: 2, args: [MaxArgs]uint64{8, largeSize}}, nil))
	l.pollAll(t, p)
	w := s.w
	l.progress.begin(w, "post", s.h, 1)
	o := &outgoing{kind: data, cat: long, token: s.token, payload: make([]byte, largeSize), off: s.off, w: w}
	if err := l.emitter.trySend(s.p, o, nil, nil); err != nil {
		t.Fatal(err)
	}
	data := fabric.Event{Kind: fabric.Sent, Peer: 1, Cookie: w.token}
	l.core.down(s.p, errors.New("found elsewhere"), false)
	switch end {
	case "their end":
		p.events = append(p.events, data)
	case "Close":
		l.core.shut(ErrClosed)
	case "a stall":
		p.now = p.ticks()
		l.core.cfg.StallAfter = 20 * time.Millisecond
	}
	// Where the network may read the payload yet the error says so.
	err := s.conclude(l)
	if !errors.Is(err, fabric.ErrPeerDown) || errors.Is(err, ErrClosed) != (end == "Close") || errors.As(err, new(*StallError)) != (end == "a stall") {
		t.Error(err)
	}
	for i := range l.core.calls.e {
		if l.core.calls.e[i].w == w {
			t.Error("an entry has the waiter of a Send that has returned")
		}
	}
	stats := l.Stats()
	if err := errors.Join(stats.Check(), l.Close()); (err == nil) != (end == "their end") {
		t.Error(err)
	}
	r.atRest(l)
}
