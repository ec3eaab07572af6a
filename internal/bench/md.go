package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/ibconduit/conduit"
)

// md has the pattern of MiniMD (Mantevo; Plimpton 1995): Lennard-Jones atoms on a lattice, dealt
// out to the ranks in blocks, which the order of the lattice makes slabs. Each atom has a list of
// its neighbours, 76 on average, whose positions are read one by one, 24 bytes each. There is no
// exchange of ghost atoms: what neighbouring slabs have is read from them.
var md = &Kernel{
	Name: "md", What: "molecular dynamics: reads neighbours' positions by lists (MiniMD)",
	Unit:     "cells along an edge of the cube, with 4 atoms each; 3 or more",
	StepUnit: "time steps", Default: Params{N: 5, Steps: 2}, MaxN: 128,
	plan: func(l *layout, p Params) program {
		a := &atoms{box: newBox(max(p.N, 3), p.Seed), steps: p.Steps}
		a.pos = reserveSpread[vec](l, a.n)
		return a
	},
}

// MiniMD's input: density, temperature, cutoff, skin, time step, and steps between two lists.
const (
	density     = 0.8442
	temperature = 1.44
	cutoff      = 2.5
	skin        = 0.3
	timeStep    = 0.005
	listEvery   = 20
)

// box is a periodic cube of face-centred cubic cells.
type box struct {
	cells int
	n     int // atoms
	edge  float64
	pos   []vec // at the begin
	vel   []vec
}

func newBox(cells int, seed uint64) box {
	b := box{cells: cells, n: 4 * cells * cells * cells}
	lattice := math.Cbrt(4 / density)
	b.edge = lattice * float64(cells)
	rng := random(mix(seed))
	var drift vec
	for i := range b.n {
		// Of the points of the lattice of half cells, those whose coordinates have an even sum.
		x := i % cells
		y := i / cells % (2 * cells)
		z := i / (2 * cells * cells)
		at := vec{float64(2*x + (y+z)%2), float64(y), float64(z)}
		var v vec
		for d := range 3 {
			at[d] *= lattice / 2
			v[d] = rng.unit() - 0.5
			drift[d] += v[d] / float64(b.n)
		}
		b.pos, b.vel = append(b.pos, at), append(b.vel, v)
	}
	var sum float64
	for i := range b.vel {
		b.vel[i] = b.vel[i].minus(drift)
		sum += b.vel[i].dot(b.vel[i])
	}
	scale := math.Sqrt(temperature * float64(3*b.n-3) / sum)
	for i := range b.vel {
		for d := range 3 {
			b.vel[i][d] *= scale
		}
	}
	return b
}

// apart is the shortest way from one atom to another, over the borders of the box if it is shorter.
func (b *box) apart(from, to vec) vec {
	d := from.minus(to)
	for k := range d {
		d[k] -= b.edge * math.RoundToEven(d[k]/b.edge)
	}
	return d
}

// wrap brings an atom back into the box.
func (b *box) wrap(p vec) vec {
	for k := range p {
		p[k] -= b.edge * math.Floor(p[k]/b.edge)
	}
	return p
}

// pair adds to an atom what another one does to it: force, energy and virial, the last two half.
type pull struct {
	force          vec
	energy, virial float64
}

func (f *pull) add(b *box, from, to vec) {
	d := b.apart(from, to)
	r2 := d.dot(d)
	if r2 >= cutoff*cutoff {
		return
	}
	inv := 1 / r2
	inv6 := inv * inv * inv
	size := 48 * inv6 * (inv6 - 0.5) * inv
	for k := range d {
		f.force[k] += d[k] * size
	}
	f.energy += 4 * inv6 * (inv6 - 1) / 2
	f.virial += r2 * size / 2
}

