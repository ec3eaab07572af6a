package bench

import (
	"fmt"
	"slices"

	"github.com/ibconduit/conduit"
)

// ssca2 are the kernels of HPCS SSCA2 v2.2 over a graph whose vertices, with the edges that leave
// them, are dealt out to the ranks in blocks.
var ssca2 = []*Kernel{
	{
		Name: "ssca2-k1", What: "SSCA2: builds the adjacency lists, an atomic and a put of 16 bytes for each edge",
		Unit:    "as a power of two: vertices (SCALE)",
		Default: Params{N: 10}, MaxN: maxScale,
		plan: func(l *layout, p Params) program { return planBuild(l, p) },
	},
	{
		Name: "ssca2-k2", What: "SSCA2: finds the heaviest edges of the neighbour's block, in two sequential passes",
		Unit:    "as a power of two: vertices (SCALE)",
		Default: Params{N: 12}, MaxN: maxScale,
		plan: func(l *layout, p Params) program { return &heavyScan{adjacency: planAdjacency(l, p)} },
	},
	{
		Name: "ssca2-k3", What: "SSCA2: the subgraphs within 3 edges of the heaviest ones, a compare-swap for each edge",
		Unit:    "as a power of two: vertices (SCALE)",
		Default: Params{N: 10}, MaxN: maxScale,
		plan: func(l *layout, p Params) program { return planSubgraphs(l, p) },
	},
	{
		Name: "ssca2-k4", What: "SSCA2: betweenness centrality; its second half gets two words for each edge",
		Unit:     "as a power of two: vertices (SCALE)",
		StepUnit: "vertices to start from", Variants: []string{"pull", overlap}, Default: Params{N: 10, Steps: 2},
		MaxN: maxScale,
		plan: func(l *layout, p Params) program { return planCentrality(l, p) },
	},
}

// maxScale keeps the reference, which every process computes for itself, within a few GiB.
const maxScale = 22

// blockOf is which vertices a rank has: per of them, the last ranks less.
func blockOf(n, per, rank int) (lo, hi int) { return min(rank*per, n), min((rank+1)*per, n) }

// mostEdges is how many edges a block of per vertices has at most.
func (g *graph) mostEdges(per int) (most int) {
	for lo := 0; lo < g.n; lo += per {
		most = max(most, g.row[min(lo+per, g.n)]-g.row[lo])
	}
	return most
}

// adjacency is the graph in the ranks' memory, as kernel 1 leaves it: of each rank's vertices where
// their edges begin among the rank's own, and the edges' ends and weights.
type adjacency struct {
	p          Params
	g          *graph
	per        int // vertices of a rank
	row        place[uint64]
	to, weight place[uint64]
}

func planAdjacency(l *layout, p Params) adjacency {
	a := adjacency{p: p, g: graphOf(p.N, p.Seed)}
	a.per = (a.g.n + l.ranks - 1) / l.ranks
	edges := a.g.mostEdges(a.per)
	a.row, a.to, a.weight = reserve[uint64](l, a.per+1), reserve[uint64](l, edges), reserve[uint64](l, edges)
	return a
}

func (a *adjacency) setup(r *rank) error {
	lo, hi := blockOf(a.g.n, a.per, r.me)
	row, to, weight := a.row.here(r), a.to.here(r), a.weight.here(r)
	a.row.stores(r, 0, a.row.n)
	a.to.stores(r, 0, a.to.n)
	a.weight.stores(r, 0, a.weight.n)
	first := a.g.row[lo]
	for v := lo; v <= lo+a.per; v++ {
		row[v-lo] = uint64(a.g.row[min(v, hi)] - first)
	}
	for e := first; e < a.g.row[hi]; e++ {
		to[e-first], weight[e-first] = uint64(a.g.to[e]), uint64(a.g.weight[e])
	}
	return nil
}

func (a *adjacency) prepare(*rank) error { return nil }

// slot is an edge as kernel 1 puts it.
type slot struct{ to, weight uint64 }

// construction is kernel 1. Which edges a rank inserts has nothing to do with where they go.
type construction struct {
	p      Params
	g      *graph
	per    int
	cursor place[uint64] // of each vertex: its degree, then where its next edge goes
	slots  place[slot]
	row    []uint64 // of this rank's vertices
}

