package report

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
)

// pageSeries are results of all kinds that have pictures.
func pageSeries() (all []*Series) {
	env := &Env{Time: "2026-01-01T00:00:00Z", CPU: "<A&B>", Fabric: "shm", From: "a rank 0", To: "b rank 1", Ranks: 2, Hosts: 2, ClockNS: 20}
	for i, size := range []int64{8, 64, 4096, 65536} {
		s := &Series{Kind: plan.Lat, Op: plan.Get, Size: size, Definition: plan.DefOp, Env: env, Plan: plan.Point{Kind: plan.Lat, Op: plan.Get, Depth: 1, Lanes: 1},
			Result: Result{Unit: "ns", Count: 100, Min: 800, Max: 9e6, Mean: 1100, P: map[string]float64{"50": 1000 * float64(i+1), "99": 5e4}}}
		s.Hist = &stats.Hist{Type: stats.HistType, Unit: "ns"}
		for k := range int64(50) {
			s.Hist.Buckets = append(s.Hist.Buckets, stats.Bucket{900 + 20*k, 919 + 20*k, 2})
		}
		all = append(all, s)
	}
	for _, lanes := range []int{1, 2} {
		for _, size := range []int64{64, 1024} {
			all = append(all, &Series{Kind: plan.BW, Op: plan.Put, Size: size, Definition: plan.DefRate, Env: env,
				Plan: plan.Point{Kind: plan.BW, Op: plan.Put, Depth: 16, Lanes: lanes}, Result: Result{Unit: "B/s", Mean: float64(size*int64(lanes)) * 1e6, P: map[string]float64{}}})
		}
	}
	for _, size := range []int64{8, 1024} {
		all = append(all, &Series{Kind: KindPerftest, Op: plan.Put, Size: size, Definition: plan.DefHalf, Env: env, Plan: plan.Point{Kind: plan.Lat, Op: plan.Put, Depth: 1, Lanes: 1},
			Result:  Result{Unit: "ns", Mean: 1300, P: map[string]float64{"50": 1250}},
			Peers:   []*Peer{{Place: "perftest", Tool: "ib_write_lat", Version: "4.5", Result: Result{Unit: "ns", Mean: 1100, P: map[string]float64{"50": 1000}}, Rounds: []Round{{}}}},
			Metrics: Metrics{"ratio.p50": {1.25, 1.1, 1.4, ""}, "ratio.mean": {1.2, 1.1, 1.3, ""}, "ratio.p99": {1, 1, 1, ""}}})
	}
	return all
}

func written(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	if err := NewPage("of all kinds", pageSeries()).Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestThePageHasAllFiguresAndAsksForNothing(t *testing.T) {
	page := written(t)
	for _, want := range []string{"&lt;A&amp;B&gt;", `width: 100%`, `width: 25%`, ">1.10 to 1.40<", "ib_write_lat", `<th scope="col">p99</th>`, "@media print"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(page, "<tr>"); n != 3+10 {
		t.Errorf("%d rows in the tables, want 3 headers and 10 results", n)
	}
	for _, m := range regexp.MustCompile(`(?i)(?:href|src)="([^"]*)"|url\(|@import|<script|https?:[^"]*`).FindAllStringSubmatch(page, -1) {
		if !strings.HasPrefix(m[1], "#") && m[0] != "http://www.w3.org/2000/svg" {
			t.Errorf("the page asks for %s", m[0])
		}
	}
}

// What lacks something is an error of its file, and not the end of the program.
func TestDamagedResultsAreRefused(t *testing.T) {
	of := func(all []*Series, kind string) *Series {
		i := slices.IndexFunc(all, func(s *Series) bool { return s.Kind == kind })
		return all[i]
	}
	for name, damage := range map[string]func(all []*Series){
		"":         func([]*Series) {},
		"no ratio": func(all []*Series) { of(all, KindPerftest).Metrics = nil },
		"no peer":  func(all []*Series) { of(all, KindPerftest).Peers = nil },
	} {
		all := pageSeries()
		for _, s := range all {
			s.Schema = Schema
		}
		damage(all)
		path := filepath.Join(t.TempDir(), "r.ndjson")
		if err := os.WriteFile(path, []byte(formatOf(t, "ndjson", pct, all...)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); (err != nil) != (name != "") || err != nil && !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Rows of one table that differ in nothing but their figures would tell nobody which is which.
func TestFilesWithTheSamePointAreSectionsApart(t *testing.T) {
	read := func(file string, iters int64, sizes ...int64) (all []*Series) {
		for _, size := range sizes {
			s := pageSeries()[0]
			s.File, s.Size, s.Plan.Size, s.Plan.Iters = file, size, size, iters
			all = append(all, s)
		}
		return all
	}
	paced := func(all []*Series) []*Series {
		for _, s := range all {
			s.Plan.PerSecond = 1e5
		}
		return all
	}
	for _, c := range []struct {
		more []*Series
		want []string // of the rows of each section
	}{
		{read("b.json", 7, 8, 64), []string{", a.json 8 64", ", b.json 8 64"}},
		{paced(read("b.json", 7, 8, 64)), []string{", a.json 8 64", ", b.json 8 64"}},
		{read("b.json", 7, 64, 128), []string{", a.json 8 64", ", b.json 64 128"}},
		{read("a.json", 7, 8), []string{" 8 64 8"}},
	} {
		all := append(read("a.json", 5, 8, 64), c.more...)
		var got []string
		for _, x := range NewPage("", all).Sections {
			text := strings.TrimPrefix(x.Title, header(all[0]))
			for _, row := range x.Rows {
				text += " " + row.Cells[0]
			}
			got = append(got, text)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("sections %q, want %q", got, c.want)
		}
	}
}
