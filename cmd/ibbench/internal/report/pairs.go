package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/pairs"
)

// mostColumns of a matrix with figures; a larger one is a heat map only.
const mostColumns = 16

// levels of a heat map as characters.
const levels = ".-+#@"

func pairsTitle(s *Series) string {
	what := "latency of a get"
	if s.Result.Unit != "ns" {
		what = "bandwidth of puts"
	}
	return fmt.Sprintf("%s: %s of %s bytes", s.Kind, what, s.sizeText())
}

// pairsHeads and pairsRows must agree.
func pairsHeads(m *pairs.Matrix) string {
	line := fmt.Sprintf("%-20s", "rank (host)")
	for r := range m.Ranks {
		if len(m.Ranks) > mostColumns {
			line += strconv.Itoa(r % 10)
			continue
		}
		line += fmt.Sprintf(" %10d", r)
	}
	return line
}

func pairsRows(s *Series) string {
	m := s.Pairs()
	level := m.Level()
	var lines []string
	for i, r := range m.Ranks {
		line := fmt.Sprintf("%-20s", fmt.Sprintf("%4d (%.13s)", i, r.Host))
		for j := range m.Ranks {
			mark := "  "
			if k := level(i, j); k >= 0 {
				mark = " " + levels[k:k+1]
			}
			if len(m.Ranks) > mostColumns {
				line += mark[1:]
				continue
			}
			line += fmt.Sprintf(" %8s%s", cell(s, i, j), mark)
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	var legend []string
	for k := range pairs.Levels {
		legend = append(legend, fmt.Sprintf("%c %s", levels[k], pairs.LevelName(k)))
	}
	return strings.Join(append(lines, "times worse than typical: "+strings.Join(legend, ", ")), "\n")
}

// cell is the figure of a pair.
func cell(s *Series, i, j int) string {
	v := s.Pairs().Values[i][j]
	if i == j || v == 0 {
		return ""
	}
	return s.shown(v)
}

// findings prints what stands out.
func (t *text) findings() {
	first := true
	for _, line := range findings(t.all) {
		if first {
			t.printf("\n")
			first = false
		}
		t.printf("%s\n", line)
	}
}

// findings are those of all series, once each, and what none was found in.
func findings(all []*Series) (lines []string) {
	seen := make(map[string]bool)
	for _, s := range all {
		m := s.Pairs()
		if m == nil {
			continue
		}
		what := map[bool]string{true: "latency", false: "bandwidth"}[s.Result.Unit == "ns"]
		found := 0
		for _, f := range m.Findings {
			line := what + ": " + f.Text
			if f.Kind == pairs.Setting {
				line = f.Text
			} else {
				found++
			}
			if !seen[line] {
				seen[line] = true
				lines = append(lines, line)
			}
		}
		if found == 0 {
			lines = append(lines, fmt.Sprintf("%s: no pair stands out by a factor of %g", what, m.Factor))
		}
	}
	return lines
}

// Matrix is a table whose rows have names.
type Matrix struct {
	Caption string
	Columns []string
	Rows    [][]string
}

// pairs adds what a section has of pairs: findings, heat maps, and the figures where they fit.
func (x *Section) pairs() {
	for i, s := range x.series {
		m := s.Pairs()
		if m == nil {
			continue
		}
		x.Findings = append(x.Findings, findings([]*Series{s})...)
		x.Pictures = append(x.Pictures, Picture{fmt.Sprintf("%s-pairs%d", x.ID, i+1), heat(s)})
		if len(m.Ranks) > 2*mostColumns {
			continue
		}
		x.Caption = "Over the pairs"
		table := &Matrix{Caption: "Each pair, " + shownUnit(s.Result.Unit), Columns: []string{"from"}}
		for r, of := range m.Ranks {
			table.Columns = append(table.Columns, fmt.Sprintf("to %d", r))
			row := []string{fmt.Sprintf("%d (%s)", r, of.Host)}
			for p := range m.Ranks {
				row = append(row, cell(s, r, p))
			}
			table.Rows = append(table.Rows, row)
		}
		x.Matrices = append(x.Matrices, table)
	}
}

// heat draws the pairs by how much worse than typical they are.
func heat(s *Series) *chart.Heat {
	m := s.Pairs()
	level := m.Level()
	h := &chart.Heat{Title: strings.TrimSuffix(header(s), ", "+shownUnit(s.Result.Unit)), Rows: "from rank", Columns: "to rank", Legend: "times worse than typical"}
	for k := range pairs.Levels {
		h.Levels = append(h.Levels, pairs.LevelName(k))
	}
	for i := range m.Ranks {
		row := make([]chart.Cell, len(m.Ranks))
		for j := range m.Ranks {
			row[j] = chart.Cell{Level: level(i, j), Text: fmt.Sprintf("%d to %d: %s %s", i, j, cell(s, i, j), shownUnit(s.Result.Unit))}
		}
		h.Cells = append(h.Cells, row)
	}
	return h
}
