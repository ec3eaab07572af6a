package report

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/internal/errtext"
)

// Page is a report on results for people: one section, with a table, for each header
// of the text and each file.
type Page struct {
	Title    string
	Sections []*Section
}

// Section is a table of the text, with where it was measured.
type Section struct {
	Title  string
	Where  string
	Heads  []string
	Rows   []Row
	Notes  []string
	series []*Series
}

// Row is a result, and how long its bar is in percent.
type Row struct {
	Cells []string
	Bar   float64
}

// NewPage sorts series into sections, in the order in which they come.
func NewPage(title string, all []*Series) *Page {
	p := &Page{Title: title}
	files := make(map[string][]string) // by header
	for _, s := range all {
		if h := header(s); !slices.Contains(files[h], s.File) {
			files[h] = append(files[h], s.File)
		}
	}
	sections := make(map[[2]string]*Section)
	for _, s := range all {
		key := [2]string{header(s), s.File}
		x := sections[key]
		if x == nil {
			x = &Section{Title: key[0], Where: s.Env.where()}
			if len(files[key[0]]) > 1 {
				x.Title += ", " + s.File
			}
			sections[key] = x
			p.Sections = append(p.Sections, x)
		}
		x.series = append(x.series, s)
	}
	for _, x := range p.Sections {
		x.table()
		x.Notes = append(notes(x.series), asserted(x.series)...)
	}
	return p
}

// where is the machine and the setting.
func (e *Env) where() string {
	text := fmt.Sprintf("%s: %s, %s (%s), kernel %s, Go %s, GOMAXPROCS %d, %d ranks on %s, by %s, commit %s",
		e.Time, e.CPU, errtext.Count(e.CPUs, "processor"), e.Arch, e.Kernel, e.Go, e.GoMaxProcs, e.Ranks,
		errtext.Count(e.Hosts, "host"), e.Launcher, cmp.Or(e.Commit, "unknown"))
	if e.Modified {
		text += " with changes"
	}
	if d := e.Device; d != nil {
		text += fmt.Sprintf("; %s, firmware %s, %s, MTU %d, GID %d %s %s", d.title(), d.Firmware, d.Link, d.MTU, d.GIDIndex,
			d.GID, d.GIDType)
	}
	return text
}

// table has the columns of the text.
func (x *Section) table() {
	columns := columnsOf(x.series[0], x.percentiles())
	if slices.ContainsFunc(x.series, (*Series).judgedFurther) {
		columns = append(columns, verdictColumns[2:]...)
	}
	for _, c := range columns {
		x.Heads = append(x.Heads, c.name)
	}
	bars := x.bars()
	for i, s := range x.series {
		row := Row{Bar: bars[i]}
		for _, c := range columns {
			row.Cells = append(row.Cells, strings.TrimSpace(c.of(s)))
		}
		x.Rows = append(x.Rows, row)
	}
}

// percentiles that a section's series have, ascending.
func (x *Section) percentiles() (all []float64) {
	for _, s := range x.series {
		for key := range s.Result.P {
			if p, err := plan.Percentiles(key); err == nil {
				all = append(all, p...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// bars are how long the figure that series are compared by is of each, in percent of the longest;
// where the longest is a hundred times the shortest, of the logarithms.
func (x *Section) bars() []float64 {
	least, most := math.Inf(1), 0.0
	var all []float64
	for _, s := range x.series {
		v := cmp.Or(s.Result.P["50"], s.Result.Mean)
		if all = append(all, v); v > 0 {
			least, most = min(least, v), max(most, v)
		}
	}
	for i, v := range all {
		switch {
		case v <= 0:
			all[i] = 0
		case most > 100*least:
			all[i] = 10 + 90*math.Log(v/least)/math.Log(most/least)
		default:
			all[i] = 100 * v / most
		}
	}
	return all
}

// Write writes the page as one HTML file that fetches nothing else.
func (p *Page) Write(w io.Writer) error { return pageTemplate.Execute(w, p) }

var pageTemplate = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; border-top: 1px solid #8888; padding-top: 1rem; }
.bar { width: 8rem; } .bar div { height: .7em; background: #1b6ca8; print-color-adjust: exact; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; border-bottom: 1px solid #8888; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
@media print { body { max-width: none; margin: 0; } section { break-inside: avoid; } table { font-size: 7pt; } th,
	td { padding: .1rem .15rem; } th { white-space: normal; } }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
{{range .Sections}}<section>
<h2>{{.Title}}</h2>
<p>{{.Where}}</p>
<div class="wide"><table>
<thead><tr>{{range .Heads}}<th scope="col">{{.}}</th>{{end}}<th></th></tr></thead>
<tbody>{{range .Rows}}
<tr>{{range .Cells}}<td>{{.}}</td>{{end}}<td class="bar"><div style="width: {{printf "%.0f" .Bar}}%"></div></td></tr>{{end}}
</tbody>
</table></div>
{{if .Notes}}<ul>{{range .Notes}}<li>{{.}}</li>
{{end}}</ul>
{{end}}</section>
{{end}}</body>
</html>
`))
