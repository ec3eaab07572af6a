package am

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ibconduit/conduit/internal/credit"
)

const testTable = 0xFEEDBEEF

// random is a message that a correct rank could send.
func random(rng *rand.Rand) (h head, payload []byte, args []uint64) {
	h = head{kind: kind(1 + rng.IntN(int(kinds)-1)), credit: credit.Header{Epoch: connection, Granted: rng.Uint32(), Want: uint16(rng.IntN(100)), Answer: rng.IntN(2) == 0}}
	if rng.IntN(2) == 0 {
		h.credit.Extended, h.credit.Recall, h.credit.Returned, h.credit.Seen = true, rng.Uint32(), rng.Uint32(), rng.Uint32()
	}
	if h.kind == request || h.kind == reply {
		h.cat, h.nargs = category(rng.IntN(3)), uint8(rng.IntN(MaxArgs+1))
	}
	switch h.kind {
	case request:
		h.handler = uint16(rng.Uint32())
		if h.wants = rng.IntN(2) == 0; h.wants {
			h.token = 1 + rng.Uint64()>>1
		}
	case reply:
		h.token = 1 + rng.Uint64()>>1
	case failure:
		h.token, h.cat, h.nargs = 1+rng.Uint64()>>1, medium, 1
	case announce:
		h.token, h.handler, h.nargs = 1+rng.Uint64()>>1, uint16(rng.Uint32()), uint8(1+rng.IntN(MaxArgs))
	case grant:
		h.token, h.nargs = 1+rng.Uint64()>>1, 2
	case refusal:
		h.token, h.cat = 1+rng.Uint64()>>1, medium
	case data:
		h.token, h.cat = 1+rng.Uint64()>>1, long
	case withdraw:
		h.token = 1 + rng.Uint64()>>1
	}
	if h.cat == medium {
		payload = make([]byte, rng.IntN(100))
		for i := range payload {
			payload[i] = byte(rng.Uint32())
		}
		h.length = uint32(len(payload))
	} else if h.cat == long {
		h.length, h.off = rng.Uint32(), rng.Uint64()>>1
	}
	for i := range int(h.nargs) {
		h.args[i] = rng.Uint64()
	}
	return h, payload, h.args[:h.nargs]
}

func encoded(h *head, payload []byte, args []uint64) []byte {
	b := bytes.Repeat([]byte{0xCC}, h.size())
	if h.cat == medium {
		copy(b[headSize:], payload)
	}
	h.encode(b, testTable, args)
	return b
}

func TestMessagesComeOutAsTheyWentIn(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		h, payload, _ := random(rng)
		b := encoded(&h, payload, h.args[:h.nargs])
		var got head
		p, err := got.decode(b, testTable)
		if err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		if got != h || !bytes.Equal(p, payload) {
			t.Fatalf("%+v with %d bytes came out as %+v with %d", h, len(payload), got, len(p))
		}
	}
}

// Every single wrong bit of the head is noticed, or stands for another message that
// would be encoded like that.
func TestNoByteOfAMessageIsWithoutMeaning(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		h, payload, _ := random(rng)
		b := encoded(&h, payload, h.args[:h.nargs])
		for i := range len(b) * 8 {
			b[i/8] ^= 1 << (i % 8)
			canonical(t, b)
			b[i/8] ^= 1 << (i % 8)
		}
		for n := range len(b) {
			var got head
			if _, err := got.decode(b[:n], testTable); err == nil {
				t.Fatalf("%d of %d bytes were accepted", n, len(b))
			}
		}
	}
}

func canonical(t *testing.T, b []byte) {
	t.Helper()
	var h head
	p, err := h.decode(b, testTable)
	if err != nil {
		return
	}
	if again := encoded(&h, p, h.args[:h.nargs]); !bytes.Equal(again, b) {
		t.Fatalf("%x was accepted as %+v, which is %x", b, h, again)
	}
}

func TestEveryFieldIsChecked(t *testing.T) {
	good := head{kind: request, cat: medium, wants: true, token: 1, length: 8, nargs: 2, credit: credit.Header{Epoch: connection}}
	payload := make([]byte, 8)
	for _, c := range []struct {
		name string
		bad  func(b []byte) []byte
	}{
		{"version", func(b []byte) []byte { b[0]++; return b }},
		{"kind 0", func(b []byte) []byte { b[1] = 0; return b }},
		{"kind too large", func(b []byte) []byte { b[1] = byte(kinds); return b }},
		{"category", func(b []byte) []byte { b[2] |= 3; return b }},
		{"flags", func(b []byte) []byte { b[2] |= 0x80; return b }},
		{"arguments", func(b []byte) []byte { b[3] = MaxArgs + 1; return b }},
		{"unused bytes", func(b []byte) []byte { b[6] = 1; return b }},
		{"unused end of the head", func(b []byte) []byte { b[headSize-1] = 1; return b }},
		{"a reply is wanted without a token", func(b []byte) []byte { clear(b[8:16]); return b }},
		{"payload longer than the message", func(b []byte) []byte { b[18] = 1; return b }},
		{"payload length off by one", func(b []byte) []byte { b[16]++; return b }},
		{"table", func(b []byte) []byte { b[20]++; return b }},
		{"connection", func(b []byte) []byte { b[creditAt+4]++; return b }},
		{"cut off", func(b []byte) []byte { return b[:len(b)-1] }},
		{"too long", func(b []byte) []byte { return append(b, 0) }},
		{"empty", func([]byte) []byte { return nil }},
	} {
		var h head
		if _, err := h.decode(encoded(&good, payload, []uint64{1, 2}), testTable); err != nil {
			t.Fatal(err)
		}
		_, err := h.decode(c.bad(encoded(&good, payload, []uint64{1, 2})), testTable)
		var e *MessageError
		if err == nil || !errors.As(err, &e) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 40 {
		h, payload, _ := random(rng)
		f.Add(encoded(&h, payload, h.args[:h.nargs]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 24 { // or the fuzzer would search for four bytes for hours
			b[20], b[21], b[22], b[23] = 0xEF, 0xBE, 0xED, 0xFE
		}
		canonical(t, b)
	})
}

func FuzzCheckTable(f *testing.F) {
	a, b := NewTable(), NewTable()
	for _, name := range []string{"get", "put", "sum"} {
		a.Handle(name, func(*Call) {})
		b.Handle(name, func(*Call) {})
	}
	b.Handle("swap", func(*Call) {})
	f.Add(a.Encode())
	f.Add(b.Encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, there []byte) {
		if err := a.Check(1, there); err == nil && !bytes.Equal(there[6:], a.Encode()[6:]) {
			t.Fatalf("%q was taken for the same table", there)
		}
	})
}