func planBuild(l *layout, p Params) *construction {
	c := &construction{p: p, g: graphOf(p.N, p.Seed)}
	c.per = (c.g.n + l.ranks - 1) / l.ranks
	c.cursor, c.slots = reserve[uint64](l, c.per), reserve[slot](l, c.g.mostEdges(c.per))
	return c
}

func (c *construction) setup(*rank) error { return nil }

func (c *construction) prepare(r *rank) error {
	clear(c.cursor.here(r))
	clear(c.slots.here(r))
	c.cursor.stores(r, 0, c.cursor.n)
	c.slots.stores(r, 0, c.slots.n)
	return nil
}

// mine are the edges that a rank inserts.
func (c *construction) mine(r *rank) []edge {
	n := len(c.g.edges)
	return c.g.edges[n*r.me/r.n : n*(r.me+1)/r.n]
}

func (c *construction) run(r *rank) error {
	for _, e := range c.mine(r) {
		v := int(e.from)
		if err := conduit.Add(r.w, c.cursor.on(v/c.per).Add(v%c.per), 1); err != nil {
			return err
		}
	}
	if err := r.barrier(); err != nil { // degrees are known
		return err
	}
	cursor := c.cursor.here(r)
	c.cursor.stores(r, 0, c.cursor.n)
	c.row = append(c.row[:0], 0)
	for i, degree := range cursor {
		at := c.row[i]
		c.row = append(c.row, at+degree)
		cursor[i] = at
	}
	if err := r.barrier(); err != nil { // cursors are set
		return err
	}
	for _, e := range c.mine(r) {
		v := int(e.from)
		owner := v / c.per
		k, err := conduit.FetchAdd(r.w, c.cursor.on(owner).Add(v%c.per), 1)
		if err != nil {
			return err
		}
		if err := conduit.Put(r.w, c.slots.on(owner).Add(int(k)), slot{uint64(e.to), uint64(e.weight)}); err != nil {
			return err
		}
	}
	if err := r.barrier(); err != nil { // edges are there
		return err
	}
	slots := c.slots.here(r)
	c.slots.stores(r, 0, c.slots.n)
	for i := range cursor { // ranks came in any order
		slices.SortFunc(slots[c.row[i]:c.row[i+1]], func(a, b slot) int { return int(a.to) - int(b.to) })
	}
	return nil
}

func (c *construction) verify(r *rank) error {
	lo, hi := blockOf(c.g.n, c.per, r.me)
	slots := c.slots.here(r)
	for v := lo; v < hi; v++ {
		begin, end := c.row[v-lo], c.row[v-lo+1]
		if err := same(fmt.Sprintf("the degree of vertex %d", v), int(end-begin), c.g.row[v+1]-c.g.row[v]); err != nil {
			return err
		}
		for k := range int(end - begin) {
			e := c.g.row[v] + k
			want := slot{uint64(c.g.to[e]), uint64(c.g.weight[e])}
			if err := same(fmt.Sprintf("edge %d of vertex %d", k, v), slots[int(begin)+k], want); err != nil {
				return err
			}
		}
	}
	return nil
}

// heavyScan is kernel 2: each rank scans its neighbour's edges.
type heavyScan struct {
	adjacency
	found []edge
}

func (h *heavyScan) run(r *rank) error {
	row, to, weight := h.row.on(r.next), h.to.on(r.next), h.weight.on(r.next)
	edges, err := conduit.Get(r.w, row.Add(h.per))
	if err != nil {
		return err
	}
	var most uint64
	for e := range int(edges) {
		v, err := conduit.Get(r.w, weight.Add(e))
		if err != nil {
			return err
		}
		most = max(most, v)
	}
	of, err := conduit.AllGatherValue(r.ctx, r.job, most)
	if err != nil {
		return err
	}
	most = slices.Max(of)
	h.found = h.found[:0]
	lo, hi := blockOf(h.g.n, h.per, r.next)
	begin := 0
	for v := lo; v < hi; v++ {
		end, err := conduit.Get(r.w, row.Add(v-lo+1))
		if err != nil {
			return err
		}
		for ; begin < int(end); begin++ {
			x, err := conduit.Get(r.w, weight.Add(begin))
			if err != nil {
				return err
			}
			if x < most {
				continue
			}
			u, err := conduit.Get(r.w, to.Add(begin))
			if err != nil {
				return err
			}
			h.found = append(h.found, edge{uint32(v), uint32(u), uint32(x)})
		}
	}
	return nil
}

