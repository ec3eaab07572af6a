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

// Page is a report on results for people: tables and pictures, one section for each kind of
// operation on each network.
type Page struct {
	Title    string
	Machines []*Machine
	Sections []*Section
}

// Machine is where results come from, in one setting.
type Machine struct {
	ID    string
	Name  string
	Facts [][2]string
	Runs  []string
}

// Section is what one header of the text stands above.
type Section struct {
	ID       string
	Title    string
	Machine  *Machine
	Caption  string // of the table
	Columns  []string
	Rows     [][]string
	Pictures []Picture
	Notes    []string
	Findings []string
	Matrices []*Matrix

	series []*Series
}

// Picture is a chart with its name for a file.
type Picture struct {
	Name  string
	Chart chart.Picture
}

// NewPage sorts series into sections, in the order in which they come. Where files have the same
// point each has a section of its own.
func NewPage(title string, all []*Series) *Page {
	p := &Page{Title: title}
	where := make([]string, len(all))
	from, twice := make(map[string]string), make(map[string]bool) // by point, and by section
	for i, s := range all {
		where[i] = header(s) + "\x00" + p.machine(s).ID
		point := where[i] + "\x00" + s.point()
		if _, ok := from[point]; !ok {
			from[point] = s.File
		}
		twice[where[i]] = twice[where[i]] || from[point] != s.File
	}
	byKey := make(map[string]*Section)
	for i, s := range all {
		key, title := where[i], header(s)
		if twice[key] {
			key, title = key+"\x00"+s.File, title+", "+s.File
		}
		x := byKey[key]
		if x == nil {
			x = &Section{ID: fmt.Sprintf("s%d", len(p.Sections)+1), Title: title, Machine: p.machine(s), Caption: "Figures"}
			byKey[key] = x
			p.Sections = append(p.Sections, x)
		}
		x.series = append(x.series, s)
	}
	for _, x := range p.Sections {
		x.table()
		x.draw()
		x.Notes = notes(x.series)
		x.pairs()
	}
	return p
}

// point is what the table says that tells the series of a section apart.
func (s *Series) point() string {
	p := s.Plan
	return fmt.Sprint(s.Op, p.Variant, s.Size, p.Depth, p.Lanes, p.Goroutines, p.Live, p.Regions,
		s.Text("cache.side"), s.Text("flow.arm"), s.Value("flow.limit"))
}

// machine is the setting that a series' environment tells of.
func (p *Page) machine(s *Series) *Machine {
	e := s.Env
	ranks := fmt.Sprintf("%d on %s, by %s", e.Ranks, errtext.Count(e.Hosts, "host"), e.Launcher)
	if s.Kind == plan.Join { // each size has its own number
		ranks = fmt.Sprintf("on %s, by %s", errtext.Count(e.Hosts, "host"), e.Launcher)
	}
	facts := [][2]string{
		{"processor", fmt.Sprintf("%s, %s usable, %s", e.CPU, errtext.Count(e.CPUs, "processor"), e.Arch)}, {"kernel", e.Kernel},
		{"Go", fmt.Sprintf("%s, GOMAXPROCS %d", e.Go, e.GoMaxProcs)}, {"commit", e.Commit + map[bool]string{true: " with changes"}[e.Modified]},
		{"ranks", ranks}, {"network", e.Fabric},
	}
	if d := e.Device; d != nil {
		kind := ""
		if d.Software {
			kind = ", software: its figures tell ratios, and nothing about hardware"
		}
		facts = append(facts, [2]string{"device", fmt.Sprintf("%s port %d, firmware %s, %s, MTU %d, GID %d %s %s%s", d.Name, d.Port, d.Firmware, d.Link, d.MTU, d.GIDIndex, d.GID, d.GIDType, kind)})
	}
	facts = slices.DeleteFunc(facts, func(f [2]string) bool { return f[1] == "" })
	i := slices.IndexFunc(p.Machines, func(m *Machine) bool { return slices.Equal(m.Facts, facts) })
	if i < 0 {
		i = len(p.Machines)
		p.Machines = append(p.Machines, &Machine{ID: fmt.Sprintf("m%d", i+1), Name: fmt.Sprintf("setting %d", i+1), Facts: facts})
	}
	m := p.Machines[i]
	run := fmt.Sprintf("%s, where reading the clock took %.1f ns", e.Time, e.ClockNS)
	if !slices.Contains(m.Runs, run) {
		m.Runs = append(m.Runs, run)
	}
	return m
}

