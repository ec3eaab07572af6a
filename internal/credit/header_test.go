package credit

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"
)

func TestHeadersLookOnTheWireAsDocumented(t *testing.T) {
	for _, c := range []struct {
		h    Header
		wire string
	}{
		{Header{}, "0000000000000000"},
		{Header{Granted: 0x04030201, Epoch: 0x0605, Want: 0x0807}, "0102030405060708"},
		{Header{Want: MaxWindow}, "000000000000ff3f"},
		{Header{Answer: true}, "0000000000000040"},
		{Header{Extended: true, Recall: 1, Returned: 2, Seen: 0x03000000}, "0000000000000080010000000200000000000003"},
	} {
		var wire [ExtendedSize]byte
		n := c.h.Encode(wire[:])
		if got := hex.EncodeToString(wire[:n]); got != c.wire || n != c.h.Size() {
			t.Errorf("%+v is %s, want %s", c.h, got, c.wire)
		}
		var back Header
		if m, err := back.Decode(wire[:n]); err != nil || m != n || back != c.h {
			t.Errorf("%s is %+v (%v), want %+v", c.wire, back, err, c.h)
		}
		for short := range n {
			if _, err := back.Decode(wire[:short]); err == nil {
				t.Errorf("%d of %d bytes were accepted", short, n)
			}
		}
	}
}

// What fits the form is encoded again to the same bytes, and whatever its numbers, the accounts
// balance.
func FuzzHeader(f *testing.F) {
	for _, h := range []Header{
		{}, {Epoch: 1, Want: 5, Answer: true}, {Epoch: 1, Granted: 7, Extended: true, Recall: 3, Returned: 1, Seen: 1}, {Epoch: 1, Granted: 1 << 31},
	} {
		var wire [2 * ExtendedSize]byte
		n := h.Encode(wire[:])
		n += h.Encode(wire[n:])
		f.Add(wire[:n])
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		cfg := PoolConfig{Peers: 3, Credits: 8, Replies: 2, Config: Config{Window: 4, Initial: 2, RecallAfter: 2, Retry: 3}}
		p := newPool(t, cfg)
		s := newSender(t, 1, cfg)
		if err := errors.Join(p.Open(1, 1, 0), p.Open(2, 1, 0), s.Open(1)); err != nil {
			t.Fatal(err)
		}
		for now := range len(wire) {
			var h Header
			n, err := h.Decode(wire)
			if err != nil {
				return
			}
			var again [ExtendedSize]byte
			if m := h.Encode(again[:]); m != n || !bytes.Equal(again[:m], wire[:n]) {
				t.Fatalf("%x became %x", wire[:n], again[:m])
			}
			wire = wire[n:]
			hostile(t, p, s, &h, now)
		}
	})
}

func hostile(t *testing.T, p *Pool, s *Sender, h *Header, now int) {
	var v *ViolationError
	for _, err := range []error{
		p.Apply(1, h, time.Duration(now)), s.Apply(h, time.Duration(now)), p.Apply(2, &Header{Epoch: 1, Want: 1}, time.Duration(now)), p.Arrived(1, uint32(h.Epoch), time.Duration(now)),
	} {
		if err != nil && !errors.As(err, &v) && !errors.Is(err, ErrStale) {
			t.Fatal(err)
		}
	}
	if err := errors.Join(p.Check(), p.Reposted(1, time.Duration(now)), p.BeforeHandlers(), p.Check()); err != nil {
		t.Fatal(err)
	}
	p.Tick(time.Duration(now))
	if b := s.Balance(); b < 0 || b > 4 {
		t.Fatalf("a balance of %d credits", b)
	}
	for peer, ok := p.NextControl(); ok; peer, ok = p.NextControl() {
		p.Fill(peer, &Header{}, time.Duration(now))
	}
	if s.Asks(time.Duration(now)) {
		s.FillControl(&Header{}, time.Duration(now))
	}
}
