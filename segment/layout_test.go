package segment

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func mustPlace(t *testing.T, regions ...Region) Layout {
	t.Helper()
	l, err := Place(regions...)
	must(t, err)
	return l
}

func TestRegionsLieApartAndAligned(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var regions []Region
		for i := range rng.IntN(8) {
			r := Region{Name: string(rune('a' + i)), Size: 1 + rng.Uint64N(1<<20)}
			if rng.IntN(3) > 0 {
				r.Align = 1 << rng.IntN(18)
			}
			regions = append(regions, r)
		}
		l := mustPlace(t, regions...)
		end := uint64(0)
		for _, r := range regions {
			off, size, ok := l.find(r.Name)
			if !ok || size != r.Size || off < end || off%max(r.Align, 1) != 0 || r.Align == 0 && off%64 != 0 {
				t.Fatalf("%+v at %d with %d bytes, behind %d", r, off, size, end)
			}
			end = off + size
		}
		if u := l.UserOffset(); u < end || u%(64<<10) != 0 || u > end+64<<10 {
			t.Fatalf("the user's region at %d, behind %d", u, end)
		}
	}
}

func TestTheFirstRegionIsAtOffset0(t *testing.T) {
	l := mustPlace(t, Region{Name: "a", Size: 10}, Region{Name: "b", Size: 1, Align: 4096})
	m := mustMap(t, Config{Size: 5000, Layout: l})
	a, offA := m.Region("a")
	b, offB := m.Region("b")
	if offA != 0 || len(a) != 10 || cap(a) != 10 || offB != 4096 || len(b) != 1 || &b[0] != &m.Bytes()[4096] {
		t.Errorf("a has %d bytes at %d, b %d at %d", len(a), offA, len(b), offB)
	}
	if u := l.UserOffset(); u != 64<<10 || len(m.User()) != 5000 || cap(m.User()) != 5000 || &m.User()[0] != &m.Bytes()[u] {
		t.Errorf("%d bytes of the user's at %d", len(m.User()), u)
	}
	if bytes, _ := m.Region("c"); bytes != nil {
		t.Error("there is a region that nobody asked for")
	}
}

func TestAMistakenRegionIsRefused(t *testing.T) {
	for what, regions := range map[string][]Region{
		"no name":      {{Size: 1}},
		"user's":       {{Name: User, Size: 1}},
		"twice":        {{Name: "a", Size: 1}, {Name: "a", Size: 1}},
		"no bytes":     {{Name: "a"}},
		"alignment 3":  {{Name: "a", Size: 1, Align: 3}},
		"alignment 2T": {{Name: "a", Size: 1, Align: 1 << 41}},
	} {
		if _, err := Place(regions...); err == nil || errors.As(err, new(*LimitError)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, regions := range [][]Region{
		{{Name: "a", Size: math.MaxUint64}},
		{{Name: "a", Size: math.MaxInt}},
		{{Name: "a", Size: 1 << 62}, {Name: "b", Size: 1 << 62}},
		{{Name: "a", Size: math.MaxInt - 63}, {Name: "b", Size: 1, Align: 1 << 40}},
	} {
		limit := (*LimitError)(nil)
		if _, err := Place(regions...); !errors.As(err, &limit) || len(limit.Regions) != len(regions) {
			t.Errorf("%v: %v", regions, err)
		}
	}
}

func TestADifferenceOfLayoutsIsNamed(t *testing.T) {
	a := Region{Name: "a", Size: 10}
	l := mustPlace(t, a, Region{Name: "b", Size: 20})
	for what, other := range map[string]Layout{
		`"b" at 64: 30 bytes`:     mustPlace(t, a, Region{Name: "b", Size: 30}),
		"aligned to 128":          mustPlace(t, a, Region{Name: "b", Size: 20, Align: 128}),
		`"c" at 64`:               mustPlace(t, a, Region{Name: "c", Size: 20}),
		"the user's at 65536":     mustPlace(t, a),
		`"c" at 128: 70000 bytes`: mustPlace(t, a, Region{Name: "b", Size: 20}, Region{Name: "c", Size: 70000}),
	} {
		if _, theirs := FirstDifference(l.String(), other.String()); !strings.Contains(theirs, what) {
			t.Errorf("%s: %q", what, theirs)
		}
		if other.Hash() == l.Hash() {
			t.Errorf("%s: equal hashes", what)
		}
	}
	if mine, theirs := FirstDifference(l.String(), l.String()+"\nmore"); mine != "nothing" || theirs != "more" {
		t.Errorf("%q, %q", mine, theirs)
	}
}
