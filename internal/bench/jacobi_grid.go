package bench

import (
	"fmt"
	"math"
)

// cubes is a periodic grid of cells in cubes of b^3: nx of them along x, as many as ranks along y,
// cubesZ along z. Neighbours are on different ranks wherever there are ranks enough.
type cubes struct {
	b, w, nx, ranks int
}

const cubesZ = 2

// local is how many cubes a rank has.
func (g cubes) local() int { return cubesZ * g.nx }

// at is the place of a rank's cube l in the grid of cubes.
func (g cubes) at(rank, l int) (c [3]int) {
	c[0], c[2] = l/cubesZ, l%cubesZ
	c[1] = ((rank-c[0]-c[2])%g.ranks + g.ranks) % g.ranks
	return c
}

// extent is the number of cubes along an axis.
func (g cubes) extent(axis int) int { return [3]int{g.nx, g.ranks, cubesZ}[axis] }

// side of a cube: 2*axis for the lower one, and 1 more for the upper one.
const sides = 6

// beyond is the cube on a side of a rank's cube l.
func (g cubes) beyond(rank, l, side int) (owner, at int) {
	c := g.at(rank, l)
	axis, n := side/2, g.extent(side/2)
	c[axis] = (c[axis] + 2*(side%2) - 1 + n) % n
	return (c[0] + c[1] + c[2]) % g.ranks, cubesZ*c[0] + c[2]
}

// face is the number of cells of a ghost face.
func (g cubes) face() int { return g.w * g.b * g.b }

// rows calls f for each row of cells in the w layers on a side, with its place in a face, and where
// it begins in the cube. Rows of the sides along x have one cell, of the others b.
func (g cubes) rows(side int, f func(face, cube, n int)) {
	lo := 0
	if side%2 == 1 {
		lo = g.b - g.w
	}
	for layer := range g.w {
		for u := range g.b {
			at := (layer*g.b + u) * g.b
			switch side / 2 {
			case 0:
				for v := range g.b {
					f(at+v, (u*g.b+v)*g.b+lo+layer, 1)
				}
			case 1:
				f(at, (u*g.b+lo+layer)*g.b, g.b)
			case 2:
				f(at, ((lo+layer)*g.b+u)*g.b, g.b)
			}
		}
	}
}

// pack copies the w layers on a side of a cube.
func (g cubes) pack(face, cube []float32, side int) {
	g.rows(side, func(to, from, n int) { copy(face[to:to+n], cube[from:from+n]) })
}

// relax makes each cell of to the mean of the cell and its neighbours up to w away along each axis.
// Of ghost faces that are nil the part is missing, which add adds.
func (g cubes) relax(to, from []float32, ghosts *[sides][]float32) {
	b, w := g.b, g.w
	weight := 1 / float32(sides*w+1)
	zero := make([]float32, b)
	padded := make([]float32, b+2*w)
	row := func(side, layer, u int) []float32 {
		if ghosts[side] == nil {
			return zero
		}
		return ghosts[side][(layer*b+u)*b:][:b]
	}
	end := func(side, layer, z, y int) float32 {
		if ghosts[side] == nil {
			return 0
		}
		return ghosts[side][(layer*b+z)*b+y]
	}
	for z := range b {
		for y := range b {
			for layer := range w {
				padded[layer], padded[w+b+layer] = end(0, layer, z, y), end(1, layer, z, y)
			}
			copy(padded[w:], from[(z*b+y)*b:][:b])
			out := to[(z*b+y)*b:][:b]
			for x := range out {
				sum := float32(0)
				for _, v := range padded[x : x+2*w+1] {
					sum += v
				}
				out[x] = sum
			}
			for d := 1; d <= w; d++ {
				var near [4][]float32
				for i, at := range [4][2]int{{z, y - d}, {z, y + d}, {z - d, y}, {z + d, y}} {
					switch {
					case at[1] < 0:
						near[i] = row(2, w+at[1], z)
					case at[1] >= b:
						near[i] = row(3, at[1]-b, z)
					case at[0] < 0:
						near[i] = row(4, w+at[0], y)
					case at[0] >= b:
						near[i] = row(5, at[0]-b, y)
					default:
						near[i] = from[(at[0]*b+at[1])*b:][:b]
					}
				}
				n0, n1, n2, n3 := near[0][:len(out)], near[1][:len(out)], near[2][:len(out)], near[3][:len(out)]
				for x := range out {
					out[x] += n0[x] + n1[x] + n2[x] + n3[x]
				}
			}
			for x := range out {
				out[x] *= weight
			}
		}
	}
}

