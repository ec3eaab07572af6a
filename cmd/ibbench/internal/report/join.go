package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// Join is how the time of a job's start is divided, in ns: each step ends when it has on the last
// rank, and the next begins there. Of several starts each is a median.
type Join struct {
	Launch    float64 `json:"launch"`    // the processes are there
	Bootstrap float64 `json:"bootstrap"` // the ranks know each other
	Join      float64 `json:"join"`      // conduit.Join has returned
	Barrier   float64 `json:"barrier"`   // the first one
}

// Starts makes one series of the starts of a number of ranks, each of which is a round. They may
// not be used any more.
func Starts(all []*Series, pct []float64) *Series {
	s := all[0]
	samples := stats.New(int64(len(all)), 1, false)
	of := func(pick func(*Join) float64) float64 {
		var v []float64
		for _, r := range all {
			v = append(v, pick(r.Join))
		}
		return math.Round(stats.Median(v))
	}
	join := &Join{
		Launch: of(func(j *Join) float64 { return j.Launch }), Bootstrap: of(func(j *Join) float64 { return j.Bootstrap }),
		Join: of(func(j *Join) float64 { return j.Join }), Barrier: of(func(j *Join) float64 { return j.Barrier }),
	}
	var rounds []Figures
	for _, r := range all {
		samples.Add(int64(r.Result.Mean))
		rounds = append(rounds, Figures{P50: r.Result.Mean, Mean: r.Result.Mean, P99: r.Result.Mean})
	}
	s.Result, s.Hist, s.Join, s.Rounds = Latency(samples, pct, 1), samples.Hist(), join, rounds
	return s
}

// step is one of a start's, for a table.
func (s *Series) step(pick func(*Join) float64) string {
	if s.Join == nil {
		return ""
	}
	return micros(pick(s.Join))
}

func joinHeader(s *Series, parts []string) string {
	host, _, _ := strings.Cut(s.Env.From, " ")
	return strings.Join(append(parts, "on "+host, "segments of "+sizeText(s.Plan.Segment),
		s.Definition+": from the launch until the last rank has come out of its first barrier"), ", ")
}

// joinColumns and joinRow must agree.
func joinColumns() string {
	return fmt.Sprintf("%8s %7s %10s %10s %10s %10s %10s %10s %10s  %s", "ranks", "starts", "min", "p50", "max", "launch", "bootstrap", "join", "barrier", "unit")
}

func joinRow(s *Series) string {
	r, j := &s.Result, s.Join
	line := fmt.Sprintf("%8s %7d", s.sizeText(), r.Count)
	for _, ns := range []float64{r.Min, r.P["50"], r.Max, j.Launch, j.Bootstrap, j.Join, j.Barrier} {
		line += fmt.Sprintf(" %10s", strconv.FormatFloat(ns/1e6, 'f', 2, 64))
	}
	return line + "  ms"
}
