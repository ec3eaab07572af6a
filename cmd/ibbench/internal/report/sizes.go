package report

import (
	"fmt"
	"math"
	"strings"
)

// Sizes are what lines and pages of a cache cost on a network: the latency of gets of their sizes.
type Sizes struct {
	Rows []SizeRow `json:"rows"`
	Line int64     `json:"line"` // bytes that are recommended
	Page int64     `json:"page"`
	// A get of n bytes takes some StartNS + n * ByteNS: least squares over Rows.
	StartNS float64 `json:"start_ns"`
	ByteNS  float64 `json:"byte_ns"`
}

// SizeRow is one size of a line or page.
type SizeRow struct {
	Size  int64   `json:"size"` // bytes
	GetNS float64 `json:"get_ns"`
	// Extra is what a miss costs more than a get of 8 bytes, in percent, where nothing else of it is
	// used.
	Extra float64 `json:"extra"`
	// Pays is from how many words of 8 bytes on, used of it, one get is faster than a get for each.
	Pays float64 `json:"pays"`
	// Sequential is how many times as fast 8-byte reads of all of it are as a get for each.
	Sequential float64 `json:"sequential"`
}

// A line may cost a tenth more than a word where nothing else of it is used. A page is the size at
// which half of a get's time is that of its bytes, n_1/2 (Hockney and Jesshope 1988): a larger one
// gains less than it costs where it is not used.
const lineExtra = 10

// Limits of a cache (package cache, Config).
const (
	maxPage      = 4096
	leastLine    = 8
	linesPerPage = 64
)

// Trade makes the table of latencies of gets, of which the first is one of 8 bytes.
func Trade(all []*Series) *Sizes {
	t := &Sizes{}
	word := all[0].Result.P["50"]
	for _, s := range all {
		get := s.Result.P["50"]
		t.Rows = append(t.Rows, SizeRow{
			Size: s.Size, GetNS: get, Extra: Round3(100 * (get/max(word, 1) - 1)), Pays: Round3(get / max(word, 1)),
			Sequential: Round3(float64(s.Size) / 8 * word / max(get, 1)),
		})
	}
	t.fit()
	t.recommend()
	return t
}

// fit draws a line through the rows.
func (t *Sizes) fit() {
	var n, x, y, xx, xy float64
	for _, r := range t.Rows {
		s := float64(r.Size)
		n, x, y, xx, xy = n+1, x+s, y+r.GetNS, xx+s*s, xy+s*r.GetNS
	}
	t.ByteNS = max((n*xy-x*y)/(n*xx-x*x), 0)
	t.StartNS = (y - t.ByteNS*x) / n
	t.ByteNS, t.StartNS = Round3(t.ByteNS), Round3(t.StartNS)
}

func (t *Sizes) recommend() {
	t.Page = maxPage
	if t.ByteNS > 0 {
		half := max(t.StartNS, 1) / t.ByteNS
		t.Page = min(max(powerOfTwo(half), 64), maxPage)
	}
	t.Line = leastLine
	for _, r := range t.Rows {
		if r.Size <= t.Page && r.Extra <= lineExtra && r.Size&(r.Size-1) == 0 {
			t.Line = max(t.Line, r.Size)
		}
	}
	t.Line = max(t.Line, t.Page/linesPerPage)
}

// powerOfTwo is the one nearest to x as a ratio.
func powerOfTwo(x float64) int64 {
	return 1 << int(math.Round(math.Log2(min(max(x, 1), 1<<40))))
}

// String is the table and what follows from it.
func (t *Sizes) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%8s %10s %18s %22s %22s\n", "size", "get us", "a miss costs more", "pays from words used", "sequential, times as fast")
	for _, r := range t.Rows {
		fmt.Fprintf(&b, "%8s %10s %16.1f %% %22.2f %22.1f x\n", sizeText(r.Size), micros(r.GetNS), r.Extra, r.Pays, r.Sequential)
	}
	fmt.Fprintf(&b, "a get of n bytes takes some %s us + n x %.3f ns\n", micros(t.StartNS), t.ByteNS)
	fmt.Fprintf(&b, "recommended: lines of %s, a miss of which costs at most %d %% more than a word; pages of %s, where a get takes as long for its bytes as for itself\n",
		sizeText(t.Line), lineExtra, sizeText(t.Page))
	return b.String()
}
