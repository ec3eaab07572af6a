package report

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// UCX is what UCX's ucx_perftest measured in the same rounds.
type UCX struct {
	Version string   `json:"version"`
	Args    []string `json:"args"`
	Times   float64  `json:"times,omitempty"` // what its figures were multiplied by, to be of the same definition
	Result  Result   `json:"result"`          // medians of the rounds
	Rounds  []Round  `json:"rounds"`
	Ratio   *Spread  `json:"ratio"` // ours to its, of p50
}

// Goal is a bound on the ratio to perftest.
type Goal struct {
	Ratio   float64 `json:"ratio"` // at most; of a throughput at least
	Verdict string  `json:"verdict"`
}

// Verdicts on a goal.
const (
	Reached = "reached"
	Missed  = "missed"
	Open    = "too few rounds"
)

// leastRounds of a verdict: the best of fewer may well be a bad one.
const leastRounds = 3

// Goals are bounds by point, "put 8".
type Goals map[string]float64

// ParseGoals reads "put:8=1.35,am:short=1.8".
func ParseGoals(s string) (Goals, error) {
	all := make(Goals)
	if s == "" {
		return all, nil
	}
	for item := range strings.SplitSeq(s, ",") {
		point, bound, ok := strings.Cut(strings.TrimSpace(item), "=")
		op, size, sized := strings.Cut(point, ":")
		v, err := strconv.ParseFloat(bound, 64)
		if !ok || !sized || err != nil || !(v > 0) || v > 1e6 {
			return nil, fmt.Errorf("goal %q: want OP:SIZE=RATIO, such as put:8=1.35 or am:short=1.8", item)
		}
		bytes, err := plan.Payloads(size)
		if err != nil || len(bytes) != 1 {
			return nil, fmt.Errorf("goal %q: %q is no size", item, size)
		}
		name := op + " " + SizeName(op, bytes[0])
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("goal %q: there are two for %s", item, name)
		}
		all[name] = v
	}
	return all, nil
}

// Judge sets the goal of a comparison with perftest, if there is one for it: by the ratio of the
// best rounds, which other programs on the machine change least.
func (g Goals) Judge(s *Series) {
	bound, ok := g[s.Op+" "+s.sizeText()]
	if !ok || s.Perftest == nil {
		return
	}
	reached := s.Ratio.Best <= bound
	if s.Result.Unit != "ns" {
		reached = s.Ratio.Best >= bound
	}
	s.Goal = &Goal{Ratio: bound, Verdict: Missed}
	switch {
	case len(s.Perftest.Rounds)-s.Perftest.Discarded < leastRounds:
		s.Goal.Verdict = Open
	case reached:
		s.Goal.Verdict = Reached
	}
}

// SizeName is a size as tables have it: a Short has none.
func SizeName(op string, size int64) string {
	if op == plan.AM && size == 0 {
		return "short"
	}
	return sizeText(size)
}

// verdicts is the table of all comparisons with perftest in a result: the best round and the median
// of each program, and what became of the goals.
func verdicts(all []*Series) string {
	var b strings.Builder
	compared := false
	for _, s := range all {
		compared = compared || s.Perftest != nil && (s.UCX != nil || s.Goal != nil)
	}
	if !compared {
		return ""
	}
	row := func(cells ...string) {
		fmt.Fprintf(&b, "%-12s %6s %17s %17s %17s %8s %24s %6s  %s\n", cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6], cells[7], cells[8])
	}
	fmt.Fprintf(&b, "\nbest round and median of rounds: p50 in us, throughputs in MB/s, rates in Mop/s; ratios are ours to perftest's, a goal is for the best rounds\n")
	row("", "rounds", "ibconduit", "perftest", "UCX", "of best", "of medians (95 %)", "goal", "verdict")
	for _, s := range all {
		if s.Perftest == nil {
			continue
		}
		ucx, goal, verdict := "-", "-", ""
		if s.UCX != nil {
			ucx = pairOf(&s.UCX.Result)
		}
		if s.Goal != nil {
			goal, verdict = fmt.Sprintf("%.2f", s.Goal.Ratio), s.Goal.Verdict
		}
		row(s.Op+" "+s.sizeText(), fmt.Sprint(len(s.Perftest.Rounds)-s.Perftest.Discarded), pairOf(&s.Result), pairOf(&s.Perftest.Result), ucx,
			fmt.Sprintf("%.2f", s.Ratio.Best), s.Ratio.medianText(), goal, verdict)
	}
	return b.String()
}

// pairOf is the best round and the median.
func pairOf(r *Result) string {
	if r.Unit != "ns" {
		return mega(r.Max) + " / " + mega(r.Mean)
	}
	return micros(r.Min) + " / " + micros(r.P["50"])
}

// medianText is the median ratio with its interval, or with its range where there is none.
func (r *Ratio) medianText() string {
	m := cmp.Or(r.P50, r.Mean)
	if len(r.Interval) == 2 {
		return fmt.Sprintf("%.2f (%.2f to %.2f)", m.Median, r.Interval[0], r.Interval[1])
	}
	return fmt.Sprintf("%.2f (all %.2f to %.2f)", m.Median, m.Min, m.Max)
}
