package plan

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit"
)

// Sizes reads a list of sizes: "8", "8,4K,1M", or ranges of powers of two as
// "8..1M", whose first and last are always included.
func Sizes(s string) ([]int64, error) {
	return list(s, "sizes", func(item string) ([]int64, error) {
		lo, hi, isRange := strings.Cut(item, "..")
		from, err := conduit.ParseBytes(lo)
		if err != nil {
			return nil, badItem("size", lo, "a number of bytes such as 8, 64K or 1M")
		}
		if !isRange {
			hi = lo
		}
		to, err := conduit.ParseBytes(hi)
		if err != nil {
			return nil, badItem("size", hi, "a number of bytes such as 8, 64K or 1M")
		}
		return doubling(item, from, to, MaxSize)
	})
}

// Payloads reads a list of payloads of active messages: in the form of Sizes, and "short", which is
// 0.
func Payloads(s string) ([]int64, error) {
	return orZero(s, "sizes", "short", Sizes)
}

// Counts reads a list of counts, for depths and lanes, in the form of Sizes.
func Counts(what, s string, limit int64) ([]int, error) {
	wide, err := list(s, what, func(item string) ([]int64, error) {
		lo, hi, isRange := strings.Cut(item, "..")
		if !isRange {
			hi = lo
		}
		from, err1 := strconv.ParseInt(strings.TrimSpace(lo), 10, 64)
		to, err2 := strconv.ParseInt(strings.TrimSpace(hi), 10, 64)
		if err1 != nil || err2 != nil {
			return nil, badItem(what, item, "a number such as 16, or a range such as 1..64")
		}
		return doubling(item, from, to, limit)
	})
	var out []int
	for _, n := range wide {
		out = append(out, int(n))
	}
	return out, err
}

// Regions reads a list of numbers of registrations: in the form of Sizes, and 0.
func Regions(s string) ([]int, error) {
	return orZero(s, "regions", "0", func(item string) ([]int, error) { return Counts("regions", item, MaxRegions) })
}

// orZero reads a list in which a word stands for 0.
func orZero[N int | int64](s, what, zero string, read func(item string) ([]N, error)) (out []N, err error) {
	for item := range strings.SplitSeq(s, ",") {
		some := []N{0}
		if strings.TrimSpace(item) != zero {
			if some, err = read(item); err != nil {
				return nil, err
			}
		}
		if out = append(out, some...); len(out) > maxList {
			return nil, fmt.Errorf("%s: more than %d of them", what, maxList)
		}
	}
	return out, nil
}

// maxList bounds how much a list may hold: a sweep of more is a mistake.
const maxList = 1024

func list(s, what string, expand func(item string) ([]int64, error)) ([]int64, error) {
	var all []int64
	for item := range strings.SplitSeq(s, ",") {
		some, err := expand(strings.TrimSpace(item))
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); len(all) > maxList {
			return nil, fmt.Errorf("%s: more than %d of them", what, maxList)
		}
	}
	return all, nil
}

// doubling is from, and every double of it, and to.
func doubling(item string, from, to, limit int64) ([]int64, error) {
	switch {
	case from < 1 || to > limit:
		return nil, fmt.Errorf("%q: want 1 to %d", item, limit)
	case from > to:
		return nil, fmt.Errorf("%q: the range goes down; write the smaller one first", item)
	}
	var out []int64
	for n := from; n < to; n *= 2 {
		out = append(out, n)
	}
	return append(out, to), nil
}

func badItem(what, got, want string) error {
	return fmt.Errorf("%s %q: want %s", what, got, want)
}

// Percentiles reads "50,90,99,99.9" and sorts it.
func Percentiles(s string) ([]float64, error) {
	var out []float64
	for item := range strings.SplitSeq(s, ",") {
		p, err := percentile(strings.TrimPrefix(strings.TrimSpace(item), "p"))
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func percentile(s string) (float64, error) {
	p, err := strconv.ParseFloat(s, 64)
	if err != nil || !(p > 0 && p < 100) {
		return 0, badItem("percentile", s, "a number above 0 and below 100, such as 50 or 99.9")
	}
	return p, nil
}

// PerSecond reads a rate of operations: "200000", "200k", "1.5M".
func PerSecond(s string) (float64, error) {
	n, unit := split(strings.TrimSuffix(s, "/s"))
	scale, ok := map[string]float64{"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}[unit]
	v, err := strconv.ParseFloat(n, 64)
	if err != nil || !ok || !(v > 0) || v*scale > 1e10 {
		return 0, badItem("rate", s, "operations per second such as 5000, 200k or 1.5M")
	}
	return v * scale, nil
}

// split separates a decimal number from the unit behind it.
func split(s string) (number, unit string) {
	s = strings.TrimSpace(s)
	i := strings.LastIndexAny(s, "0123456789.") + 1
	return s[:i], strings.TrimSpace(s[i:])
}

// CPUs reads a list of processors as the kernel writes it: "0,2-5".
func CPUs(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var out []int
	for item := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			hi = lo
		}
		from, err1 := strconv.ParseUint(lo, 10, 12)
		to, err2 := strconv.ParseUint(hi, 10, 12)
		if err1 != nil || err2 != nil || from > to {
			return nil, badItem("processors", item, "numbers and ranges such as 0,2-5")
		}
		for c := from; c <= to; c++ {
			if slices.Contains(out, int(c)) {
				return nil, fmt.Errorf("processor %d is named twice", c)
			}
			out = append(out, int(c))
		}
	}
	return out, nil
}

// finite guards arithmetic on what users write.
func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }
