package ibv

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/verbs"
)

func sampleAddress() address {
	a := address{
		end: verbs.PathEnd{
			LinkLayer: verbs.LinkEthernet, GIDType: verbs.GIDTypeRoCEv2, ActiveMTU: 5, ActiveWidth: 2, ActiveSpeed: 32,
			GRHRequired: true, LID: 0x1234, PKeys: []uint16{0xffff, 0, 0x8001},
		},
		readAtomic: 16, lanes: 3, eager: 0x5678, psn: 0xabcdef, base: 0x7f0123456000, size: 1 << 30, rkey: 0xdeadbeef,
	}
	copy(a.end.GID[:], "0123456789abcdef")
	return a
}

func TestAddressSurvivesItsEncoding(t *testing.T) {
	for name, change := range map[string]func(*address){
		"as it is":          func(*address) {},
		"without P_Keys":    func(a *address) { a.end.PKeys = nil },
		"largest fields":    func(a *address) { a.psn, a.lanes, a.eager, a.size = psnMask, maxLanes, maxEager, 1<<64-1-a.base },
		"an empty segment":  func(a *address) { a.base, a.size = 0, 0 },
		"InfiniBand":        func(a *address) { a.end.LinkLayer, a.end.GIDType, a.end.GRHRequired = verbs.LinkInfiniBand, 0, false },
		"very many P_Keys":  func(a *address) { a.end.PKeys = slices.Repeat([]uint16{0x8001}, maxPKeys) },
		"no reads accepted": func(a *address) { a.readAtomic = 0 },
	} {
		want := sampleAddress()
		change(&want)
		got, err := decodeAddress(want.encode())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}

// Places of the wire format that the package comment gives.
func TestAddressLayoutIsTheOneWrittenDown(t *testing.T) {
	a := sampleAddress()
	b := a.encode()
	le := binary.LittleEndian
	for _, f := range []struct {
		name      string
		got, want uint64
	}{
		{"version", uint64(b[0]), 2}, {"link layer", uint64(b[1]), 2}, {"GID type", uint64(b[2]), 2}, {"MTU", uint64(b[3]), 5},
		{"width", uint64(b[4]), 2}, {"speed", uint64(b[5]), 32}, {"flags", uint64(b[6]), 1}, {"reads", uint64(b[7]), 16},
		{"LID", uint64(le.Uint16(b[8:])), 0x1234}, {"lanes", uint64(le.Uint16(b[10:])), 3}, {"PSN", uint64(le.Uint32(b[12:])), 0xabcdef},
		{"GID", uint64(b[16]), '0'}, {"base", le.Uint64(b[32:]), 0x7f0123456000}, {"size", le.Uint64(b[40:]), 1 << 30},
		{"rkey", uint64(le.Uint32(b[48:])), 0xdeadbeef}, {"peers at start", uint64(le.Uint16(b[52:])), 0x5678},
		{"P_Keys", uint64(le.Uint16(b[54:])), 3}, {"last P_Key", uint64(le.Uint16(b[60:])), 0x8001}, {"bytes", uint64(len(b)), 62},
	} {
		if f.got != f.want {
			t.Errorf("%s is %#x, want %#x", f.name, f.got, f.want)
		}
	}
}

// Empty places at the end are left out, and a table of the size that the IBTA allows is cut: no
// rank would read it.
func TestPKeyTablesAreCut(t *testing.T) {
	some, most := []uint16{0xffff, 0, 0x8001}, slices.Repeat([]uint16{0x8001}, 1<<16-1)
	for _, c := range []struct{ keys, want []uint16 }{{append(slices.Clone(some), make([]uint16, 100)...), some}, {most, most[:maxPKeys]}} {
		a := sampleAddress()
		a.end.PKeys = c.keys
		if got, err := decodeAddress(a.encode()); err != nil || !slices.Equal(got.end.PKeys, c.want) {
			t.Errorf("%d P_Keys became %d, %v", len(c.keys), len(got.end.PKeys), err)
		}
	}
}

func TestHostileAddressesAreRefusedWithAReason(t *testing.T) {
	sample := sampleAddress()
	good := sample.encode()
	with := func(change func(b []byte)) []byte { b := bytes.Clone(good); change(b); return b }
	le := binary.LittleEndian
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"nothing", nil, "empty"},
		{"another version", with(func(b []byte) { b[0] = 1 }), "version 1"},
		{"cut in the fixed part", good[:addrFixed-1], "55 bytes"},
		{"cut in the P_Keys", good[:len(good)-1], "P_Keys"},
		{"one byte more", append(bytes.Clone(good), 0), "P_Keys"},
		{"more P_Keys than it has", with(func(b []byte) { le.PutUint16(b[54:], 0xffff) }), "P_Keys"},
		{"PSN of 25 bits", with(func(b []byte) { le.PutUint32(b[12:], 1<<24) }), "24 bits"},
		{"segment that wraps around", with(func(b []byte) { le.PutUint64(b[40:], 1<<64-1) }), "wraps"},
		{"no lanes", with(func(b []byte) { le.PutUint16(b[10:], 0) }), "lanes"},
		{"more lanes than can be named", with(func(b []byte) { le.PutUint16(b[10:], maxLanes+1) }), "lanes"},
	} {
		if _, err := decodeAddress(c.b); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error about %q", c.name, err, c.want)
		}
	}
}

func FuzzDecodeAddress(f *testing.F) {
	a := sampleAddress()
	f.Add(a.encode())
	a.end.PKeys = nil
	f.Add(a.encode())
	f.Add([]byte{addrVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAddress(b)
		if err != nil {
			return
		}
		if a.psn > psnMask || a.lanes == 0 || a.base+a.size < a.base {
			t.Fatalf("accepted %+v", a)
		}
		again, err := decodeAddress(a.encode())
		if err != nil {
			t.Fatalf("what was accepted does not survive: %v", err)
		}
		for n := len(a.end.PKeys); n > 0 && a.end.PKeys[n-1] == 0; n-- {
			a.end.PKeys = a.end.PKeys[:n-1]
		}
		if !slices.Equal(again.end.PKeys, a.end.PKeys) {
			t.Fatalf("P_Keys %v became %v", a.end.PKeys, again.end.PKeys)
		}
		again.end.PKeys, a.end.PKeys = nil, nil
		if !reflect.DeepEqual(again, a) {
			t.Fatalf("%+v became %+v", a, again)
		}
	})
}

func TestHardwareRanksBeforeSoftware(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{nil, []string{}},
		{[]string{"rxe0", "mlx5_1", "siw0", "mlx5_0", "bnxt_re0"}, []string{"bnxt_re0", "mlx5_0", "mlx5_1", "rxe0", "siw0"}},
		{[]string{"rxe1", "rxe0"}, []string{"rxe0", "rxe1"}},
	} {
		var infos []verbs.DeviceInfo
		for _, n := range c.in {
			infos = append(infos, verbs.DeviceInfo{Name: n})
		}
		if got := ranked(infos); !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v, want %v", c.in, got, c.want)
		}
	}
}