func (h *heavyScan) verify(r *rank) error {
	lo, hi := blockOf(h.g.n, h.per, r.next)
	want := slices.DeleteFunc(h.g.heaviest(), func(e edge) bool { return int(e.from) < lo || int(e.from) >= hi })
	if !slices.Equal(h.found, want) {
		return fmt.Errorf("the heaviest edges from vertices %d to %d are %v, want %v", lo, hi-1, h.found, want)
	}
	return nil
}

// pathLength is how far kernel 3 goes from an edge.
const pathLength = 3

// subgraphs is kernel 3: the heaviest edges are dealt out to the ranks, each of which goes breadth
// first from where an edge leads to. Each rank marks the vertices that it has found at their
// owners.
type subgraphs struct {
	adjacency
	marks place[uint64] // of each rank's searches in turn: 0, or 1 + the distance
	found [][]int       // of this rank's searches
}

func planSubgraphs(l *layout, p Params) *subgraphs {
	s := &subgraphs{adjacency: planAdjacency(l, p)}
	s.marks = reserve[uint64](l, s.per*l.ranks)
	return s
}

func (s *subgraphs) prepare(r *rank) error {
	clear(s.marks.here(r))
	s.marks.stores(r, 0, s.marks.n)
	return nil
}

// mine are the searches of a rank.
func (s *subgraphs) mine(r *rank) (heads []int) {
	for k, e := range s.g.heaviest() {
		if k%r.n == r.me {
			heads = append(heads, int(e.to))
		}
	}
	return heads
}

// mark is where this rank marks a vertex.
func (s *subgraphs) mark(r *rank, v int) conduit.Ptr[uint64] {
	return s.marks.on(v / s.per).Add(r.me*s.per + v%s.per)
}

func (s *subgraphs) run(r *rank) error {
	s.found = s.found[:0]
	for _, head := range s.mine(r) {
		all, err := s.search(r, head)
		if err != nil {
			return err
		}
		s.found = append(s.found, all)
		for _, v := range all {
			if err := conduit.Put(r.w, s.mark(r, v), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// search returns the vertices within pathLength of one.
func (s *subgraphs) search(r *rank, head int) ([]int, error) {
	if _, err := conduit.CompareSwap(r.w, s.mark(r, head), 0, 1); err != nil {
		return nil, err
	}
	all := []int{head}
	for depth, begin := 1, 0; depth <= pathLength; depth++ {
		level := all[begin:]
		begin = len(all)
		for _, u := range level {
			if err := s.expand(r, u, depth, &all); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// expand adds the vertices next to u that were not found before.
func (s *subgraphs) expand(r *rank, u, depth int, all *[]int) error {
	owner := u / s.per
	begin, err := s.row.get(r, owner, u%s.per)
	if err != nil {
		return err
	}
	end, err := s.row.get(r, owner, u%s.per+1)
	if err != nil {
		return err
	}
	for e := int(begin); e < int(end); e++ {
		v, err := s.to.get(r, owner, e)
		if err != nil {
			return err
		}
		old, err := conduit.CompareSwap(r.w, s.mark(r, int(v)), 0, uint64(1+depth))
		if err != nil {
			return err
		}
		if old == 0 {
			*all = append(*all, int(v))
		}
	}
	return nil
}

func (s *subgraphs) verify(r *rank) error {
	for k, head := range s.mine(r) {
		slices.Sort(s.found[k])
		if want := s.g.within(head, pathLength); !slices.Equal(s.found[k], want) {
			return fmt.Errorf("%d vertices within %d edges of vertex %d, want %d, or others", len(s.found[k]), pathLength, head,
				len(want))
		}
	}
	s.marks.loads(r, 0, s.marks.n)
	for i, m := range s.marks.here(r) {
		if m != 0 {
			return fmt.Errorf("mark %d is %d, want 0", i, m)
		}
	}
	return nil
}
