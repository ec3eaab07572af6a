package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
)

// table writes CSV (RFC 4180): a line of names, then a line for each series.
// Figures are in the unit that the line names.
type table struct {
	w     *csv.Writer
	pct   []float64
	begun bool
}

func newCSV(w io.Writer, pct []float64) *table { return &table{w: csv.NewWriter(w), pct: pct} }

func (t *table) Add(s *Series) error {
	names, values := t.row(s)
	if !t.begun {
		t.begun = true
		if err := t.w.Write(names); err != nil {
			return err
		}
	}
	if err := t.w.Write(values); err != nil {
		return err
	}
	t.w.Flush()
	return t.w.Error()
}

func (t *table) Close() error { return nil }

func (t *table) row(s *Series) (names, values []string) {
	add := func(name, value string) {
		names = append(names, name)
		values = append(values, value)
	}
	integer := func(name string, v int64) { add(name, strconv.FormatInt(v, 10)) }
	number := func(name string, v float64) { add(name, plain(v)) }
	e, r := s.Env, &s.Result
	device, software := "", false
	if e.Device != nil {
		device, software = e.Device.Name, e.Device.Software
	}
	add("kind", s.Kind)
	add("op", s.Plan.OpName())
	add("definition", s.Definition)
	add("fabric", e.Fabric)
	add("device", device)
	add("software", strconv.FormatBool(software))
	add("from", e.From)
	add("to", e.To)
	integer("ranks", int64(e.Ranks))
	integer("size", s.Size)
	integer("depth", int64(s.Plan.Depth))
	integer("lanes", int64(s.Plan.Lanes))
	integer("goroutines", int64(cmp.Or(s.Plan.Goroutines, s.Plan.Lanes)))
	add("unit", r.Unit)
	integer("count", r.Count)
	integer("errors", r.Errors)
	integer("ops_per_sample", int64(max(1, r.OpsPerSample)))
	number("min", r.Min)
	for _, p := range t.pct {
		number("p"+Key(p), r.P[Key(p)])
	}
	number("max", r.Max)
	number("mean", r.Mean)
	number("ops_per_second", r.PerSecond)
	if p := s.Peer(); p != nil {
		peer := cmp.Or(p.Peer, p.Place)
		number(peer+"_p50", p.Result.P["50"])
		number(peer+"_mean", p.Result.Mean)
		number(peer+"_p99", p.Result.P["99"])
		for _, name := range []string{"p50", "mean", "p99"} {
			number("ratio_"+name, s.Value("ratio."+name))
		}
		integer("rounds", int64(p.Counted()))
		if s.Kind == KindPerftest {
			integer("discarded", int64(p.Discarded))
		}
	}
	for _, d := range declared {
		if d.csv == "" || !s.section(d.name) {
			continue
		}
		m, ok := s.Metrics[d.name]
		switch {
		case d.plan != nil:
			add(d.csv, fmt.Sprint(d.plan(&s.Plan)))
		case d.form == label:
			add(d.csv, m.Text)
		case d.form == estimate:
			if !ok { // of the side that the others are compared with
				m = Metric{Value: 1, Low: 1, High: 1}
			}
			number(d.csv, m.Value)
			number(d.csv+"_low", m.Low)
			number(d.csv+"_high", m.High)
		default:
			number(d.csv, m.Value)
		}
	}
	return names, values
}
