package bench

import (
	"cmp"
	"slices"
	"sync"
)

// edge is a tuple of SSCA2: from, to, weight.
type edge struct{ from, to, weight uint32 }

// graph is one of HPCS SSCA2 v2.2: 2^scale vertices, 8 times as many tuples by R-MAT (Chakrabarti,
// Zhan, Faloutsos 2004), vertices permuted, tuples shuffled. Self-loops are left out, and of
// several tuples with the same ends the first one stays.
type graph struct {
	scale int
	seed  uint64
	n     int
	edges []edge
	csr
}

// csr are adjacency lists, one behind the other: of vertex v from row[v] to row[v+1], in the order
// of to.
type csr struct {
	row        []int
	to, weight []uint32
}

const tuplesPerVertex = 8

// graphs keeps the last graph, which several ranks of a process and several jobs use.
var graphs struct {
	sync.Mutex
	last *graph
}

func graphOf(scale int, seed uint64) *graph {
	graphs.Lock()
	defer graphs.Unlock()
	if g := graphs.last; g == nil || g.scale != scale || g.seed != seed {
		graphs.last = newGraph(scale, seed)
	}
	return graphs.last
}

func newGraph(scale int, seed uint64) *graph {
	g := &graph{scale: scale, seed: seed, n: 1 << scale}
	rng := random(mix(seed))
	label := make([]uint32, g.n)
	for i := range label {
		label[i] = uint32(i)
	}
	for i := g.n - 1; i > 0; i-- {
		k := rng.below(i + 1)
		label[i], label[k] = label[k], label[i]
	}
	seen := make(map[uint64]struct{}, tuplesPerVertex*g.n)
	for range tuplesPerVertex * g.n {
		e := rmat(&rng, scale)
		e.from, e.to = label[e.from], label[e.to]
		key := uint64(e.from)<<32 | uint64(e.to)
		if _, twice := seen[key]; twice || e.from == e.to {
			continue
		}
		seen[key] = struct{}{}
		g.edges = append(g.edges, e)
	}
	for i := len(g.edges) - 1; i > 0; i-- {
		k := rng.below(i + 1)
		g.edges[i], g.edges[k] = g.edges[k], g.edges[i]
	}
	g.csr = build(g.n, g.edges)
	return g
}

// rmat is one tuple: at each level a quadrant of the adjacency matrix is chosen with probabilities
// .55, .1, .1, .25, each varied by 5 % at every level, as SSCA2 has it.
func rmat(rng *random, scale int) (e edge) {
	for range scale {
		vary := func(p float64) float64 { return p * (0.95 + 0.1*rng.unit()) }
		a, b, c, d := vary(.55), vary(.1), vary(.1), vary(.25)
		u := rng.unit() * (a + b + c + d)
		e.from, e.to = e.from<<1, e.to<<1
		switch {
		case u < a:
		case u < a+b:
			e.to |= 1
		case u < a+b+c:
			e.from |= 1
		default:
			e.from |= 1
			e.to |= 1
		}
	}
	e.weight = 1 + uint32(rng.below(1<<scale))
	return e
}

// build makes adjacency lists of n vertices.
func build(n int, edges []edge) csr {
	sorted := slices.Clone(edges)
	slices.SortFunc(sorted, func(a, b edge) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	c := csr{row: make([]int, n+1)}
	for _, e := range sorted {
		c.row[e.from+1]++
		c.to, c.weight = append(c.to, e.to), append(c.weight, e.weight)
	}
	for v := range n {
		c.row[v+1] += c.row[v]
	}
	return c
}

// each calls f with the edges of a vertex.
func (c *csr) each(v int, f func(to, weight uint32)) {
	for e := c.row[v]; e < c.row[v+1]; e++ {
		f(c.to[e], c.weight[e])
	}
}

// heaviest are the edges of the largest weight, in the order of from and to.
func (g *graph) heaviest() (heavy []edge) {
	most := slices.Max(g.weight)
	for v := range g.n {
		g.each(v, func(to, weight uint32) {
			if weight == most {
				heavy = append(heavy, edge{uint32(v), to, weight})
			}
		})
	}
	return heavy
}

// within are the vertices that a path of at most so many edges leads to, the start included, in
// order.
func (g *graph) within(start, length int) []int {
	found := map[int]struct{}{start: {}}
	level := []int{start}
	for range length {
		var next []int
		for _, u := range level {
			g.each(u, func(to, _ uint32) {
				if _, ok := found[int(to)]; !ok {
					found[int(to)] = struct{}{}
					next = append(next, int(to))
				}
			})
		}
		level = next
	}
	all := make([]int, 0, len(found))
	for v := range found {
		all = append(all, v)
	}
	slices.Sort(all)
	return all
}

// filtered says that kernel 4 leaves an edge out.
func filtered(weight uint32) bool { return weight%8 == 0 }

// sources are the vertices that kernel 4 starts from.
func (g *graph) sources(n int) []int {
	rng := random(mix(g.seed + 4))
	taken := make(map[int]struct{})
	var s []int
	for len(s) < min(n, g.n) {
		v := rng.below(g.n)
		if _, twice := taken[v]; !twice {
			taken[v] = struct{}{}
			s = append(s, v)
		}
	}
	return s
}

// between adds a source's part of betweenness centrality (Brandes 2001), and returns the sum of
// distance less 1 over all vertices that can be reached from it: the sum of what was added.
func (g *graph) between(source int, centrality []float64) (inner int) {
	dist, sigma, delta := make([]int, g.n), make([]uint64, g.n), make([]float64, g.n)
	for i := range dist {
		dist[i] = -1
	}
	dist[source], sigma[source] = 0, 1
	order := []int{source}
	for k := 0; k < len(order); k++ {
		u := order[k]
		g.each(u, func(to, weight uint32) {
			v := int(to)
			if filtered(weight) {
				return
			}
			if dist[v] < 0 {
				dist[v] = dist[u] + 1
				order = append(order, v)
			}
			if dist[v] == dist[u]+1 {
				sigma[v] += sigma[u]
			}
		})
	}
	for _, u := range slices.Backward(order) {
		g.each(u, func(to, weight uint32) {
			if v := int(to); !filtered(weight) && dist[v] == dist[u]+1 {
				delta[u] += float64(sigma[u]) / float64(sigma[v]) * (1 + delta[v])
			}
		})
		if u != source {
			centrality[u] += delta[u]
			inner += dist[u] - 1
		}
	}
	return inner
}