// lists are the neighbours of atoms lo to before hi, within cutoff and skin, each list in
// ascending order. Bins keep it linear.
func (b *box) lists(pos []vec, lo, hi int) [][]int32 {
	const reach = cutoff + skin
	across := int(b.edge / reach)
	if across < 3 { // every bin is next to every other
		across = 1
	}
	bin := func(p vec) (at [3]int) {
		for k := range p {
			at[k] = min(int(p[k]/b.edge*float64(across)), across-1)
		}
		return at
	}
	number := func(at [3]int) int { return at[0] + across*(at[1]+across*at[2]) }
	bins := make([][]int32, across*across*across)
	for i, p := range pos {
		k := number(bin(p))
		bins[k] = append(bins[k], int32(i))
	}
	all := make([][]int32, hi-lo)
	for i := lo; i < hi; i++ {
		at := bin(pos[i])
		var list []int32
		for _, near := range neighbours(at, across) {
			for _, j := range bins[number(near)] {
				if d := b.apart(pos[i], pos[j]); int(j) != i && d.dot(d) < reach*reach {
					list = append(list, j)
				}
			}
		}
		slices.Sort(list)
		all[i-lo] = list
	}
	return all
}

// neighbours are the bins around one, itself included, over the borders too.
func neighbours(at [3]int, across int) (all [][3]int) {
	if across == 1 {
		return [][3]int{at}
	}
	for k := range 27 {
		all = append(all, [3]int{
			(at[0] + k%3 - 1 + across) % across,
			(at[1] + k/3%3 - 1 + across) % across,
			(at[2] + k/9 - 1 + across) % across,
		})
	}
	return all
}

// state is the sum over atoms at one time.
type state struct{ kinetic, potential, virial float64 }

// simulate runs all atoms in this process, and returns their positions and the states before each
// step and after the last.
func (b *box) simulate(steps int) (pos []vec, all []state) {
	pos, vel, force := slices.Clone(b.pos), slices.Clone(b.vel), make([]vec, b.n)
	var list [][]int32
	for s := 0; ; s++ {
		if s%listEvery == 0 {
			for i := range pos {
				pos[i] = b.wrap(pos[i])
			}
			list = b.lists(pos, 0, b.n)
		}
		var st state
		for i := range pos {
			var f pull
			for _, j := range list[i] {
				f.add(b, pos[i], pos[j])
			}
			force[i] = f.force
			st.potential += f.energy
			st.virial += f.virial
		}
		for i := range pos {
			if s > 0 {
				kick(&vel[i], force[i])
			}
			st.kinetic += vel[i].dot(vel[i]) / 2
		}
		all = append(all, st)
		if s == steps {
			return pos, all
		}
		for i := range pos {
			kick(&vel[i], force[i])
			drift(&pos[i], vel[i])
		}
	}
}

// kick and drift are the halves of a step of velocity Verlet.
func kick(v *vec, force vec) {
	for k := range v {
		v[k] += timeStep / 2 * force[k]
	}
}

func drift(p *vec, v vec) {
	for k := range p {
		p[k] += timeStep * v[k]
	}
}

// atoms is one rank's part.
type atoms struct {
	box
	steps int
	pos   spread[vec]
	v, f  []vec // of this rank's atoms
	all   []vec // copies of all positions, for lists
	list  [][]int32
	last  state // of this rank's atoms
	want  []vec // positions at the end
	end   state // of all atoms
}

// Lattice at temperature 1.44 before the first step, as MiniMD prints it for its default size. The
// potential of a perfect lattice does not depend on how many cells there are, if the cutoff fits.
const (
	startEnergy   = -6.773368 // for each atom
	startPressure = -5.019671
)

// setup simulates sequentially, and checks that.
func (a *atoms) setup(r *rank) error {
	a.pos.bind(r)
	pos, states := a.simulate(a.steps)
	a.want = pos
	n := float64(a.n)
	first, last := states[0], states[len(states)-1]
	a.end = last
	volume := a.edge * a.edge * a.edge
	if t := 2 * first.kinetic / (3*n - 3); !near(t, temperature, 1e-12) {
		return fmt.Errorf("bench: md: the temperature is %v, want %v", t, temperature)
	}
	if e := first.potential / n; math.Abs(e-startEnergy) > 1e-5 {
		return fmt.Errorf("bench: md: the energy of an atom is %v, want %v", e, startEnergy)
	}
	if p := (2*first.kinetic/3*n/(n-1) + first.virial/3) / volume; math.Abs(p-startPressure) > 1e-3 {
		return fmt.Errorf("bench: md: the pressure is %v, want %v", p, startPressure)
	}
	if a, b := first.kinetic+first.potential, last.kinetic+last.potential; math.Abs(a-b) > 0.02*n { // pairs that cross the cutoff change it
		return fmt.Errorf("bench: md: the energy changed from %v to %v", a, b)
	}
	var before, after vec // the centre moves if momentum is not 0
	for i := range pos {
		d := a.apart(pos[i], a.box.pos[i])
		for k := range d {
			before[k] += math.Abs(d[k])
			after[k] += d[k]
		}
	}
	for k := range after {
		if a.steps > 0 && math.Abs(after[k]) > 1e-9*before[k] {
			return fmt.Errorf("bench: md: the centre moved by %v along axis %d", after[k]/n, k)
		}
	}
	return nil
}

