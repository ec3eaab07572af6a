package spin

import (
	"encoding/binary"
	"runtime"
	"testing"
)

func rank(host string, words ...uint64) []byte {
	return inGroup(host, 0, words...)
}

func inGroup(host string, group uint64, words ...uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte(host), group)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

func crowded(all [][]byte, me int, quota float64) bool { return PerProcessor(all, me, quota) > 1 }

func TestWhoSharesProcessorsIsCounted(t *testing.T) {
	const a, b = "host of a", "host of b"
	all := func(n int, r []byte) (list [][]byte) {
		for range n {
			list = append(list, r)
		}
		return list
	}
	for name, c := range map[string]struct {
		all   [][]byte
		quota float64
		want  bool
	}{
		"two on two":             {all: all(2, rank(a[:8], 3))},
		"four on two":            {all: all(4, rank(a[:8], 3)), want: true},
		"four of two hosts":      {all: append(all(2, rank(a[:8], 3)), all(2, rank(b[1:], 3))...)},
		"each has its own":       {all: [][]byte{rank(a[:8], 1), rank(a[:8], 2), rank(a[:8], 0, 1)}},
		"two have one":           {all: [][]byte{rank(a[:8], 1), rank(a[:8], 1), rank(a[:8], 2)}, want: true},
		"others have one":        {all: [][]byte{rank(a[:8], 2), rank(a[:8], 1), rank(a[:8], 1)}},
		"the other has more":     {all: [][]byte{rank(a[:8], 1), rank(a[:8], 7, 1)}},
		"nothing is known":       {all: all(9, rank(a[:8]))},
		"less than a host":       {all: all(9, []byte("x"))},
		"less than a word":       {all: append(all(2, rank(a[:8], 1)), []byte("host of \x01")), want: true},
		"more words than can be": {all: all(2, rank(a[:8], make([]uint64, 2*maxWords)...))},
		"alone":                  {all: all(1, rank(a[:8], 1))},
		"alone with a half":      {all: all(1, rank(a[:8], 3)), quota: 0.5, want: true},
		"two with a quota of 2":  {all: all(2, rank(a[:8], 15)), quota: 2},
		"each has a quota of 1":  {all: [][]byte{inGroup(a[:8], 7, 15), inGroup(a[:8], 8, 15)}, quota: 1},
		"two have a quota of 1":  {all: [][]byte{inGroup(a[:8], 7, 15), inGroup(a[:8], 7, 15)}, quota: 1, want: true},
		"three with less":        {all: all(3, rank(a[:8], 15)), quota: 2.5, want: true},
	} {
		if got := crowded(c.all, 0, c.quota); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestProcessorsAreThoseOfThisProcess(t *testing.T) {
	mine := Processors()
	all := [][]byte{mine}
	for range runtime.NumCPU() {
		if runtime.GOOS == "linux" && crowded(all, 0, 0) {
			t.Errorf("%d processes are too many for %d processors", len(all), runtime.NumCPU())
		}
		all = append(all, mine)
	}
	if runtime.GOOS == "linux" && !crowded(all, 0, 0) {
		t.Errorf("%d processes are not too many for %d processors", len(all), runtime.NumCPU())
	}
}

func FuzzCrowded(f *testing.F) {
	f.Add(rank("a host 1", 3), rank("a host 1", 1, 2))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if crowded([][]byte{a, b}, 0, 0) != crowded([][]byte{b, a}, 1, 0) {
			t.Errorf("the order of %x and %x matters", a, b)
		}
	})
}

// Containers of one machine differ in their names, and share its processors.
func TestContainersShareProcessors(t *testing.T) {
	boot := []byte("0d2f5e1c\n")
	if a, b := machine(boot, "pod-0"), machine(boot, "pod-1"); !crowded([][]byte{append(a, rank("", 1)...), append(b, rank("", 1)...)}, 0, 0) {
		t.Error("two ranks on one processor of one machine are not crowded")
	}
	if a, b := machine(nil, "host-0"), machine(nil, "host-1"); crowded([][]byte{append(a, rank("", 1)...), append(b, rank("", 1)...)}, 0, 0) {
		t.Error("ranks of two machines are crowded")
	}
}

func TestRanksOfAProcessorAreCounted(t *testing.T) {
	mine := rank("a host 1", 3) // two processors
	for _, c := range []struct {
		ranks int
		quota float64
		want  int
	}{{1, 0, 1}, {2, 0, 1}, {3, 0, 2}, {4, 0, 2}, {16, 0, 8}, {2, 1, 2}, {1, 0.5, 2}} {
		var all [][]byte
		for range c.ranks {
			all = append(all, mine)
		}
		if got := PerProcessor(all, 0, c.quota); got != c.want {
			t.Errorf("%d ranks, quota %v: %d a processor, want %d", c.ranks, c.quota, got, c.want)
		}
	}
}
