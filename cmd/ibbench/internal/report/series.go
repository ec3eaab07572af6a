package report

import (
	"math"
	"strconv"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// Schema is the version of the JSON. A field may be added under the same
// name; one that changes its meaning gives the schema another.
const Schema = "ibbench/1"

// KindPerftest is the kind of a comparison with perftest.
const KindPerftest = "perftest"

// Fake is the registrar of kind mr that registers nothing.
const Fake = "fake"

// Series is one point: its name and its dimensions, where it was measured, and what came of it.
type Series struct {
	Schema     string     `json:"schema"`
	Kind       string     `json:"kind"`
	Op         string     `json:"op"`
	Size       int64      `json:"size"`
	Definition string     `json:"definition"`
	Env        *Env       `json:"env"`
	Plan       plan.Point `json:"plan"`

	Result    Result      `json:"result"`
	Hist      *stats.Hist `json:"hist,omitempty"`
	Intervals []Interval  `json:"intervals,omitempty"`
	Rounds    []Figures   `json:"rounds,omitempty"` // of a point that was measured several times
	Asserts   []Assert    `json:"asserts,omitempty"`
	Notes     []string    `json:"notes,omitempty"`

	Metrics Metrics `json:"-"` // beside Result
	Peers   []*Peer `json:"-"` // what others measured in the same rounds; the metrics "ratio" are to the first

	File string `json:"-"` // that it was read from
}

// Env says where a series was measured.
type Env struct {
	Time       string  `json:"time"` // RFC 3339, when the job began
	Kernel     string  `json:"kernel"`
	Arch       string  `json:"arch"`
	CPU        string  `json:"cpu"`
	CPUs       int     `json:"cpus"` // that rank 0 may run on
	GoMaxProcs int     `json:"gomaxprocs"`
	Go         string  `json:"go"`
	Commit     string  `json:"commit,omitempty"`
	Modified   bool    `json:"modified,omitempty"` // the commit's tree had changes
	Fabric     string  `json:"fabric"`
	Device     *Device `json:"device,omitempty"`
	From       string  `json:"from"` // host and rank
	To         string  `json:"to"`
	Ranks      int     `json:"ranks"`
	Hosts      int     `json:"hosts"`
	Launcher   string  `json:"launcher"`
	ClockNS    float64 `json:"clock_ns"` // cost of one reading of the clock
}

// Device describes the RDMA device of rank 0.
type Device struct {
	Name     string `json:"name"`
	Port     int    `json:"port"`
	Software bool   `json:"software,omitempty"`
	Firmware string `json:"firmware"`
	Link     string `json:"link"`
	MTU      int    `json:"mtu"`
	GIDIndex int    `json:"gid_index"`
	GID      string `json:"gid"`
	GIDType  string `json:"gid_type"`
	Netdev   string `json:"netdev,omitempty"`
	NUMA     int    `json:"numa_node"` // -1: none
}

// Result holds the figures in Unit: ns, B/s or op/s. They are integers, but of
// operations too short to be timed singly, where OpsPerSample is above 1.
type Result struct {
	Unit         string             `json:"unit"`
	Count        int64              `json:"count"` // samples, or operations of a throughput
	Errors       int64              `json:"errors"`
	OpsPerSample int                `json:"ops_per_sample,omitempty"`
	Min          float64            `json:"min"`
	Max          float64            `json:"max"`
	Mean         float64            `json:"mean"`
	P            map[string]float64 `json:"p"`
	Bytes        int64              `json:"bytes,omitempty"`      // moved, of a throughput
	ElapsedNS    int64              `json:"elapsed_ns,omitempty"` // of a throughput
	PerSecond    float64            `json:"ops_per_second,omitempty"`
}

// Interval is a part of the time series. Of a latency it holds p50 and max in
// ns, of a throughput the rate in the unit of the result.
type Interval struct {
	StartNS   int64   `json:"start_ns"` // since the measurement began
	ElapsedNS int64   `json:"elapsed_ns"`
	Count     int64   `json:"count"`
	P50       float64 `json:"p50,omitempty"`
	Max       float64 `json:"max,omitempty"`
	Rate      float64 `json:"rate,omitempty"`
}

// Assert is an assertion and its outcome.
type Assert struct {
	Text  string  `json:"assert"`
	Value float64 `json:"value"`
	Bound float64 `json:"bound"` // of the text, in the unit of Value
	OK    bool    `json:"ok"`
}

// Peer is what another program measured beside ours.
type Peer struct {
	Place     string            `json:"-"`              // in the JSON of the series: perftest, ucx or mpi
	Peer      string            `json:"peer,omitempty"` // in the place of perftest: ucx, or mpi
	Tool      string            `json:"tool,omitempty"`
	Version   string            `json:"version"`
	Args      []string          `json:"args"`
	Settings  map[string]string `json:"settings,omitzero"` // as the tool printed them
	Times     float64           `json:"times,omitempty"`   // what its figures were multiplied by, to be of the same definition
	Errors    int64             `json:"errors"`
	Result    Result            `json:"result"` // medians of the rounds
	Rounds    []Round           `json:"rounds"`
	Discarded int               `json:"discarded"` // rounds discarded since another program had the cores

	Ratio    *Spread   `json:"ratio,omitempty"`    // of ucx: ours to its, of p50
	Interval []float64 `json:"interval,omitempty"` // of mpi: 95 % confidence of the median ratio of p50; nil with fewer than 6 rounds
}

// Round is one round of both.
type Round struct {
	Ours      Figures `json:"ours"`
	Theirs    Figures `json:"theirs"`
	Discarded bool    `json:"discarded,omitempty"`
}

// Figures are ns, or B/s in Mean.
type Figures struct {
	P50  float64 `json:"p50,omitempty"`
	Mean float64 `json:"mean"`
	P99  float64 `json:"p99,omitempty"`
}

// Spread is a median with the range around it.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Rounding is how figures of samples of so many operations are rounded: to integers, but for
// operations that are too short to be timed singly.
func Rounding(opsPerSample int) func(float64) float64 {
	if opsPerSample > 1 {
		return Round3
	}
	return math.Round
}

// RoundRate rounds operations a second: fewer than 1000 have decimals.
func RoundRate(perSecond float64) float64 {
	if perSecond > 1000 {
		return math.Round(perSecond)
	}
	return Round3(perSecond)
}

// Latency fills a result from samples.
func Latency(s *stats.Samples, pct []float64, opsPerSample int) Result {
	round := Rounding(opsPerSample)
	r := Result{
		Unit: "ns", Count: s.Count(), OpsPerSample: opsPerSample,
		Min: round(s.Min()), Max: round(s.Max()), Mean: round(s.Mean()), P: make(map[string]float64, len(pct)),
	}
	for _, p := range pct {
		r.P[Key(p)] = round(s.Percentile(p))
	}
	return r
}

// Key names a percentile in Result.P: "99.9".
func Key(p float64) string { return strconv.FormatFloat(p, 'f', -1, 64) }

// Describe sets the point, and where it was measured.
func (s *Series) Describe(pt plan.Point, env *Env) {
	s.Schema, s.Env, s.Plan = Schema, env, pt
	s.Kind, s.Op, s.Size, s.Definition = pt.Kind, pt.Op, pt.Size, pt.Definition()
}

// Peer is the one that the point is compared with, nil where there is none.
func (s *Series) Peer() *Peer {
	if len(s.Peers) == 0 {
		return nil
	}
	return s.Peers[0]
}

// Beside is a further peer.
func (s *Series) Beside() *Peer {
	if len(s.Peers) < 2 {
		return nil
	}
	return s.Peers[1]
}

// Counted are the rounds that count.
func (p *Peer) Counted() int { return len(p.Rounds) - p.Discarded }

// Check evaluates assertions on the series.
func (s *Series) Check(as []plan.Assertion) {
	for _, a := range as {
		if s.Value("cache.base") != 0 && a.Compares() {
			continue // it is what the others are compared with
		}
		v := s.metric(a)
		s.Asserts = append(s.Asserts, Assert{Text: a.Text, Value: v, Bound: a.Bound, OK: a.Holds(v)})
	}
}

func (s *Series) metric(a plan.Assertion) float64 {
	r := &s.Result
	if d, ok := s.asserted(a.Metric); ok {
		return s.Value(d.name)
	}
	switch a.Metric {
	case "min":
		return r.Min
	case "max":
		return r.Max
	case "mean", "bw":
		return r.Mean
	case "rate":
		return r.PerSecond
	}
	p, _ := a.Percentile()
	return r.P[Key(p)]
}

// Failed reports whether an assertion does not hold, or an operation did something wrong.
func (s *Series) Failed() bool {
	if s.Result.Errors > 0 {
		return true
	}
	for _, a := range s.Asserts {
		if !a.OK {
			return true
		}
	}
	return false
}