// add adds a ghost face to cells that were relaxed without it.
func (g cubes) add(to, ghost []float32, side int) {
	weight := 1 / float32(sides*g.w+1)
	// A layer of the ghost face counts for the cells that are at most w from it.
	for layer := range g.w {
		for u := range g.b {
			for v := range g.b {
				part := weight * ghost[(layer*g.b+u)*g.b+v]
				reach := layer + 1 // cells from the side on, of a lower side
				if side%2 == 1 {
					reach = g.w - layer
				}
				for d := range reach {
					at := d
					if side%2 == 1 {
						at = g.b - 1 - d
					}
					switch side / 2 {
					case 0:
						to[(u*g.b+v)*g.b+at] += part
					case 1:
						to[(u*g.b+at)*g.b+v] += part
					case 2:
						to[(at*g.b+u)*g.b+v] += part
					}
				}
			}
		}
	}
}

// wave is a plane wave on the grid. Relaxing makes it smaller by a factor, everywhere, so that each
// cell is known after any number of iterations.
type wave struct {
	k      [3]float64 // change of phase from cell to cell
	phase  float64
	factor float64
}

// wavelength is about the cells of a wave along each axis: one iteration changes it by several per
// cent, and twenty leave a fifth of it.
const wavelength = 16

func (g cubes) wave(seed uint64) wave {
	v := wave{phase: float64(seed % 360)}
	sum := 1.0
	for axis := range v.k {
		cells := g.extent(axis) * g.b
		v.k[axis] = 2 * math.Pi * float64(max(cells/wavelength, 1)) / float64(cells)
		for d := 1; d <= g.w; d++ {
			sum += 2 * math.Cos(float64(d)*v.k[axis])
		}
	}
	v.factor = sum / float64(sides*g.w+1)
	return v
}

// each calls f with the cells of a row of a rank's cube l after some iterations, row by row.
func (g cubes) each(rank, l, iterations int, v wave, f func(at int, row []float32) error) error {
	c := g.at(rank, l)
	row := make([]float32, g.b)
	size := math.Pow(v.factor, float64(iterations))
	// The row is the real part of a complex wave: one multiplication a cell.
	stepSin, stepCos := math.Sincos(v.k[0])
	for z := range g.b {
		for y := range g.b {
			phase := v.phase + v.k[0]*float64(c[0]*g.b) + v.k[1]*float64(c[1]*g.b+y) + v.k[2]*float64(c[2]*g.b+z)
			s, c := math.Sincos(phase)
			s, c = size*s, size*c
			for x := range row {
				row[x] = float32(c)
				s, c = s*stepCos+c*stepSin, c*stepCos-s*stepSin
			}
			if err := f((z*g.b+y)*g.b, row); err != nil {
				return err
			}
		}
	}
	return nil
}

// check compares a cube with the wave.
func (g cubes) check(cube []float32, rank, l, iterations int, v wave) error {
	// Each iteration rounds 6w+1 sums of values of at most 1, and keeps less than 1 of what was wrong.
	most := float32(iterations+1) * float32(sides*g.w+1) * 6e-8
	return g.each(rank, l, iterations, v, func(at int, row []float32) error {
		for x, want := range row {
			if got := cube[at+x]; !(got-want <= most && want-got <= most) {
				return fmt.Errorf("cube %v, cell %d: %v, want %v to %v", g.at(rank, l), at+x, got, want, most)
			}
		}
		return nil
	})
}