func (x *Section) table() {
	cell := func(name string, of func(*Series) string) column { return column{name: name, of: of} }
	shown := func(name string, of func(*Result) float64) column {
		return cell(name, func(s *Series) string { return s.shown(of(&s.Result)) })
	}
	columns := []column{
		cell("kernel", func(s *Series) string {
			if s.Kind != plan.Cache {
				return ""
			}
			return kernelNames.of(s) + ", cache " + s.Text("cache.side")
		}),
		arm, limit, sizeColumn.as(x.sizeUnit(), ""), depths, lanes, goroutines,
		dimension("chain", "", func(p *plan.Point) int { return max(p.Chain, 1) }, "1"),
		{"started a second", "", func(s *Series) string { return fmt.Sprint(s.Plan.PerSecond) }, "0"},
		live, regions, samples, shown("min", least),
	}
	for _, p := range x.percentiles() {
		columns = append(columns, cell("p"+p, func(s *Series) string {
			if _, ok := s.Result.P[p]; ok {
				return s.shown(s.Result.P[p])
			}
			return ""
		}))
	}
	columns = append(columns, shown("max", most), shown("mean", mean),
		metric("launch", "", "join.launch", micros), metric("bootstrap", "", "join.bootstrap", micros),
		metric("join", "", "join.join", micros), metric("barrier", "", "join.barrier", micros),
		cell("unit", func(s *Series) string { return shownUnit(s.Result.Unit) }), cell("peer", (*Series).peer),
		cell("peer's figure", func(s *Series) string { return s.judged(s.Peer()) }),
		cell("ratio", func(s *Series) string {
			if p, ok := s.ratio(); ok {
				return thousandths(p.Y)
			}
			return ""
		}),
		cell("of it", func(s *Series) string {
			if p, ok := s.ratio(); ok && p.Low < p.High {
				return fmt.Sprintf("%.2f to %.2f", p.Low, p.High)
			}
			return ""
		}),
		cell("UCX", func(s *Series) string { return s.judged(s.Beside()) }),
		column{name: "ratio of best rounds", of: metric("", "", "ratio.best", thousandths).of, usual: "0.000"},
		cell("goal for it", func(s *Series) string {
			if !s.Has("goal.ratio") {
				return ""
			}
			return hundredths(s.Value("goal.ratio")) + ": " + s.Text("goal.verdict")
		}),
		column{name: "major faults", of: metric("", "", "flow.faults", plain).of, usual: "0"}, metric("failed", "", "flow.failed", nil),
		column{"errors", "", func(s *Series) string { return fmt.Sprint(s.Result.Errors) }, "0"},
	)
	x.Rows = make([][]string, len(x.series))
	for _, c := range columns {
		cells, says := make([]string, len(x.series)), false
		for i, s := range x.series {
			cells[i] = c.of(s)
			says = says || cells[i] != "" && cells[i] != c.usual
		}
		if !says {
			continue
		}
		x.Columns = append(x.Columns, c.name)
		for i := range x.Rows {
			x.Rows[i] = append(x.Rows[i], cells[i])
		}
	}
}

