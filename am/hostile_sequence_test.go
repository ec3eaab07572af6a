package am

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/ibconduit/conduit/internal/credit"
	"github.com/ibconduit/conduit/internal/fabric"
)

// enemy makes messages that are right but for a few fields.
type enemy struct {
	*rand.Rand
	tokens []uint64 // of calls, answered or not
	last   uint64   // of the payload that it announced last
}

func pick[T any](e *enemy, usual T, others ...T) T {
	if e.IntN(4) > 0 {
		return usual
	}
	return others[e.IntN(len(others))]
}

func (e *enemy) message(l *Endpoint) []byte {
	h := head{kind: kind(1 + e.IntN(int(kinds)-1)), cat: category(e.IntN(3)), nargs: uint8(e.IntN(4))}
	if e.IntN(2) == 0 { // what it may do at any time
		h.kind = []kind{request, announce, announce, data, withdraw}[e.IntN(5)]
	}
	h.token = pick(e, e.tokens[e.IntN(len(e.tokens))], 0, 1, 1<<32|1, math.MaxUint64)
	switch h.kind {
	case request:
		if h.wants = e.IntN(2) == 0; !h.wants {
			h.token = 0
		}
		h.handler = pick[uint16](e, 0, 1, math.MaxUint16)
	case failure:
		h.cat, h.nargs = medium, 1
		h.args[0] = e.Uint64()
	case control, ping:
		h.cat, h.nargs, h.token = short, 0, 0
	case announce:
		h.cat, h.nargs, h.handler = short, 1+h.nargs, pick[uint16](e, 1, 0, math.MaxUint16)
		h.token = pick(e, uint64(1+e.IntN(20)), h.token)
		e.last = h.token
		h.args[0] = pick[uint64](e, largeSize, 0, 101, maxLong+1, math.MaxUint64)
	case grant:
		h.cat, h.nargs = short, 2
		h.args[0], h.args[1] = pick[uint64](e, 8, 0, 90, 99, math.MaxUint64), pick[uint64](e, largeSize, 0, 1<<40)
	case refusal:
		h.cat, h.nargs = medium, 0
	case data, withdraw:
		h.cat, h.nargs = short, 0
		h.token = pick(e, e.last, uint64(1+e.IntN(20)))
	}
	if h.kind == data {
		h.cat, h.length, h.off = long, pick[uint32](e, largeSize, 1), pick[uint64](e, 8, 9)
	} else if h.cat != short {
		h.length = uint32(e.IntN(40))
		h.off = pick[uint64](e, uint64(e.IntN(50)), 99, 100, 101, 1<<32, 1<<63, math.MaxUint64)
	}
	h.credit = credit.Header{Epoch: connection, Want: uint16(e.IntN(9)), Answer: e.IntN(3) == 0, Granted: uint32(e.IntN(9))}
	if e.IntN(3) == 0 {
		h.credit.Extended = true
		h.credit.Recall, h.credit.Returned, h.credit.Seen = uint32(e.IntN(3)), uint32(e.IntN(3)), uint32(e.IntN(3))
	}
	b := make([]byte, h.size())
	h.encode(b, l.core.hash, h.args[:h.nargs])
	if e.IntN(12) == 0 { // a byte that does not fit the others
		b[e.IntN(len(b))] = byte(e.Uint32())
	}
	switch e.IntN(40) {
	case 0:
		b = b[:e.IntN(len(b))]
	case 1:
		b = append(b, make([]byte, e.IntN(20))...)
	}
	return b
}

// Whatever a rank sends, in whatever order, while calls to it are in flight and replies to it are
// owed: the books balance, every buffer comes back, every call to it ends, and another rank is
// served as before.
func TestNoSequenceOfAHostileRankHarmsAnybodyElse(t *testing.T) {
	cutOff, survived, delivered := 0, 0, 0
	for seed := range uint64(3000) {
		e := &enemy{rand.New(rand.NewPCG(seed, 1)), []uint64{7}, 1}
		r := &largeBook{t: t, decide: func(a *Announcement) {
			if e.IntN(3) > 0 {
				_ = a.Grant(8)
			} else if e.IntN(3) == 0 {
				_ = a.Refuse(errors.New("no"))
			}
		}}
		l, p := targetWith(t, Config{Credits: 8}, r.register)
		hello(t, l, p, 1)
		hello(t, l, p, 2)
		h := l.core.table.find(0)
		var calls []*Pending
		for range 1 + e.IntN(12) {
			if e.IntN(4) == 0 {
				if s := r.announce(l); s != nil {
					e.tokens = append(e.tokens, s.token)
				}
			}
			if e.IntN(3) == 0 {
				w := l.core.newWaiter()
				l.progress.begin(w, "call", h, 1)
				o := outgoing{kind: request, wants: true, w: w}
				if e.IntN(4) == 0 {
					o.cat, o.payload = long, []byte("x")
				}
				switch err := l.emitter.trySend(l.core.known(1), &o, nil, w); {
				case err == nil:
					calls, e.tokens = append(calls, &Pending{l, w, nil}), append(e.tokens, w.token)
				case !passing(err) && !errors.Is(err, fabric.ErrPeerDown):
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if b := e.message(l); e.IntN(4) == 0 {
				p.note(1, b)
			} else {
				p.arrive(t, 1, b)
			}
			l.pollAll(t, p)
		}
		hello(t, l, p, 2)
		handled := l.Stats().Handled
		p.arrive(t, 2, message(l, head{kind: request}, nil))
		l.pollAll(t, p)
		if s := l.Stats(); s.Handled != handled+1 || len(p.free)+len(l.inbox.bare) != p.cfg.Slots || errors.Join(s.Check(), l.core.pool.Check()) != nil {
			t.Fatalf("seed %d: rank 2 is not served, or the books are wrong: %+v, %v, %v", seed, s, s.Check(), l.core.pool.Check())
		}
		if len(p.cut) > 1 || len(p.cut) == 1 && !errors.As(p.cut[0], new(*MessageError)) && !errors.As(p.cut[0], new(*credit.ViolationError)) {
			t.Fatalf("seed %d: cut off for %v", seed, p.cut)
		}
		if len(p.cut) == 1 {
			cutOff++
			for _, c := range calls {
				if c.w.over() || l.core.calls.e[index(c.w.token)-1].needs == needSent {
					continue // the network tells the end of a write
				}
				t.Fatalf("seed %d: a call to the rank that was cut off goes on", seed)
			}
		} else {
			survived++
		}
		_ = l.Close()
		l.core.cfg.Host.(*queuedHost).run()
		r.atRest(l)
		delivered += r.delivered
	}
	t.Logf("%d were cut off, %d large payloads arrived", cutOff, delivered)
	if cutOff < 100 || survived < 10 || delivered < 10 {
		t.Errorf("%d ranks were cut off, %d were not: the test tests nothing", cutOff, survived)
	}
}
