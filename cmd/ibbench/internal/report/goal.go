package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

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
	if !ok || s.Kind != KindPerftest {
		return
	}
	best := s.Value("ratio.best")
	reached := best <= bound
	if s.Result.Unit != "ns" {
		reached = best >= bound
	}
	verdict := Missed
	switch {
	case s.Peer().Counted() < leastRounds:
		verdict = Open
	case reached:
		verdict = Reached
	}
	s.Set("goal.ratio", bound)
	s.SetText("goal.verdict", verdict)
}

var verdictColumns = []column{
	{name: "", format: "%-12s", of: func(s *Series) string { return s.Op + " " + s.sizeText() }},
	{name: "rounds", format: "%6s", of: func(s *Series) string { return fmt.Sprint(s.Peer().Counted()) }},
	{name: "ibconduit", format: "%17s", of: func(s *Series) string { return s.bestAndMedian(&s.Result) }},
	{name: "perftest", format: "%17s", of: func(s *Series) string { return s.bestAndMedian(&s.Peer().Result) }},
	{name: "UCX", format: "%17s", of: func(s *Series) string {
		if ucx := s.Beside(); ucx != nil {
			return s.bestAndMedian(&ucx.Result)
		}
		return "-"
	}},
	bounded("of best", "%8s", "ratio.best", func(m Metric) string { return hundredths(m.Value) }),
	{name: "of medians (95 %)", format: "%24s", of: func(s *Series) string {
		m, of := s.mainRatio(), "all "
		if i, ok := s.Metrics["ratio.interval"]; ok {
			m.Low, m.High, of = i.Low, i.High, ""
		}
		return fmt.Sprintf("%.2f (%s%.2f to %.2f)", m.Value, of, m.Low, m.High)
	}},
	bounded("goal", "%6s", "goal.ratio", func(m Metric) string { return hundredths(m.Value) }),
	metric("verdict", " %s", "goal.verdict", nil),
}

// verdicts is the table of all comparisons with perftest in a result: the best round and the median
// of each program, and what became of the goals.
func verdicts(all []*Series) string {
	var rows []string
	more := false
	for _, s := range all {
		if s.Kind == KindPerftest {
			more = more || s.judgedFurther()
			rows = append(rows, line(verdictColumns, func(c column) string { return c.of(s) })+"\n")
		}
	}
	if !more {
		return ""
	}
	return "\nbest round and median of rounds: p50 in us, throughputs in MB/s, rates in Mop/s; ratios are ours to perftest's, a goal is for the best rounds\n" +
		line(verdictColumns, func(c column) string { return c.name }) + "\n" + strings.Join(rows, "")
}

// judgedFurther reports whether a comparison has more than a row of a peer says.
func (s *Series) judgedFurther() bool { return s.Beside() != nil || s.Has("goal.ratio") }

// bestAndMedian are the best round and the median of all.
func (s *Series) bestAndMedian(r *Result) string {
	if r.Unit != "ns" {
		return mega(r.Max) + " / " + mega(r.Mean)
	}
	return micros(r.Min) + " / " + micros(r.P["50"])
}