// percentiles that a section's series have, ascending.
func (x *Section) percentiles() (all []string) {
	for _, s := range x.series {
		for p := range s.Result.P {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	return slices.Compact(all)
}

// judged is the figure that a peer is judged by, the median of a latency, a throughput's mean; ""
// where there is no peer.
func (s *Series) judged(p *Peer) string {
	switch {
	case p == nil:
		return ""
	case s.Result.Unit == "ns":
		return micros(cmp.Or(p.Result.P["50"], p.Result.Mean))
	}
	return mega(p.Result.Mean)
}

// peer names what a point is compared with.
func (s *Series) peer() string {
	switch p := s.Peer(); {
	case p != nil:
		return cmp.Or(p.Tool, p.name())
	case s.Kind == plan.Cache && s.Value("cache.base") == 0:
		return "the first side"
	}
	return ""
}

// ratio to the peer, with its range, or with an interval of 95 % where there is one.
func (s *Series) ratio() (p chart.Point, ok bool) {
	m, ok := s.Metrics["cache.ratio"]
	if peer := s.Peer(); peer != nil {
		m, ok = s.mainRatio(), true
		if i, has := s.Metrics["ratio.interval"]; has {
			m.Low, m.High = i.Low, i.High
		}
		if len(peer.Interval) == 2 {
			m.Low, m.High = peer.Interval[0], peer.Interval[1]
		}
	}
	return chart.Point{X: float64(s.Size), Y: m.Value, Low: m.Low, High: m.High}, ok
}

// SVG is for the template.
func (p Picture) SVG() template.HTML { return template.HTML(p.Chart.SVG()) } //nolint:gosec // chart escapes all names

// Write writes the page as one HTML file that asks for nothing else.
func (p *Page) Write(w io.Writer) error { return pageTemplate.Execute(w, p) }

var pageTemplate = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; --line: #ccc; --text: #1a1a1a; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --text: #e6e6e6; --page: #16181c; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--text); background: var(--page); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
svg .title { font-weight: bold; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding: .3rem 0; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0; }
dd { margin: 0; }
@media print {
  :root { --line: #999; --text: #000; --page: #fff; }
  body { max-width: none; margin: 0; font-size: 10pt; }
  nav { display: none; }
  section, figure, tr { break-inside: avoid; }
  .wide { overflow: visible; }
  table { font-size: 8pt; }
  th, td { padding: .1rem .25rem; }
  th { white-space: normal; }
}
</style>
</head>
<body>
<h1>{{.Title}}</h1>
<nav aria-label="Contents"><ul>{{range .Sections}}
<li><a href="#{{.ID}}">{{.Title}}</a></li>{{end}}
</ul></nav>
<main>
{{range .Sections}}<section id="{{.ID}}">
<h2>{{.Title}}</h2>
{{if .Findings}}<p><strong>What stands out:</strong></p>
<ul class="findings">{{range .Findings}}<li>{{.}}</li>
{{end}}</ul>
{{end}}{{range .Pictures}}<figure>{{.SVG}}</figure>
{{end}}<div class="wide"><table>
<caption>{{.Caption}}, in <a href="#{{.Machine.ID}}">{{.Machine.Name}}</a></caption>
<thead><tr>{{range .Columns}}<th scope="col">{{.}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}
<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}
</tbody>
</table></div>
{{range .Matrices}}<div class="wide"><table>
<caption>{{.Caption}}</caption>
<thead><tr>{{range .Columns}}<th scope="col">{{.}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}
<tr>{{range $i, $c := .}}{{if $i}}<td>{{$c}}</td>{{else}}<th scope="row">{{$c}}</th>{{end}}{{end}}</tr>{{end}}
</tbody>
</table></div>
{{end}}{{if .Notes}}<ul>{{range .Notes}}<li>{{.}}</li>
{{end}}</ul>
{{end}}</section>
{{end}}{{range .Machines}}<section id="{{.ID}}">
<h2>Where: {{.Name}}</h2>
<dl>{{range .Facts}}<dt>{{index . 0}}</dt><dd>{{index . 1}}</dd>
{{end}}{{range .Runs}}<dt>run</dt><dd>{{.}}</dd>
{{end}}</dl>
</section>
{{end}}</main>
</body>
</html>
`))
