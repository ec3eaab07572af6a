package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func runTotal(w io.Writer, files []string) (ok bool, err error) {
	var all []result
	for _, name := range files {
		rs, err := readResults(name)
		if err != nil {
			return false, err
		}
		all = append(all, rs...)
	}
	for _, r := range slowest(all, 20) {
		fmt.Fprintf(w, "slow: [%s] %s %.0f s\n", r.Stage, r.name(), r.Seconds)
	}
	n := merge(all)
	for _, r := range n.list(failed) {
		fmt.Fprintf(w, "failed in %s: %s\n", r.Stage, r.name())
	}
	for _, r := range n.list(skipped) {
		fmt.Fprintf(w, "skipped everywhere: %s: %s\n", r.name(), r.Reason)
	}
	counts := map[outcome]int{}
	for _, r := range n {
		counts[r.Outcome]++
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", counts[passed], counts[failed], counts[skipped])
	if len(n) == 0 {
		return false, errors.New("no test was run")
	}
	return counts[failed] == 0, nil
}

// slowest are n tests, not subtests, of all stages that took longest.
func slowest(all []result, n int) []result {
	var rs []result
	for _, r := range all {
		if r.Seconds >= 1 && !strings.Contains(r.Test, "/") {
			rs = append(rs, r)
		}
	}
	slices.SortStableFunc(rs, func(a, b result) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return rs[:min(n, len(rs))]
}

// merged has one result a test, the gravest that matters.
type merged map[[2]string]result

func merge(all []result) merged {
	weight := map[outcome]int{skipped: 1, passed: 2, failed: 3}
	m := merged{}
	for _, r := range all {
		key := [2]string{r.Package, r.Test}
		if weight[r.Outcome] > weight[m[key].Outcome] {
			m[key] = r
		}
	}
	return m
}

func (m merged) list(o outcome) []result {
	var rs []result
	for _, r := range m {
		if r.Outcome == o {
			rs = append(rs, r)
		}
	}
	slices.SortFunc(rs, func(a, b result) int { return strings.Compare(a.name(), b.name()) })
	return rs
}

func (r result) name() string {
	if r.Test == "" {
		return short(r.Package) + " (package)"
	}
	return short(r.Package) + "." + r.Test
}

func readResults(name string) ([]result, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rs []result
	for dec := json.NewDecoder(f); ; {
		var r result
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return rs, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		rs = append(rs, r)
	}
}
