package report

import (
	"fmt"
	"strings"
)

// MPI is what Open MPI measured beside our collective operations.
type MPI struct {
	Version string   `json:"version"`
	Args    []string `json:"args"` // of mpirun
	Errors  int64    `json:"errors"`
	Result  Result   `json:"result"` // medians of the rounds
	Rounds  []Round  `json:"rounds"`
	// Interval of 95 % confidence of the median ratio of p50; nil with fewer than 6 rounds.
	Interval []float64 `json:"interval,omitempty"`
}

// collColumns and collRow must agree.
func (t *text) collColumns(s *Series) string {
	line := fmt.Sprintf("%8s %6s", "size", "loop")
	if s.MPI != nil {
		return line + fmt.Sprintf(" %7s %9s %9s %7s %13s %13s %9s %9s %7s  %s", "rounds", "p50", "Open MPI", "ratio", "95 %", "range", "mean", "Open MPI", "ratio", "unit")
	}
	line += fmt.Sprintf(" %9s %9s", "samples", "min")
	for _, p := range t.pct {
		line += fmt.Sprintf(" %9s", "p"+Key(p))
	}
	return line + fmt.Sprintf(" %9s %9s  %s", "max", "mean", "unit")
}

func (t *text) collRow(s *Series) string {
	r := &s.Result
	line := fmt.Sprintf("%8s %6d", s.sizeText(), s.Plan.Batch)
	if m := s.MPI; m != nil {
		p := s.Ratio.P50
		return line + fmt.Sprintf(" %7d %9s %9s %7.3f %13s %13s %9s %9s %7.3f  us", len(m.Rounds), micros(r.P["50"]), micros(m.Result.P["50"]),
			p.Median, m.interval(), span(p), micros(r.Mean), micros(m.Result.Mean), s.Ratio.Mean.Median)
	}
	line += fmt.Sprintf(" %9d %9s", r.Count, micros(r.Min))
	for _, p := range t.pct {
		line += fmt.Sprintf(" %9s", micros(r.P[Key(p)]))
	}
	return line + fmt.Sprintf(" %9s %9s  us", micros(r.Max), micros(r.Mean))
}

func (m *MPI) interval() string {
	if len(m.Interval) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f to %.2f", m.Interval[0], m.Interval[1])
}

// collHeader is the header of a series of collective operations.
func collHeader(s *Series, parts []string) string {
	parts = append(parts, s.Definition+": a loop of operations, on the slowest rank")
	if s.MPI != nil {
		parts = append(parts, "Open MPI "+s.MPI.Version)
	}
	return strings.Join(parts, ", ")
}
