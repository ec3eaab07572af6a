package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// format writes series in a format.
func format(t *testing.T, name string, all ...*Series) string {
	t.Helper()
	return formatOf(t, name, []float64{50}, all...)
}

func formatOf(t *testing.T, name string, pct []float64, all ...*Series) string {
	t.Helper()
	var b bytes.Buffer
	w, err := New(name, &b, pct)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if err := w.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPairsAreAMatrixWithWhatStandsOut(t *testing.T) {
	got := format(t, "text", pairsSeries(8))
	var rows [][]string
	for line := range strings.Lines(got) {
		if strings.Contains(line, "(node") && !strings.Contains(line, "slow") {
			rows = append(rows, strings.Fields(line))
		}
	}
	if len(rows) != 8 || strings.Join(rows[2], " ") != "2 (node2) 2.000 . 2.000 . 2.000 . 2.000 . 21.00 @ 2.000 . 2.000 ." {
		t.Errorf("row 2 of %d is wrong in\n%s", len(rows), got)
	}
	if !strings.Contains(got, "\nlatency: slow link between rank 2 (host node2) and rank 5 (host node5): 21 us there") {
		t.Errorf("no finding in\n%s", got)
	}
	quiet := pairsSeries(8)
	quiet.Pairs().Findings = nil
	if got := format(t, "text", quiet); !strings.Contains(got, "\nlatency: no pair stands out by a factor of 2\n") {
		t.Errorf("nothing said in\n%s", got)
	}
}

func TestManyRanksAreAHeatMapOnly(t *testing.T) {
	got := format(t, "text", pairsSeries(20))
	if !strings.Contains(got, "   5 (node5)        ..@.. ..............\n") {
		t.Errorf("no row of marks in\n%s", got)
	}
}

func TestPairsInCSVAreALineEach(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(format(t, "csv", pairsSeries(8))), "\n")
	if len(lines) != 1+8*7 || lines[0] != "kind,op,size,from,to,from_host,to_host,network,unit,value" || lines[19] != "pairs,get,8,2,5,node2,node5,ibv,ns,21000" {
		t.Errorf("%d lines, %q", len(lines), lines[min(19, len(lines)-1)])
	}
}

func TestFindingsCanBeAsserted(t *testing.T) {
	a, err := plan.ParseAssertion("findings<=0", plan.Pairs)
	if err != nil {
		t.Fatal(err)
	}
	s := pairsSeries(8)
	if s.Check([]plan.Assertion{a}); !s.Failed() || s.Asserts[0].Value != 1 {
		t.Errorf("%+v", s.Asserts)
	}
	if _, err := plan.ParseAssertion("p50<1us", plan.Pairs); err == nil || !strings.Contains(err.Error(), "it has findings") {
		t.Error(err)
	}
}
