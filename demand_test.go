package conduit

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/segment"
)

const group, parent, hugePool = 7, 8, 9

// pools are those of a rank in a group and the one above it, on a machine with huge pages.
func poolsOf(group, room uint64) []segment.Pool {
	return []segment.Pool{
		{ID: hugePool, Kind: segment.PoolHuge, Room: 400},
		{ID: group, Kind: segment.PoolGroup, Room: room, Path: "/job"},
		{ID: parent, Kind: segment.PoolGroup, Room: 1000, Path: "/"},
	}
}

func demanding(group uint64, c claim) demand {
	return demand{pools: poolsOf(group, 300), claim: [2]claim{c, {firm: true}}}
}

func TestRanksOfAHostCountTogether(t *testing.T) {
	for _, c := range []struct {
		name  string
		ranks []demand
		err   string // parts of the error, in order; empty: none
		warns int
		base  []bool
	}{
		{"they fit", []demand{demanding(group, claim{base: 150, firm: true}), demanding(group, claim{base: 150, firm: true})}, "", 0, nil},
		{"too large together", []demand{demanding(group, claim{base: 200, firm: true}), demanding(group, claim{base: 101, firm: true})},
			"ranks 0,1 together: |301 bytes asked for|segments 301|limit of /job allows 300|batch system", 0, nil},
		{"in two groups", []demand{demanding(group, claim{base: 200, firm: true}), demanding(77, claim{base: 200, firm: true})}, "", 0, nil},
		{"too large for the group above", slices.Repeat([]demand{demanding(1, claim{base: 260, firm: true}), demanding(2, claim{base: 260, firm: true})}, 2),
			"ranks 0,2 together: |520 bytes|ranks 0-3 together|1040 bytes|limit of / allows 1000|ranks 1,3 together", 0, nil},
		{"of default size", []demand{demanding(group, claim{base: 200}), demanding(group, claim{base: 200})}, "", 1, nil},
		{"one of default size", []demand{demanding(group, claim{base: 200}), demanding(group, claim{base: 301, firm: true})}, "501 bytes|allows 300", 0, nil},
		{"budgets", []demand{demanding(group, claim{base: 100, beside: 90, firm: true}), demanding(group, claim{base: 100, beside: 90, firm: true})},
			"380 bytes|segments 200, budgets and pinned buffers 180|allows 300", 0, nil},
		{"budgets beside the default size", []demand{demanding(group, claim{base: 10, beside: 160}), demanding(group, claim{base: 10, beside: 160})}, "340 bytes|allows 300", 0, nil},
		{"huge pages for one", []demand{demanding(group, claim{base: 200, huge: 256, firm: true}), demanding(group, claim{base: 200, huge: 256, firm: true})}, "", 0, []bool{false, true}},
		{"those that need huge pages first", []demand{demanding(group, claim{base: 200, huge: 256, firm: true}), demanding(group, claim{huge: 256, firm: true})}, "", 0, []bool{true, false}},
		{"huge pages for none", []demand{demanding(group, claim{huge: 256, firm: true}), demanding(group, claim{huge: 256, firm: true})},
			"ranks 0,1 together|512 bytes|pool of huge pages allows 400|nr_hugepages", 0, nil},
	} {
		v := share(c.ranks, 0)
		if c.base == nil {
			c.base = make([]bool, len(c.ranks))
		}
		if !slices.Equal(v.base, c.base) || len(v.warnings) != c.warns || (v.err == nil) != (c.err == "") {
			t.Errorf("%s: %+v", c.name, v)
			continue
		}
		if c.err == "" {
			continue
		}
		for rest, parts := v.err.Error(), strings.Split(c.err, "|"); len(parts) > 0; parts = parts[1:] {
			_, after, ok := strings.Cut(rest, parts[0])
			if rest = after; !ok {
				t.Errorf("%s: no %q in its place: %v", c.name, parts[0], v.err)
			}
		}
		if !errors.As(v.err, new(*segment.LimitError)) {
			t.Errorf("%s: %v is no *segment.LimitError", c.name, v.err)
		}
	}
}

func TestRanksThatAreShortAreNamed(t *testing.T) {
	short := func(why string) demand { return demand{claim: [2]claim{{}, {refused: why}}} }
	all := []demand{short("A"), short(""), short("B"), short("A")}
	own := errors.New("A")
	err := refusals(all, 1, 3, own)
	if want := "ranks 0,3 cannot take part: A\nrank 2 cannot take part: B"; err == nil || err.Error() != want || !errors.Is(err, own) {
		t.Errorf("%v, want %s", err, want)
	}
	if err := refusals(all, 0, 3, nil); err != nil {
		t.Errorf("without verbs: %v", err)
	}
	if err := refusals([]demand{short("A")}, 1, 0, own); !errors.Is(err, own) || err.Error() != "A" {
		t.Errorf("a job of one rank: %v", err)
	}
}

func TestDemandsTravelUnchanged(t *testing.T) {
	d := demand{verbs: true, pools: poolsOf(group, 1<<40), claim: [2]claim{{huge: 1, base: 2, beside: 3, firm: true}, {refused: "no room"}}}
	b := d.encode()
	got, err := decodeDemand(b)
	if err != nil || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v, %v", got, err)
	}
	for n := range b {
		if _, err := decodeDemand(b[:n]); err == nil {
			t.Errorf("%d of %d bytes were accepted", n, len(b))
		}
	}
	if _, err := decodeDemand(append(bytes.Clone(b), 0)); err == nil {
		t.Error("a byte too many was accepted")
	}
}

func FuzzDemand(f *testing.F) {
	d := demand{pools: poolsOf(group, 1)}
	f.Add(d.encode())
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := decodeDemand(b); err == nil {
			share([]demand{d, d}, 1)
		}
	})
}
