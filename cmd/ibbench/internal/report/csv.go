package report

import (
	"cmp"
	"encoding/csv"
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
	if s.Pairs != nil {
		return t.pairs(s)
	}
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
	add("op", opName(s))
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
	if s.Kind == KindPerftest {
		t.peer(s, number, integer)
	}
	if s.MPI != nil {
		t.mpi(s, number, integer)
	}
	if s.Heap != nil {
		integer("live", int64(s.Plan.Live))
		integer("blocks", s.Heap.Blocks)
		integer("in_use", s.Heap.InUse)
		integer("free", s.Heap.Free)
		integer("largest_free", s.Heap.LargestFree)
		number("fragmentation", s.Heap.Fragmentation)
		number("meta", s.Heap.Meta)
		integer("requests", s.Heap.Requests)
	}
	if j := s.Join; j != nil {
		integer("segment", s.Plan.Segment)
		number("launch", j.Launch)
		number("bootstrap", j.Bootstrap)
		number("join", j.Join)
		number("barrier", j.Barrier)
	}
	if f := s.Flow; f != nil {
		add("arm", f.Arm)
		add("counts", f.Counts)
		integer("limit", f.Limit)
		integer("peak", f.Peak)
		integer("faults", f.Faults)
		add("failed", f.Failed)
	}
	if s.Cache != nil {
		t.cache(s, add, number, integer)
	}
	if s.MR != nil {
		t.mr(s, add, number, integer)
	}
	return names, values
}

// peer adds perftest's figures and the ratios.
func (t *table) peer(s *Series, number func(string, float64), integer func(string, int64)) {
	p := s.Perftest
	peer := cmp.Or(p.Peer, "perftest")
	number(peer+"_p50", p.Result.P["50"])
	number(peer+"_mean", p.Result.Mean)
	number(peer+"_p99", p.Result.P["99"])
	for _, c := range []struct {
		name string
		v    *Spread
	}{{"ratio_p50", s.Ratio.P50}, {"ratio_mean", s.Ratio.Mean}, {"ratio_p99", s.Ratio.P99}} {
		var m float64
		if c.v != nil {
			m = c.v.Median
		}
		number(c.name, m)
	}
	integer("rounds", int64(len(p.Rounds)-p.Discarded))
	integer("discarded", int64(p.Discarded))
}

// mpi adds Open MPI's figures and the ratios.
func (t *table) mpi(s *Series, number func(string, float64), integer func(string, int64)) {
	m := s.MPI
	number("mpi_p50", m.Result.P["50"])
	number("mpi_mean", m.Result.Mean)
	number("mpi_p99", m.Result.P["99"])
	number("ratio_p50", s.Ratio.P50.Median)
	number("ratio_mean", s.Ratio.Mean.Median)
	number("ratio_p99", s.Ratio.P99.Median)
	integer("rounds", int64(len(m.Rounds)))
}

// plain writes a figure without an exponent.
func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
