package ibv

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"

	"github.com/ibconduit/conduit/verbs"
)

var sampleDatagrams = []datagram{
	{kind: dgNote, endpoint: 3, from: 1, to: 2, note: []byte("a note")},
	{kind: dgNote, from: 1, to: 2, note: []byte{}},
	{kind: dgNote, from: 1, to: 2, note: bytes.Repeat([]byte{7}, maxNote)},
	{kind: dgRequest, endpoint: 1<<16 - 1, from: 1<<32 - 1, to: 5, epoch: 1, qpn: psnMask, psn: psnMask, slotSize: 4096},
	{kind: dgReply, from: 1, to: 5, epoch: 1<<32 - 1, qpn: 1, psn: 0, slotSize: 1},
	{kind: dgReady, from: 1, to: 5, epoch: 9},
	{kind: dgRefusal, from: 1, to: 5, epoch: 9, slotSize: 77},
	{kind: dgRefusal, endpoint: laneBit | 3, from: 1, to: 5, epoch: 9, errno: 12},
	{kind: dgClose, from: 1, to: 5, epoch: 9, attempt: 2, sent: 1<<32 - 1, arrived: 3},
	{kind: dgClosed, from: 1, to: 5, epoch: 9, attempt: 2},
	{kind: dgStay, from: 1, to: 5, epoch: 9, attempt: 2},
}

func encoded(d datagram) []byte {
	b := bytes.Repeat([]byte{0xEE}, datagramMax)
	return b[:d.encode(b)]
}

func TestDatagramsSurviveTheWire(t *testing.T) {
	for _, d := range sampleDatagrams {
		got, err := decodeDatagram(encoded(d))
		if err != nil || !reflect.DeepEqual(got, d) {
			t.Errorf("%+v became %+v, %v", d, got, err)
		}
	}
}

// Two binaries of one version must agree to the byte.
func TestDatagramsHaveTheDocumentedLayout(t *testing.T) {
	b := encoded(datagram{kind: dgRequest, endpoint: 0x0102, from: 0x03040506, to: 0x0708090a, epoch: 0x0b0c0d0e, qpn: 0x0f1011, psn: 0x121314, slotSize: 0x15161718})
	want := []byte{1, 2, 2, 1, 6, 5, 4, 3, 10, 9, 8, 7, 14, 13, 12, 11, 0x11, 0x10, 0x0f, 0, 0x14, 0x13, 0x12, 0, 0x18, 0x17, 0x16, 0x15, 0, 0, 0, 0}
	if !bytes.Equal(b, want) {
		t.Errorf("request\n% x, want\n% x", b, want)
	}
	b = encoded(datagram{kind: dgClose, epoch: 1, attempt: 2, sent: 3, arrived: 4})
	if want := []byte{2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0}; b[1] != 6 || !bytes.Equal(b[16:], want) {
		t.Errorf("close\n% x, want the end\n% x", b, want)
	}
}

func TestHostileDatagramsAreRefused(t *testing.T) {
	request := encoded(sampleDatagrams[3])
	with := func(at int, b ...byte) []byte {
		c := bytes.Clone(request)
		copy(c[at:], b)
		return c
	}
	for name, b := range map[string][]byte{
		"nothing":                    nil,
		"only a header":              request[:datagramHeader],
		"a short header":             request[:datagramHeader-1],
		"cut":                        request[:len(request)-1],
		"too long":                   append(bytes.Clone(request), 0),
		"longer than any":            make([]byte, datagramMax+1),
		"another version":            with(0, datagramVersion+1),
		"kind 0":                     with(1, 0),
		"a kind too many":            with(1, byte(dgEnd)),
		"epoch 0":                    with(12, 0, 0, 0, 0),
		"queue pair 0":               with(16, 0, 0, 0, 0),
		"a queue pair of 25 bits":    with(16, 0, 0, 0, 1),
		"a sequence number too long": with(20, 0, 0, 0, 1),
	} {
		if d, err := decodeDatagram(b); err == nil {
			t.Errorf("%s: gave %+v", name, d)
		}
	}
}

func FuzzDatagram(f *testing.F) {
	for _, d := range sampleDatagrams {
		f.Add(encoded(d))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeDatagram(b)
		if err != nil {
			return
		}
		if d.qpn > psnMask || d.psn > psnMask || len(d.note) > maxNote || d.kind != dgNote && d.epoch == 0 {
			t.Fatalf("accepted %+v", d)
		}
		again, err := decodeDatagram(encoded(d))
		if err != nil || !reflect.DeepEqual(again, d) {
			t.Fatalf("%+v became %+v, %v", d, again, err)
		}
	})
}

func TestDatagramsOfOthersAreRecognized(t *testing.T) {
	v4 := func(a string) []byte { // an IPv4 header behind 20 bytes that mean nothing
		b := bytes.Repeat([]byte{0xEE}, grhBytes)
		b[20] = 0x45
		x := netip.MustParseAddr(a).As4()
		copy(b[32:], x[:])
		return b
	}
	grh := func(a string) []byte {
		b := bytes.Repeat([]byte{0x60}, grhBytes)
		x := netip.MustParseAddr(a).As16()
		copy(b[8:], x[:])
		return b
	}
	end := func(link verbs.LinkLayer, typ verbs.GIDType, a string, lid uint16) *verbs.PathEnd {
		return &verbs.PathEnd{LinkLayer: link, GIDType: typ, GID: netip.MustParseAddr(a).As16(), LID: lid}
	}
	eth, ib := verbs.LinkEthernet, verbs.LinkInfiniBand
	for _, c := range []struct {
		name    string
		end     *verbs.PathEnd
		grh     []byte
		lid     uint16
		withGRH bool
		want    bool
	}{
		{"RoCEv2 over IPv4", end(eth, verbs.GIDTypeRoCEv2, "10.0.0.1", 0), v4("10.0.0.1"), 0, false, true},
		{"another IPv4 address", end(eth, verbs.GIDTypeRoCEv2, "10.0.0.1", 0), v4("10.0.0.2"), 0, false, false},
		{"IPv6 where IPv4 was published", end(eth, verbs.GIDTypeRoCEv2, "10.0.0.1", 0), grh("fe80::1"), 0, true, false},
		{"RoCEv2 over IPv6", end(eth, verbs.GIDTypeRoCEv2, "fe80::1", 0), grh("fe80::1"), 0, false, true},
		{"another IPv6 address", end(eth, verbs.GIDTypeRoCEv2, "fe80::1", 0), grh("fe80::2"), 0, true, false},
		{"RoCEv1", end(eth, verbs.GIDTypeRoCEv1, "fe80::1", 0), grh("fe80::1"), 0, true, true},
		{"a LID", end(ib, verbs.GIDTypeIB, "fe80::1", 7), make([]byte, grhBytes), 7, false, true},
		{"another LID", end(ib, verbs.GIDTypeIB, "fe80::1", 7), grh("fe80::1"), 8, false, false},
		{"a GRH on InfiniBand", end(ib, verbs.GIDTypeIB, "fe80::1", 7), grh("fe80::1"), 8, true, true},
		{"another GRH on InfiniBand", end(ib, verbs.GIDTypeIB, "fe80::1", 7), grh("fe80::2"), 7, true, false},
	} {
		if got := sentFrom(c.end, c.grh, c.lid, c.withGRH); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
