package bootstrap

import (
	"errors"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/ranklist"

	"github.com/google/go-cmp/cmp"
)

func someHeader(rank, size int) header {
	return header{
		version: wireVersion, rank: uint32(rank), size: uint32(size), pid: 4711, pageSize: 4096,
		build: "b1", job: "j1", host: "n1", hostID: "n1 boot",
	}
}

func TestHeaderSurvivesItsEncoding(t *testing.T) {
	h := someHeader(3, 8)
	h.bigEndian = true
	var got header
	if err := decode(encode(nil, &h), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(h, got, cmp.AllowUnexported(header{})); d != "" {
		t.Error(d)
	}
}

func TestHeaderOfAnotherVersionStillTellsItsRank(t *testing.T) {
	h := someHeader(3, 8)
	h.version = 9
	var got header
	err := decode(append(encode(nil, &h), "what version 9 adds"...), &got)
	if err != nil || got.version != 9 || got.rank != 3 || got.size != 8 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Every field that must agree is compared: change it on one rank of five and
// the message names field, values and ranks.
func TestHeaderComparisonNamesFieldValuesAndRanks(t *testing.T) {
	for _, c := range []struct {
		change func(h *header)
		words  string
	}{
		{func(h *header) { h.version = 3 }, "wire version is 2 on ranks 0,1,3,4, 3 on rank 2 (remedy: start the same program file everywhere)"},
		{func(h *header) { h.build = "b2" }, `build is "b1" on ranks 0,1,3,4, "b2" on rank 2 (remedy: start the same program file everywhere)`},
		{func(h *header) { h.job = "j2" }, `job is "j1" on ranks 0,1,3,4, "j2" on rank 2 (remedy: give each job an address of its own`},
		{func(h *header) { h.size = 6 }, "size is 5 on ranks 0,1,3,4, 6 on rank 2"},
		{func(h *header) { h.pageSize = 65536 }, "page size is 4096 on ranks 0,1,3,4, 65536 on rank 2"},
		{func(h *header) { h.bigEndian = true }, "byte order is little-endian on ranks 0,1,3,4, big-endian on rank 2"},
		{func(h *header) { h.rank = 1 }, "rank is 1 on rank 2"},
	} {
		headers := make([]header, 5)
		for r := range headers {
			headers[r] = someHeader(r, 5)
		}
		if err := compare(headers); err != nil {
			t.Fatalf("equal headers: %v", err)
		}
		c.change(&headers[2])
		err := compare(headers)
		var m *MismatchError
		if !errors.As(err, &m) || len(m.Differences) != 1 {
			t.Errorf("want %q: %v", c.words, err)
			continue
		}
		if !strings.Contains(err.Error(), c.words) {
			t.Errorf("%q lacks %q", err, c.words)
		}
	}
}

func TestMixedBuildsAreToldToEveryRank(t *testing.T) {
	ctx := bounded(t)
	ranks := NewGroup(4)
	defer closeAll(ranks)
	ranks[3].(*job).opts.Build = "other"
	for r, err := range onAll(ranks, func(b Bootstrap) error {
		_, err := b.Exchange(ctx, nil)
		return err
	}) {
		var m *MismatchError
		if !errors.As(err, &m) || m.Differences[0].Field != "build" || !strings.Contains(err.Error(), `"other" on rank 3`) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	// And it is final.
	for r, err := range onAll(ranks, func(b Bootstrap) error { return b.Barrier(ctx) }) {
		if !errors.As(err, new(*MismatchError)) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestLocalPlaceIsFoundInTheHeaders(t *testing.T) {
	ctx := bounded(t)
	ranks := NewGroup(3)
	defer closeAll(ranks)
	for _, b := range ranks { // as under a launcher that does not tell
		b.(*job).ident.localKnown = false
	}
	if _, _, ok := ranks[1].Local(); ok {
		t.Error("known before the first Exchange")
	}
	noErrors(t, onAll(ranks, func(b Bootstrap) error { _, err := b.Exchange(ctx, nil); return err }))
	if r, n, ok := ranks[1].Local(); r != 1 || n != 3 || !ok {
		t.Errorf("%d of %d, %v", r, n, ok)
	}
	if r, n := localPlace([]string{"a", "b", "a", "c", "a"}, 2); r != 1 || n != 3 {
		t.Errorf("rank 2 of a,b,a,c,a: %d of %d", r, n)
	}
}

func TestSealFindsEveryDamage(t *testing.T) {
	good := seal(3, []byte("head"), []byte("blob"))
	head, blob, err := unseal(3, good)
	if err != nil || string(head) != "head" || string(blob) != "blob" {
		t.Fatalf("%q %q %v", head, blob, err)
	}
	if _, _, err := unseal(4, good); !errors.Is(err, ErrMisuse) {
		t.Errorf("blob of another Exchange: %v", err)
	}
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x10
		if _, _, err := unseal(3, bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if _, _, err := unseal(3, good[:i]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut to %d: %v", i, err)
		}
	}
}

func TestRankListIsShort(t *testing.T) {
	for want, ranks := range map[string][]int{
		"rank 3":           {3},
		"ranks 0,1":        {1, 0},
		"ranks 0-2,5":      {5, 2, 1, 0},
		"ranks 1,3,5-7,11": {1, 3, 5, 6, 7, 11},
	} {
		if got := ranklist.Text(ranks); got != want {
			t.Errorf("%v: %q, want %q", ranks, got, want)
		}
	}
	var odd []int
	for r := range 500 {
		odd = append(odd, 2*r)
	}
	if s := ranklist.Text(odd); len(s) > 200 || !strings.Contains(s, "500 in all") {
		t.Errorf("%q", s)
	}
}
