package ibv

import (
	"bytes"
	"reflect"
	"testing"
	"unsafe"
)

func sampleTable() table {
	return table{qkey: 0x7fffffff, listener: 9, endpoints: []uint32{psnMask, 0}, lanes: [][]uint32{{1, 2, psnMask}, {4, 0, 6}}}
}

func TestTablesSurviveTheWire(t *testing.T) {
	want := sampleTable()
	got, err := decodeTable(want.encode(), 2, 2, 3)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v became %+v, %v", want, got, err)
	}
	b := (&table{qkey: 0x04030201, listener: 0x070605, endpoints: []uint32{0x0a0908}, lanes: [][]uint32{{0x0d0c0b}}}).encode()
	if want := []byte{tableVersion, 1, 2, 3, 4, 5, 6, 7, 0, 8, 9, 10, 0, 11, 12, 13, 0}; !bytes.Equal(b, want) {
		t.Errorf("% x, want % x", b, want)
	}
}

func TestHostileTablesAreRefused(t *testing.T) {
	sample := sampleTable()
	good := sample.encode()
	with := func(change func(t *table)) []byte { x := sampleTable(); change(&x); return x.encode() }
	for name, b := range map[string][]byte{
		"nothing":                    nil,
		"only a version":             {tableVersion},
		"another version":            append([]byte{tableVersion + 1}, good[1:]...),
		"cut":                        good[:len(good)-1],
		"a number more":              append(bytes.Clone(good), 1, 0, 0, 0),
		"no endpoints":               with(func(t *table) { t.endpoints = nil }),
		"a lane too few":             with(func(t *table) { t.lanes = t.lanes[:1] }),
		"a listener of 25 bits":      with(func(t *table) { t.listener = 1 << 24 }),
		"an endpoint of 25 bits":     with(func(t *table) { t.endpoints[1] = 1 << 24 }),
		"a lane's number of 25 bits": with(func(t *table) { t.lanes[1][2] = 1 << 24 }),
	} {
		if got, err := decodeTable(b, 2, 2, 3); err == nil {
			t.Errorf("%s: gave %+v", name, got)
		}
	}
}

func FuzzTable(f *testing.F) {
	sample := sampleTable()
	f.Add(sample.encode(), 2, 2, 3)
	f.Fuzz(func(t *testing.T, b []byte, endpoints, lanes, near int) {
		endpoints, lanes, near = endpoints&0xff, 1+lanes&0xff, 1+near&0xff // the own figures, never the wire's
		got, err := decodeTable(b, endpoints, lanes, near)
		if err == nil && !bytes.Equal(got.encode(), b) {
			t.Fatalf("% x became % x", b, got.encode())
		}
	})
}

// Of two ranks each is near to the other, or neither is, and each finds itself in the other's list.
func TestNearnessIsMutual(t *testing.T) {
	for size := 1; size <= 12; size++ {
		for eager := 0; eager <= size+1; eager++ {
			g := newNeighbors(size, eager)
			if g.count > eager+1 && !g.all() || g.all() != (g.count == size) {
				t.Errorf("%d near ranks of %d where %d are asked for", g.count-1, size, eager)
			}
			for a := range size {
				near := 0
				for b := range size {
					there := g.place(a, b)
					if (there < 0) != (g.place(b, a) < 0) {
						t.Errorf("size %d, %d near: one of %d and %d is not near", size, eager, a, b)
					}
					if there >= 0 {
						near++
						if g.at(a, there) != b {
							t.Errorf("size %d, %d near: place %d of rank %d is of rank %d, not of %d", size, eager, there, a, g.at(a, there), b)
						}
					}
				}
				if near != g.count || g.place(a, a) < 0 {
					t.Errorf("size %d, %d near: rank %d has %d, itself: %d", size, eager, a, near, g.place(a, a))
				}
			}
		}
	}
}

func TestAnAddressTakes64Bytes(t *testing.T) {
	if n := unsafe.Sizeof(remote{}); n > 64 {
		t.Errorf("%d bytes for each rank of the job", n)
	}
}

func TestAddressesAreKeptWhole(t *testing.T) {
	a, b := sampleAddress(), sampleAddress()
	b.end.PKeys, b.end.GRHRequired = []uint16{1}, false
	all := newRemotes([]address{a, {}, b, a})
	for i, want := range []address{a, b, a} {
		got := &all[[]int{0, 2, 3}[i]]
		if !got.served() || !reflect.DeepEqual(got.end(), want.end) || got.base != want.base || got.size != want.size || got.rkey != want.rkey || got.readAtomic != want.readAtomic {
			t.Errorf("%+v became %+v", want, got)
		}
	}
	if all[1].served() || all[0].pkeys != all[3].pkeys {
		t.Errorf("a rank without an address is served: %v; equal P_Keys are kept twice: %v", all[1].served(), all[0].pkeys != all[3].pkeys)
	}
}
