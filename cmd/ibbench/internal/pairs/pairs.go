package pairs

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Rank says where a rank is. What it lacks without an RDMA device is empty.
type Rank struct {
	Host     string `json:"host"`
	Device   string `json:"device,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Link     string `json:"link,omitempty"`
	GIDType  string `json:"gid_type,omitempty"`
	Firmware string `json:"firmware,omitempty"`
}

// Matrix has a figure for each pair of ranks, in each direction.
type Matrix struct {
	Unit     string      `json:"unit"` // ns, of which less is better, or B/s
	Ranks    []Rank      `json:"ranks"`
	Values   [][]float64 `json:"values"`                   // [from][to]; 0: not measured, as on the diagonal
	Networks [][]string  `json:"networks"`                 // [from][to]
	Batches  [][]int     `json:"ops_per_sample,omitempty"` // of a latency, [from][to]
	Factor   float64     `json:"factor"`                   // by which a pair is slow
	Findings []Finding   `json:"findings"`
}

// Kinds of findings.
const (
	Link      = "link"      // both directions between two ranks
	Direction = "direction" // one of them
	Slow      = "rank"      // a rank, with everyone
	SlowHost  = "host"      // all ranks of a host, with everyone
	Setting   = "setting"   // a host's port is set up in another way
)

// Finding is something out of the ordinary.
type Finding struct {
	Kind  string  `json:"kind"`
	Ranks []int   `json:"ranks"`
	Times float64 `json:"times,omitempty"` // worse than what is typical
	Text  string  `json:"text"`
}

// Analyse sets the findings, the worst first, settings at the end.
func (m *Matrix) Analyse(factor float64) {
	m.Factor = factor
	m.Findings = nil
	classes := m.classes()
	slow := m.slowRanks(classes)
	m.slowHosts(slow)
	m.slowLinks(classes, slow)
	slices.SortStableFunc(m.Findings, func(a, b Finding) int { return cmp.Compare(b.Times, a.Times) })
	m.Findings = append(m.Findings, settings(m.Ranks)...)
}

// class is what pairs are compared within.
type class struct {
	network string
	within  bool // one host
}

func (c class) String() string {
	if c.within {
		return c.network + " within a host"
	}
	return c.network + " between hosts"
}

// typical figure of a class, and how much its best quarter differs.
type typical struct{ value, noise float64 }

func (m *Matrix) classOf(i, j int) class {
	return class{m.Networks[i][j], m.Ranks[i].Host == m.Ranks[j].Host}
}

// measured reports whether there is a figure.
func (m *Matrix) measured(i, j int) bool { return i != j && m.Values[i][j] > 0 }

// classes finds what is typical.
func (m *Matrix) classes() map[class]typical {
	all := make(map[class][]float64)
	for i := range m.Values {
		for j, v := range m.Values[i] {
			if m.measured(i, j) {
				c := m.classOf(i, j)
				all[c] = append(all[c], v)
			}
		}
	}
	out := make(map[class]typical)
	for c, v := range all {
		slices.Sort(v)
		if m.Unit != "ns" {
			slices.Reverse(v)
		}
		q := v[quarter(len(v))]
		out[c] = typical{q, m.times(q, v[0])}
	}
	return out
}

// quarter is the index of the 25th percentile by the nearest rank.
func quarter(n int) int { return (n+3)/4 - 1 }

// times is how much worse a figure is than another.
func (m *Matrix) times(v, than float64) float64 {
	if m.Unit != "ns" {
		v, than = than, v
	}
	return v / than
}

// excess of a pair is how much worse than typical it is, and how much worse it may be.
func (m *Matrix) excess(classes map[class]typical, i, j int) (times, allowed float64) {
	t := classes[m.classOf(i, j)]
	return m.times(m.Values[i][j], t.value), m.Factor * t.noise
}

// slowness of a rank with everyone, or only with everyone on other hosts.
type slowness struct {
	times   float64 // at best
	outside bool
}

func (s slowness) with() string {
	if s.outside {
		return "all other hosts"
	}
	return "everyone"
}

// slowRanks finds those that are slow with everyone. Within a host another way is taken, which says
// nothing about the port: who is slow with all other hosts is named, too.
func (m *Matrix) slowRanks(classes map[class]typical) map[int]slowness {
	slow := make(map[int]slowness)
	for r := range m.Ranks {
		for _, outside := range []bool{false, true} {
			if times := m.slowWith(classes, r, outside); times > 0 {
				slow[r] = slowness{times, outside}
				break
			}
		}
	}
	return slow
}

// slowWith is how much worse than typical a rank is with everyone, 0 if it is in order. It takes
// two peers to tell a rank from a link.
func (m *Matrix) slowWith(classes map[class]typical, r int, outside bool) float64 {
	var v []float64
	peers, allowed := 0, 1.0
	for p := range m.Ranks {
		if outside && m.Ranks[p].Host == m.Ranks[r].Host {
			continue
		}
		either := false
		for _, d := range [][2]int{{r, p}, {p, r}} {
			if m.measured(d[0], d[1]) {
				t, a := m.excess(classes, d[0], d[1])
				v, allowed, either = append(v, t), max(allowed, 1+(a-1)/2), true
			}
		}
		if either {
			peers++
		}
	}
	if peers < 2 {
		return 0
	}
	slices.Sort(v)
	if q := v[quarter(len(v))]; q > allowed {
		return q
	}
	return 0
}

// slowHosts names slow ranks: by their host, where all of it is.
func (m *Matrix) slowHosts(slow map[int]slowness) {
	hosts := make(map[string]bool)
	for _, r := range m.Ranks {
		hosts[r.Host] = true
	}
	done := make(map[string]bool)
	for r := range m.Ranks {
		worst, ok := slow[r]
		host := m.Ranks[r].Host
		if !ok || done[host] {
			continue
		}
		on := m.on(host)
		all := len(hosts) > 1
		for _, other := range on {
			s, ok := slow[other]
			all = all && ok
			worst = slowness{max(worst.times, s.times), worst.outside || s.outside}
		}
		if all {
			done[host] = true
			m.add(SlowHost, on, worst.times, fmt.Sprintf("host %s is slow with %s: %.1f times what is typical, at best", host, worst.with(), worst.times))
			continue
		}
		s := slow[r]
		m.add(Slow, []int{r}, s.times, fmt.Sprintf("%s is slow with %s: %.1f times what is typical, at best", m.name(r), s.with(), s.times))
	}
}

func (m *Matrix) on(host string) (ranks []int) {
	for r := range m.Ranks {
		if m.Ranks[r].Host == host {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func (m *Matrix) name(r int) string { return fmt.Sprintf("rank %d (host %s)", r, m.Ranks[r].Host) }

func (m *Matrix) add(kind string, ranks []int, times float64, text string) {
	m.Findings = append(m.Findings, Finding{Kind: kind, Ranks: ranks, Times: math.Round(times*100) / 100, Text: text})
}

// slowLinks finds pairs that are slow though neither rank is slow with everyone.
func (m *Matrix) slowLinks(classes map[class]typical, slow map[int]slowness) {
	named := func(r int, within bool) bool {
		s, ok := slow[r]
		return ok && !(s.outside && within)
	}
	for i := range m.Ranks {
		for j := i + 1; j < len(m.Ranks); j++ {
			if within := m.classOf(i, j).within; named(i, within) || named(j, within) {
				continue
			}
			there, back := m.slowPair(classes, i, j), m.slowPair(classes, j, i)
			typical := m.figure(classes[m.classOf(i, j)].value)
			switch {
			case there > 0 && back > 0:
				m.add(Link, []int{i, j}, max(there, back), fmt.Sprintf("slow link between %s and %s: %s there, %s back; typical of %s: %s",
					m.name(i), m.name(j), m.figure(m.Values[i][j]), m.figure(m.Values[j][i]), m.classOf(i, j), typical))
			case there > 0:
				m.oneWay(i, j, there, typical)
			case back > 0:
				m.oneWay(j, i, back, typical)
			}
		}
	}
}

func (m *Matrix) oneWay(i, j int, times float64, typical string) {
	m.add(Direction, []int{i, j}, times, fmt.Sprintf("slow from %s to %s: %s, the other way %s; typical of %s: %s",
		m.name(i), m.name(j), m.figure(m.Values[i][j]), m.figure(m.Values[j][i]), m.classOf(i, j), typical))
}

// slowPair is how much worse than typical a pair is, 0 if it is in order.
func (m *Matrix) slowPair(classes map[class]typical, i, j int) float64 {
	if !m.measured(i, j) {
		return 0
	}
	if times, allowed := m.excess(classes, i, j); times > allowed {
		return times
	}
	return 0
}

// figure prints a value in the unit that people use.
func (m *Matrix) figure(v float64) string {
	switch {
	case v <= 0:
		return "not measured"
	case m.Unit != "ns":
		return digits(v/1e6) + " MB/s"
	}
	return digits(v/1e3) + " us"
}

// digits prints four of them, and all before the point.
func digits(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// settings finds hosts whose port differs from that of most hosts. Of as many each way all are
// named.
func settings(ranks []Rank) (found []Finding) {
	for _, s := range []struct {
		name string
		of   func(Rank) string
	}{
		{"MTU", func(r Rank) string {
			if r.MTU == 0 {
				return ""
			}
			return fmt.Sprint(r.MTU)
		}},
		{"link layer", func(r Rank) string { return r.Link }},
		{"GID type", func(r Rank) string { return r.GIDType }},
		{"firmware", func(r Rank) string { return r.Firmware }},
	} {
		with := make(map[string][]int)
		total := 0
		for r := range ranks {
			if v := s.of(ranks[r]); v != "" {
				with[v] = append(with[v], r)
				total++
			}
		}
		if len(with) < 2 {
			continue
		}
		var values []string
		for v := range with {
			values = append(values, v)
		}
		slices.SortFunc(values, func(a, b string) int { return cmp.Or(cmp.Compare(len(with[b]), len(with[a])), strings.Compare(a, b)) })
		usual := values[0]
		if 2*len(with[usual]) <= total {
			usual = ""
		}
		for _, v := range values {
			if v == usual {
				continue
			}
			text := fmt.Sprintf("%s has the %s %s", hostsOf(ranks, with[v]), s.name, v)
			if usual != "" {
				text += ", others " + usual
			}
			found = append(found, Finding{Kind: Setting, Ranks: with[v], Text: text})
		}
	}
	return found
}

// hostsOf names the hosts of some ranks.
func hostsOf(ranks []Rank, some []int) string {
	var names []string
	for _, r := range some {
		if h := ranks[r].Host; !slices.Contains(names, h) {
			names = append(names, h)
		}
	}
	if len(names) == 1 {
		return "host " + names[0]
	}
	return "hosts " + strings.Join(names, ", ")
}

// Level of a pair for a heat map: 0 is as typical or better, 4 is four times worse or more; -1 is
// not measured.
func (m *Matrix) Level() func(i, j int) int {
	classes := m.classes()
	return func(i, j int) int {
		if !m.measured(i, j) {
			return -1
		}
		times, _ := m.excess(classes, i, j)
		for level, bound := range bounds {
			if times < bound {
				return level
			}
		}
		return len(bounds)
	}
}

// bounds of the levels, as times worse than typical.
var bounds = []float64{1.25, 1.5, 2, 4}

// LevelName says what a level means.
func LevelName(level int) string {
	if level == 0 {
		return fmt.Sprintf("below %g", bounds[0])
	}
	if level == len(bounds) {
		return fmt.Sprintf("%g and more", bounds[level-1])
	}
	return fmt.Sprintf("%g to %g", bounds[level-1], bounds[level])
}

// Levels is how many there are.
const Levels = 5
