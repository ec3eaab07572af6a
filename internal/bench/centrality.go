package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/ibconduit/conduit"
)

// centrality is kernel 4: betweenness centrality by Brandes' algorithm, from some vertices. Ranks
// go through the vertices of their own, level by level. Forward, a rank claims a vertex for the
// next level by a compare-swap of its distance, puts it into its owner's queue, and adds to its
// number of paths. Backward, it gets the paths and the dependency of each vertex one level on:
// two reads of 8 bytes, at random but for what many edges lead to. The variant overlap has all
// compare-swaps of a vertex in flight together, and prefetches what backward gets, some vertices
// ahead.
type centrality struct {
	adjacency
	dist  place[int64]
	sigma place[uint64]
	delta place[float64]
	queue place[uint64]
	tail  place[uint64]

	levels   []int                    // where the levels begin in this rank's queue
	children []uint64                 // of the vertices of the queue, one after the other
	begins   []int                    // where the children of each begin
	starts   []conduit.Promise[int64] // compare-swaps, of overlap
	found    [][]uint64               // by them, by owner
	one      [1]uint64
	offs     []int     // of a prefetch
	score    []float64 // of this rank's vertices
	inner    int       // sum of distances less 1
}

func planCentrality(l *layout, p Params) *centrality {
	c := &centrality{adjacency: planAdjacency(l, p)}
	c.dist, c.sigma, c.delta = reserve[int64](l, c.per), reserve[uint64](l, c.per), reserve[float64](l, c.per)
	c.queue, c.tail = reserve[uint64](l, c.per), reserve[uint64](l, 1)
	return c
}

func (c *centrality) run(r *rank) error {
	c.score, c.inner = make([]float64, c.per), 0
	for _, s := range c.g.sources(c.p.Steps) {
		if err := c.begin(r, s); err != nil {
			return err
		}
		if err := c.forward(r); err != nil {
			return err
		}
		if err := c.backward(r, s); err != nil {
			return err
		}
	}
	return nil
}

// begin resets this rank's vertices.
func (c *centrality) begin(r *rank, source int) error {
	dist, tail := c.dist.here(r), c.tail.here(r)
	for i := range dist {
		dist[i] = -1
	}
	clear(c.sigma.here(r))
	clear(c.delta.here(r))
	tail[0] = 0
	c.dist.stores(r, 0, c.per)
	c.sigma.stores(r, 0, c.per)
	c.delta.stores(r, 0, c.per)
	c.tail.stores(r, 0, 1)
	if source/c.per == r.me {
		i := source % c.per
		dist[i], c.sigma.here(r)[i], c.queue.here(r)[0], tail[0] = 0, 1, uint64(source), 1
	}
	c.levels, c.children, c.begins = c.levels[:0], c.children[:0], append(c.begins[:0], 0)
	return r.barrier()
}

// forward finds distances, paths and children.
func (c *centrality) forward(r *rank) error {
	lo := r.me * c.per
	row, to, weight := c.row.here(r), c.to.here(r), c.weight.here(r)
	sigma, queue := c.sigma.here(r), c.queue.here(r)
	for begin, depth := 0, int64(0); ; depth++ {
		c.tail.loads(r, 0, 1)
		end := int(c.tail.here(r)[0])
		sizes, err := conduit.AllGatherValue(r.ctx, r.job, int64(end-begin))
		if err != nil {
			return err
		}
		c.levels = append(c.levels, begin)
		var level int64
		for _, n := range sizes {
			level += n
		}
		if level == 0 {
			return nil
		}
		// All ranks have read their tails: now they may grow.
		c.queue.loads(r, begin, end-begin)
		for ; begin < end; begin++ {
			u := int(queue[begin]) - lo
			c.sigma.loads(r, u, 1)
			if c.p.Variant == overlap {
				err = c.reachAll(r, to[row[u]:row[u+1]], weight[row[u]:row[u+1]], depth+1, sigma[u])
			} else {
				err = c.reachEach(r, to[row[u]:row[u+1]], weight[row[u]:row[u+1]], depth+1, sigma[u])
			}
			if err != nil {
				return err
			}
			c.begins = append(c.begins, len(c.children))
		}
		if err := r.barrier(); err != nil { // the next level is known
			return err
		}
	}
}