func (a *atoms) prepare(r *rank) error {
	lo, hi := a.pos.mine(r.me)
	copy(a.pos.here(r), a.box.pos[lo:hi])
	a.pos.stores(r, 0, hi-lo)
	a.v, a.f = append(a.v[:0], a.vel[lo:hi]...), make([]vec, hi-lo)
	a.all = make([]vec, a.n)
	return nil
}

func (a *atoms) run(r *rank) error {
	lo, hi := a.pos.mine(r.me)
	mine := a.pos.here(r)[:hi-lo]
	for s := 0; ; s++ {
		if s%listEvery == 0 {
			if err := a.relist(r, mine); err != nil {
				return err
			}
		}
		st, err := a.forces(r, mine)
		if err != nil {
			return err
		}
		for i := range mine {
			if s > 0 {
				kick(&a.v[i], a.f[i])
			}
			st.kinetic += a.v[i].dot(a.v[i]) / 2
		}
		a.last = st
		if s == a.steps {
			return nil
		}
		if err := r.barrier(); err != nil { // positions are read
			return err
		}
		a.pos.stores(r, 0, hi-lo)
		for i := range mine {
			kick(&a.v[i], a.f[i])
			drift(&mine[i], a.v[i])
		}
		if err := r.barrier(); err != nil { // they are there
			return err
		}
	}
}

// relist makes new lists, from the positions of all ranks.
func (a *atoms) relist(r *rank, mine []vec) error {
	a.pos.stores(r, 0, len(mine))
	for i := range mine {
		mine[i] = a.wrap(mine[i])
	}
	if err := r.barrier(); err != nil { // all are wrapped
		return err
	}
	for rank := range r.n {
		lo, hi := a.pos.mine(rank)
		if lo == hi {
			continue
		}
		if err := conduit.GetSlice(r.w, a.all[lo:hi], a.pos.on(rank)); err != nil {
			return err
		}
	}
	lo, hi := a.pos.mine(r.me)
	a.list = a.lists(a.all, lo, hi)
	return nil
}

// forces on this rank's atoms.
func (a *atoms) forces(r *rank, mine []vec) (st state, err error) {
	for i, p := range mine {
		var f pull
		for _, j := range a.list[i] {
			q, err := a.pos.get(r.w, int(j))
			if err != nil {
				return st, err
			}
			f.add(&a.box, p, q)
		}
		a.f[i] = f.force
		st.potential += f.energy
		st.virial += f.virial
	}
	return st, nil
}

// verify compares positions with the sequential run, bit by bit, and energies up to the order of
// their sum.
func (a *atoms) verify(r *rank) error {
	var wrong error
	lo, hi := a.pos.mine(r.me)
	for i, p := range a.pos.here(r)[:hi-lo] {
		if p != a.want[lo+i] {
			wrong = fmt.Errorf("atom %d is at %v, want %v", lo+i, p, a.want[lo+i])
			break
		}
	}
	all, err := conduit.AllGatherValue(r.ctx, r.job, a.last)
	if wrong != nil || err != nil {
		return cmp.Or(wrong, err)
	}
	var sum state
	for _, st := range all {
		sum.kinetic += st.kinetic
		sum.potential += st.potential
		sum.virial += st.virial
	}
	if !near(sum.kinetic, a.end.kinetic, 1e-9) || !near(sum.potential, a.end.potential, 1e-9) ||
		!near(sum.virial, a.end.virial, 1e-9) {
		return fmt.Errorf("energies and virial are %v, want %v", sum, a.end)
	}
	return nil
}
