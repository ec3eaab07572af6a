package bench

import (
	"fmt"
	"math"

	"github.com/ibconduit/conduit"
)

// stencil has the pattern of LULESH (LLNL-TR-490254): a mesh of n^3 hexahedra, whose elements and
// nodes lie on the ranks in blocks. An element gathers the coordinates of its 8 nodes, 24 doubles
// from three arrays, and leaves a force for each of its corners; a node sums up those of the
// elements around it, 24 doubles again, and moves. From one row and one plane of elements to the
// next most nodes are the same.
var stencil = &Kernel{
	Name: "stencil", What: "a hexahedral mesh: gathers node coordinates, scatters corner forces (LULESH)",
	Unit:     "elements along an edge of the cube",
	StepUnit: "time steps", Default: Params{N: 10, Steps: 1}, MaxN: 512,
	plan: func(l *layout, p Params) program {
		h := &hexes{mesh: mesh{n: p.N, m: p.N + 1}, steps: p.Steps}
		for d := range 3 {
			h.pos[d] = reserveSpread[float64](l, h.nodes())
			h.force[d] = reserveSpread[float64](l, 8*h.elements())
		}
		return h
	},
}

// mesh is the unit cube, cut into n^3 elements with m = n+1 nodes along each edge.
type mesh struct{ n, m int }

func (g mesh) elements() int { return g.n * g.n * g.n }
func (g mesh) nodes() int    { return g.m * g.m * g.m }

// start is a coordinate of a node before the first step.
func (g mesh) start(node, d int) float64 { return float64(g.index(node, d, g.m)) / float64(g.n) }

// index is the position of a node or an element along an axis.
func (mesh) index(i, d, edge int) int {
	for range d {
		i /= edge
	}
	return i % edge
}

// corners are the nodes of an element: corner c is 1 further along axis d for each bit d of c.
func (g mesh) corners(element int) (nodes [8]int) {
	x, y, z := element%g.n, element/g.n%g.n, element/(g.n*g.n)
	first := x + g.m*(y+g.m*z)
	for c := range nodes {
		nodes[c] = first + c&1 + g.m*(c>>1&1+g.m*(c>>2&1))
	}
	return nodes
}

// around calls f with the elements that have a node as corner, and which corner it is.
func (g mesh) around(node int, f func(element, c int) error) error {
	x, y, z := node%g.m, node/g.m%g.m, node/(g.m*g.m)
	for c := range 8 {
		ex, ey, ez := x-c&1, y-c>>1&1, z-c>>2&1
		if ex < 0 || ey < 0 || ez < 0 || ex >= g.n || ey >= g.n || ez >= g.n {
			continue
		}
		if err := f(ex+g.n*(ey+g.n*ez), c); err != nil {
			return err
		}
	}
	return nil
}

// pressure of an element, alike for all orders of its three indices: then so are the results.
func (g mesh) pressure(element int) float64 {
	x, y, z := element%g.n, element/g.n%g.n, element/(g.n*g.n)
	return 1 / float64(1+x+y+z)
}

type vec [3]float64

func (a vec) minus(b vec) vec { return vec{a[0] - b[0], a[1] - b[1], a[2] - b[2]} }

func (a vec) cross(b vec) vec {
	return vec{a[1]*b[2] - a[2]*b[1], a[2]*b[0] - a[0]*b[2], a[0]*b[1] - a[1]*b[0]}
}

func (a vec) dot(b vec) float64 { return a[0]*b[0] + a[1]*b[1] + a[2]*b[2] }

// faces of an element by corners, so that the cross product of the diagonals points outwards.
var faces = [6][4]int{{0, 4, 6, 2}, {1, 3, 7, 5}, {0, 1, 5, 4}, {2, 6, 7, 3}, {0, 2, 3, 1}, {4, 5, 7, 6}}

// squeeze is what an element does with its corners: the pressure on each face, a quarter of it to
// each of the face's corners. The volume is a third of the sum of face centre times area (the
// divergence theorem), exact for flat faces.
func squeeze(at *[8]vec, pressure float64) (force [8]vec, volume float64) {
	for _, f := range &faces {
		a, b, c, d := &at[f[0]&7], &at[f[1]&7], &at[f[2]&7], &at[f[3]&7]
		x := c.minus(*a).cross(d.minus(*b)) // twice the area
		volume += (a[0]+b[0]+c[0]+d[0])*x[0] + (a[1]+b[1]+c[1]+d[1])*x[1] + (a[2]+b[2]+c[2]+d[2])*x[2]
		push := pressure / 8
		for _, corner := range f {
			to := &force[corner&7]
			to[0], to[1], to[2] = to[0]+push*x[0], to[1]+push*x[1], to[2]+push*x[2]
		}
	}
	return force, volume / 24
}

// step is how far a force of 1 moves a node, which has the same mass everywhere.
const step = 0.01

// hexes is one rank's part.
type hexes struct {
	mesh
	steps      int
	pos, force [3]spread[float64]
	volume     float64      // of this rank's elements, at the first step
	want       [3][]float64 // positions at the end
}