// reachEach follows edges one after the other.
func (c *centrality) reachEach(r *rank, to, weight []uint64, depth int64, paths uint64) error {
	for e, vertex := range to {
		if filtered(uint32(weight[e])) {
			continue
		}
		owner, i := int(vertex)/c.per, int(vertex)%c.per
		old, err := conduit.CompareSwap(r.w, c.dist.on(owner).Add(i), -1, depth)
		if err == nil && old == -1 {
			c.one[0] = vertex
			err = c.enqueue(r, owner, c.one[:])
		}
		if err == nil {
			err = c.reached(r, vertex, old, depth, paths)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// overlap is the variant with reachAll, and mostStarts how many compare-swaps that has in flight.
const (
	overlap    = "overlap"
	mostStarts = 16
)

// reachAll follows edges, mostStarts at a time.
func (c *centrality) reachAll(r *rank, to, weight []uint64, depth int64, paths uint64) error {
	for len(to) > 0 {
		n := min(len(to), mostStarts)
		c.starts = c.starts[:0]
		for e, vertex := range to[:n] {
			if !filtered(uint32(weight[e])) {
				owner, i := int(vertex)/c.per, int(vertex)%c.per
				c.starts = append(c.starts, conduit.CompareSwapAsync(r.w, c.dist.on(owner).Add(i), -1, depth))
			}
		}
		c.found = slices.Grow(c.found[:0], r.n)[:r.n]
		for owner := range c.found {
			c.found[owner] = c.found[owner][:0]
		}
		k := 0
		for e, vertex := range to[:n] {
			if filtered(uint32(weight[e])) {
				continue
			}
			old, err := c.starts[k].Wait(r.ctx)
			if k++; err == nil {
				err = c.reached(r, vertex, old, depth, paths)
			}
			if err != nil {
				return err
			}
			if owner := int(vertex) / c.per; old == -1 {
				c.found[owner] = append(c.found[owner], vertex)
			}
		}
		for owner, found := range c.found {
			if err := c.enqueue(r, owner, found); err != nil {
				return err
			}
		}
		to, weight = to[n:], weight[n:]
	}
	return nil
}

// reached is what follows on the compare-swap of a vertex's distance: if it is this one the vertex
// is a child, and has more paths.
func (c *centrality) reached(r *rank, vertex uint64, old, depth int64, paths uint64) error {
	if old != -1 && old != depth {
		return nil
	}
	owner, i := int(vertex)/c.per, int(vertex)%c.per
	c.children = append(c.children, vertex)
	return conduit.Add(r.w, c.sigma.on(owner).Add(i), paths)
}

// enqueue puts vertices into their owner's queue.
func (c *centrality) enqueue(r *rank, owner int, vertices []uint64) error {
	if len(vertices) == 0 {
		return nil
	}
	k, err := conduit.FetchAdd(r.w, c.tail.on(owner), uint64(len(vertices)))
	if err != nil {
		return err
	}
	return conduit.PutSlice(r.w, c.queue.on(owner).Add(int(k)), vertices)
}

// backward sums up dependencies from the last level to the first.
func (c *centrality) backward(r *rank, source int) error {
	lo := r.me * c.per
	dist, sigma, delta, queue := c.dist.here(r), c.sigma.here(r), c.delta.here(r), c.queue.here(r)
	for d := len(c.levels) - 2; d >= 0; d-- {
		ahead, end := c.begins[c.levels[d]], c.begins[c.levels[d+1]]
		for k := c.levels[d]; k < c.levels[d+1]; k++ {
			u := int(queue[k]) - lo
			var sum float64
			for at := c.begins[k]; at < c.begins[k+1]; at++ {
				if c.p.Variant == overlap && at+aheadChildren > ahead && ahead < end {
					next := min(ahead+aheadChildren, end)
					if err := c.prefetch(r, c.children[ahead:next]); err != nil {
						return err
					}
					ahead = next
				}
				vertex := c.children[at]
				owner, i := int(vertex)/c.per, int(vertex)%c.per
				paths, err := c.sigma.get(r, owner, i)
				if err != nil {
					return err
				}
				dependency, err := c.delta.get(r, owner, i)
				if err != nil {
					return err
				}
				sum += float64(sigma[u]) / float64(paths) * (1 + dependency)
			}
			c.delta.stores(r, u, 1)
			delta[u] = sum
			if u+lo != source {
				c.score[u] += sum
				c.inner += int(dist[u]) - 1
			}
		}
		if err := r.barrier(); err != nil { // the level's dependencies are
			return err
		}
	}
	return nil
}

// aheadChildren is how many children are prefetched together, two words each.
const aheadChildren = 8

// prefetch has the paths and dependencies of vertices be fetched.
func (c *centrality) prefetch(r *rank, vertices []uint64) error {
	for owner := range r.n {
		if c.offs = c.offs[:0]; owner == r.me {
			continue
		}
		for _, v := range vertices {
			if int(v)/c.per == owner {
				c.offs = append(c.offs, int(v)%c.per)
			}
		}
		if err := conduit.PrefetchIndexed(r.w, c.sigma.on(owner), c.offs); err != nil {
			return err
		}
		if err := conduit.PrefetchIndexed(r.w, c.delta.on(owner), c.offs); err != nil {
			return err
		}
	}
	return nil
}

// verify compares with a sequential run, and with an identity that holds on every graph: the
// centralities add up to the distances less 1.
func (c *centrality) verify(r *rank) error {
	want := make([]float64, c.g.n)
	total := 0
	for _, s := range c.g.sources(c.p.Steps) {
		total += c.g.between(s, want)
	}
	lo, hi := blockOf(c.g.n, c.per, r.me)
	var wrong error
	for v := lo; v < hi && wrong == nil; v++ {
		if got := c.score[v-lo]; !near(got, want[v], 1e-9) {
			wrong = fmt.Errorf("the centrality of vertex %d is %v, want %v", v, got, want[v])
		}
	}
	var sum float64
	for _, s := range c.score {
		sum += s
	}
	all, err := conduit.AllGatherValue(r.ctx, r.job, [2]float64{sum, float64(c.inner)})
	if wrong != nil || err != nil {
		return cmp.Or(wrong, err)
	}
	sum = 0
	inner := 0.0
	for _, of := range all {
		sum += of[0]
		inner += of[1]
	}
	if err := same("the sum of distances less 1", int(inner), total); err != nil {
		return err
	}
	if !near(sum, inner, 1e-9) {
		return fmt.Errorf("the centralities add up to %v, want %v", sum, inner)
	}
	return nil
}

// near compares with a relative difference, and an absolute one below 1.
func near(a, b, within float64) bool {
	return math.Abs(a-b) <= within*max(math.Abs(a), math.Abs(b), 1)
}
