package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

func TestGoalsAreReadOrRefused(t *testing.T) {
	got, err := ParseGoals("put:8=1.35, am:short=1.8,get:4K=2")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Goals{"put 8": 1.35, "am short": 1.8, "get 4K": 2}, got); d != "" {
		t.Error(d)
	}
	for text, want := range map[string]string{
		"put=1": "want OP:SIZE=RATIO", "put:8": "want OP:SIZE=RATIO", "put:8=0": "want OP:SIZE=RATIO", "put:x=1": `"x" is no size`,
		"put:8,9=1": "want OP:SIZE=RATIO", "put:4K=1,put:4096=2": "two for put 4K", "put:8=nan": "want OP:SIZE=RATIO",
	} {
		if _, err := ParseGoals(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// compared is a comparison of so many rounds.
func compared(unit string, ours, theirs float64, rounds int) *Series {
	result := func(v float64) Result {
		return Result{Unit: unit, Min: v, Max: v, Mean: v, P: map[string]float64{"50": v, "99": v}}
	}
	ratio := Metric{Value: ours / theirs, Low: ours / theirs, High: ours / theirs}
	return &Series{
		Schema: Schema, Kind: KindPerftest, Op: plan.Put, Size: 8, Env: &Env{Fabric: "ibv"}, Plan: plan.Point{Kind: plan.Lat, Op: plan.Put, Depth: 1, Lanes: 1}, Result: result(ours),
		Peers:   []*Peer{{Place: "perftest", Tool: "ib_write_lat", Result: result(theirs), Rounds: make([]Round, rounds)}},
		Metrics: Metrics{"ratio.p50": ratio, "ratio.mean": ratio, "ratio.p99": ratio, "ratio.best": {Value: ours / theirs}, "ratio.interval": {Low: 1.25, High: 1.75}},
	}
}

func TestAGoalIsJudgedByTheBestRounds(t *testing.T) {
	for _, c := range []struct {
		unit   string
		ours   float64
		rounds int
		want   string
	}{
		{"ns", 1500, 3, Reached}, {"ns", 1501, 3, Missed}, {"ns", 100, 2, Open}, {"B/s", 1500, 3, Reached}, {"B/s", 1499, 3, Missed},
	} {
		s := compared(c.unit, c.ours, 1000, c.rounds)
		if (Goals{"put 8": 1.5}).Judge(s); s.Text("goal.verdict") != c.want || s.Value("goal.ratio") != 1.5 {
			t.Errorf("%+v: got %+v", c, s.Metrics)
		}
	}
	s := compared("ns", 1, 1, 3)
	if (Goals{"get 8": 1}).Judge(s); s.Has("goal.verdict") {
		t.Errorf("a goal for another point: %+v", s.Metrics)
	}
}

func TestTheTableOfVerdictsHasEachProgram(t *testing.T) {
	s := compared("ns", 1500, 1000, 7)
	s.Peers = append(s.Peers, &Peer{Place: "ucx", Result: Result{Unit: "ns", Min: 900, P: map[string]float64{"50": 1250}}, Ratio: &Spread{Median: 1.2}})
	Goals{"put 8": 1.35}.Judge(s)
	var out bytes.Buffer
	w, err := New("text", &out, []float64{50})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(s); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var row string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "put 8") {
			row = strings.Join(strings.Fields(line), " ")
		}
	}
	if want := "put 8 7 1.500 / 1.500 1.000 / 1.000 0.900 / 1.250 1.50 1.50 (1.25 to 1.75) 1.35 missed"; row != want {
		t.Errorf("got %q, want %q in\n%s", row, want, out.String())
	}
	var page bytes.Buffer
	if err := NewPage("t", []*Series{s}).Write(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<td>missed</td>", `<th scope="col">UCX</th>`, "<td>1.50 (1.25 to 1.75)</td>"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}