// setup computes the result sequentially, and checks it for what must hold of it.
func (h *hexes) setup(r *rank) error {
	var pos, force [3][]float64
	for d := range 3 {
		h.pos[d].bind(r)
		h.force[d].bind(r)
		pos[d], force[d] = make([]float64, h.nodes()), make([]float64, 8*h.elements())
		for i := range pos[d] {
			pos[d][i] = h.start(i, d)
		}
	}
	for range h.steps {
		for e := range h.elements() {
			var at [8]vec
			for c, node := range h.corners(e) {
				for d := range 3 {
					at[c][d] = pos[d][node]
				}
			}
			f, _ := squeeze(&at, h.pressure(e))
			for c := range 8 {
				for d := range 3 {
					force[d][8*e+c] = f[c][d]
				}
			}
		}
		for i := range h.nodes() {
			var sum vec
			_ = h.around(i, func(e, c int) error {
				for d := range 3 {
					sum[d] += force[d][8*e+c]
				}
				return nil
			})
			for d := range 3 {
				pos[d][i] += step * sum[d]
			}
		}
	}
	h.want = pos
	return h.plausible()
}

// plausible checks that the forces add up to nothing, and that the axes are alike.
func (h *hexes) plausible() error {
	for d := range 3 {
		var moved, by float64
		for i, x := range h.want[d] {
			moved += x - h.start(i, d)
			by += math.Abs(x - h.start(i, d))
		}
		if math.Abs(moved) > 1e-9*by {
			return fmt.Errorf("bench: stencil: the forces along axis %d add up to %v, want 0", d, moved)
		}
	}
	for i := range h.nodes() {
		x, y, z := i%h.m, i/h.m%h.m, i/(h.m*h.m)
		turned := y + h.m*(z+h.m*x) // its axis 2 is x
		if !near(h.want[0][i], h.want[2][turned], 1e-8) {
			return fmt.Errorf("bench: stencil: node %d is at %v along axis 0, and its mirror image at %v along axis 2", i,
				h.want[0][i], h.want[2][turned])
		}
	}
	return nil
}

func (h *hexes) prepare(r *rank) error {
	for d := range 3 {
		lo, hi := h.pos[d].mine(r.me)
		mem := h.pos[d].here(r)
		for i := lo; i < hi; i++ {
			mem[i-lo] = h.start(i, d)
		}
		clear(h.force[d].here(r))
		h.pos[d].stores(r, 0, hi-lo)
		h.force[d].stores(r, 0, h.force[d].per)
	}
	h.volume = 0
	return nil
}

func (h *hexes) run(r *rank) error {
	for s := range h.steps {
		if err := h.gather(r, s == 0); err != nil {
			return err
		}
		if err := r.barrier(); err != nil { // the forces are there
			return err
		}
		if err := h.move(r); err != nil {
			return err
		}
		if err := r.barrier(); err != nil { // the nodes are there, and the forces read
			return err
		}
	}
	return nil
}

// owned are the elements of a rank.
func (h *hexes) owned(rank int) (lo, hi int) {
	lo, hi = h.force[0].mine(rank)
	return (lo + 7) / 8, (hi + 7) / 8
}

// gather goes through this rank's elements. Their corner forces are nearly all its own memory.
func (h *hexes) gather(r *rank, first bool) error {
	lo, hi := h.owned(r.me)
	for d := range 3 {
		first, end := h.force[d].mine(r.me)
		h.force[d].stores(r, 8*lo-first, min(8*hi, end)-8*lo)
	}
	for e := lo; e < hi; e++ {
		var at [8]vec
		for c, node := range h.corners(e) {
			for d := range 3 {
				v, err := h.pos[d].get(r.w, node)
				if err != nil {
					return err
				}
				at[c][d] = v
			}
		}
		force, volume := squeeze(&at, h.pressure(e))
		if first {
			h.volume += volume
		}
		for c := range 8 {
			for d := range 3 {
				if err := h.force[d].put(r.w, 8*e+c, force[c][d]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// move sums up the forces on this rank's nodes.
func (h *hexes) move(r *rank) error {
	lo, hi := h.pos[0].mine(r.me)
	mem := [3][]float64{h.pos[0].here(r), h.pos[1].here(r), h.pos[2].here(r)}
	for d := range 3 {
		h.force[d].loads(r, 0, h.force[d].per)
		h.pos[d].stores(r, 0, hi-lo)
	}
	for i := lo; i < hi; i++ {
		var sum vec
		err := h.around(i, func(e, c int) error {
			for d := range 3 {
				v, err := h.force[d].get(r.w, 8*e+c)
				if err != nil {
					return err
				}
				sum[d] += v
			}
			return nil
		})
		if err != nil {
			return err
		}
		for d := range 3 {
			mem[d][i-lo] += step * sum[d]
		}
	}
	return nil
}

// verify compares with the sequential result, bit by bit, as every sum has one order; the volume
// of the brick is 1.
func (h *hexes) verify(r *rank) error {
	var wrong error
	for d := range 3 {
		lo, hi := h.pos[d].mine(r.me)
		mem := h.pos[d].here(r)
		for i := lo; i < hi && wrong == nil; i++ {
			if mem[i-lo] != h.want[d][i] {
				wrong = fmt.Errorf("node %d is at %v along axis %d, want %v", i, mem[i-lo], d, h.want[d][i])
			}
		}
	}
	all, err := conduit.AllGatherValue(r.ctx, r.job, h.volume)
	if wrong != nil {
		return wrong
	}
	var volume float64
	for _, v := range all {
		volume += v
	}
	if err == nil && !near(volume, 1, 1e-12) {
		err = fmt.Errorf("the volume is %v, want 1", volume)
	}
	return err
}
