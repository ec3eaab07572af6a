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
// "8..1M", with the first and the last always included.
func Sizes(s string) ([]int64, error) { return sizes(s, "") }

// Payloads reads a list of payloads of active messages: in the form of Sizes, and "short", which is
// 0.
func Payloads(s string) ([]int64, error) { return sizes(s, "short") }

func sizes(s, zero string) ([]int64, error) {
	return list(s, "size", "a number of bytes such as 8, 64K or 1M", zero, MaxSize, conduit.ParseBytes)
}

// Counts reads a list of counts, for depths and lanes, in the form of Sizes.
func Counts(what, s string, limit int64) ([]int, error) { return counts(what, s, "", limit) }

// Regions reads a list of numbers of registrations: in the form of Sizes, and 0.
func Regions(s string) ([]int, error) { return counts("regions", s, "0", MaxRegions) }

func counts(what, s, zero string, limit int64) (out []int, err error) {
	wide, err := list(s, what, "a number such as 16, or a range such as 1..64", zero, limit,
		func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) })
	for _, n := range wide {
		out = append(out, int(n))
	}
	return out, err
}

// maxList bounds how much a list may hold: a sweep of more is a mistake.
const maxList = 1024

// list reads items and ranges of them, in which zero stands for 0 unless it is empty. A range has
// its first, every double of that, and its last.
func list(s, what, want, zero string, limit int64, number func(string) (int64, error)) (all []int64, err error) {
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		lo, hi, isRange := strings.Cut(item, "..")
		if !isRange {
			hi = lo
		}
		from, err1 := number(strings.TrimSpace(lo))
		to, err2 := number(strings.TrimSpace(hi))
		switch {
		case item == zero && zero != "":
			from, to = 0, 0
		case err1 != nil || err2 != nil:
			return nil, badItem(what, item, want)
		case from < 1 || to > limit:
			return nil, fmt.Errorf("%q: want 1 to %d", item, limit)
		case from > to:
			return nil, fmt.Errorf("%q: the range goes down; write the smaller one first", item)
		}
		for n := from; n < to; n *= 2 {
			all = append(all, n)
		}
		if all = append(all, to); len(all) > maxList {
			return nil, fmt.Errorf("%s: more than %d of them", what, maxList)
		}
	}
	return all, nil
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
