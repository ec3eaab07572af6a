package report

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/chart"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/internal/errtext"
)

// Page is a report on results for people: one section, with a table and a picture, for each header
// of the text and each file.
type Page struct {
	Title    string
	Sections []*Section
}

// Section is a table of the text, with where it was measured.
type Section struct {
	Title  string
	Where  string
	Chart  *chart.Chart // nil: nothing varies that could be an axis
	Heads  []string
	Rows   [][]string
	Notes  []string
	series []*Series
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
		x.Chart = x.draw()
		x.Notes = append(notes(x.series), asserted(x.series)...)
	}
	return p
}

// where is the machine and the setting.
func (e *Env) where() string {
	text := fmt.Sprintf("%s: %s, %s (%s), kernel %s, Go %s, GOMAXPROCS %d, %d ranks on %s, by %s, commit %s",
		e.Time, e.CPU, errtext.Count(e.CPUs, "processor"), e.Arch, e.Kernel, e.Go, e.GoMaxProcs, e.Ranks, errtext.Count(e.Hosts, "host"), e.Launcher, cmp.Or(e.Commit, "unknown"))
	if e.Modified {
		text += " with changes"
	}
	if d := e.Device; d != nil {
		text += fmt.Sprintf("; %s, firmware %s, %s, MTU %d, GID %d %s %s", d.title(), d.Firmware, d.Link, d.MTU, d.GIDIndex, d.GID, d.GIDType)
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
	for _, s := range x.series {
		var row []string
		for _, c := range columns {
			row = append(row, strings.TrimSpace(c.of(s)))
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

// axes are what a picture may have along its X: the first that varies. The others tell lines apart.
var axes = []struct {
	name string
	of   func(*Series) float64
}{
	{"size", func(s *Series) float64 { return float64(s.Size) }},
	{"limit, MiB", func(s *Series) float64 { return s.Value("flow.limit") / (1 << 20) }},
	{"depth", func(s *Series) float64 { return float64(s.Plan.Depth) }},
	{"lanes", func(s *Series) float64 { return float64(s.Plan.Lanes) }},
	{"goroutines", func(s *Series) float64 { return float64(s.Plan.Goroutines) }},
	{"regions", func(s *Series) float64 { return float64(s.Plan.Regions) }},
}

// draw makes a picture of the figure that series are compared by, against what varies.
func (x *Section) draw() *chart.Chart {
	first := x.series[0]
	vary := slices.Clone(axes)
	for i := len(vary) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(x.series, func(s *Series) bool { return vary[i].of(s) != vary[i].of(first) }) {
			vary = slices.Delete(vary, i, i+1)
		}
	}
	if len(vary) == 0 || first.Kind == plan.Cache { // kernels of different sizes have no common axis
		return nil
	}
	c := &chart.Chart{Title: header(first), X: vary[0].name, Y: shownUnit(first.Result.Unit)}
	put := func(name string, s *Series, r *Result) {
		v := r.Mean / 1e6
		if r.Unit == "ns" {
			v = cmp.Or(r.P["50"], r.Mean) / 1e3
		}
		if v > 0 {
			c.Add(name, vary[0].of(s), v)
		}
	}
	for _, s := range x.series {
		name := strings.TrimSpace(s.Text("flow.arm"))
		for _, a := range vary[1:] {
			name += fmt.Sprintf(" %s %g", a.name, a.of(s))
		}
		put(strings.TrimSpace(name), s, &s.Result)
		for _, p := range s.Peers {
			put(p.name()+name, s, &p.Result)
		}
	}
	return c
}

// SVG is for the template.
func (x *Section) SVG() template.HTML {
	if x.Chart == nil {
		return ""
	}
	return template.HTML(x.Chart.SVG()) //nolint:gosec // chart escapes all names
}

// Write writes the page as one HTML file that asks for nothing else.
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
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; border-bottom: 1px solid #8888; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
@media print { body { max-width: none; margin: 0; } section { break-inside: avoid; } table { font-size: 7pt; } th, td { padding: .1rem .15rem; } th { white-space: normal; } }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
{{range .Sections}}<section>
<h2>{{.Title}}</h2>
<p>{{.Where}}</p>
{{.SVG}}<div class="wide"><table>
<thead><tr>{{range .Heads}}<th scope="col">{{.}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}
<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}
</tbody>
</table></div>
{{if .Notes}}<ul>{{range .Notes}}<li>{{.}}</li>
{{end}}</ul>
{{end}}</section>
{{end}}</body>
</html>
`))
