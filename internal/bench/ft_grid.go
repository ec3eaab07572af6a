package bench

import (
	"math"
	"math/bits"
	"math/cmplx"
)

// ftGrid is a grid of complex numbers and its parts ("virtual processors"), p1 times p2 of them.
// Part i + p1*j has lines along one axis, whole ones, of block i or j of the other two:
//
//	axis   x      y      z
//	x      whole  i/p1   j/p2
//	y      i/p1   whole  j/p2
//	z      i/p1   j/p2   whole
//
// so from x to y data go among the parts of one j, and from y to z among those of one i.
type ftGrid struct {
	n      [3]int // along x, y, z: powers of 2
	p1, p2 int    // powers of 2
}

// axis is one that lines of parts lie along.
type axis int

const (
	xAxis axis = iota
	yAxis
	zAxis
)

// axes is their order in memory, from the line's own on.
var axes = [3][3]axis{{xAxis, yAxis, zAxis}, {yAxis, xAxis, zAxis}, {zAxis, yAxis, xAxis}}

// cut are the axes whose blocks are i and j of a part.
var cut = [3][2]axis{{yAxis, zAxis}, {xAxis, zAxis}, {xAxis, yAxis}}

// gridBox is a part of the grid.
type gridBox struct{ from, n [3]int }

// newFTGrid cuts a grid into so many parts, as nearly square as it can be, where runs of so many
// parts have whole rows of p1. ok is false where the grid is too small.
func newFTGrid(n [3]int, parts, run int) (g ftGrid, ok bool) {
	g = ftGrid{n: n, p1: 1 << (bits.Len(uint(parts)-1) / 2)}
	g.p1 = min(g.p1, run)
	g.p2 = parts / g.p1
	for g.p2 > min(n[1], n[2]) && 2*g.p1 <= run {
		g.p1, g.p2 = 2*g.p1, g.p2/2
	}
	return g, g.p1 <= min(n[0], n[1]) && g.p2 <= min(n[1], n[2])
}

func (g *ftGrid) points() int { return g.n[0] * g.n[1] * g.n[2] }

// part is how many numbers a part has, and block how many go from one to another between y and z.
func (g *ftGrid) part() int  { return g.points() / (g.p1 * g.p2) }
func (g *ftGrid) block() int { return g.part() / g.p2 }

// box is what part v has of the grid while its lines lie along an axis.
func (g *ftGrid) box(along axis, v int) (b gridBox) {
	first, second := cut[along][0], cut[along][1]
	b.n = g.n
	b.n[first] /= g.p1
	b.n[second] /= g.p2
	b.from[first], b.from[second] = v%g.p1*b.n[first], v/g.p1*b.n[second]
	return b
}

// common is what two boxes have both.
func common(a, b gridBox) (c gridBox) {
	for d := range c.n {
		c.from[d] = max(a.from[d], b.from[d])
		c.n[d] = min(a.from[d]+a.n[d], b.from[d]+b.n[d]) - c.from[d]
	}
	return c
}

// steps is how far neighbours along each axis are from each other in a box's memory.
func (b gridBox) steps(along axis) (s [3]int) {
	next := 1
	for _, d := range axes[along] {
		s[d] = next
		next *= b.n[d]
	}
	return s
}

// gridPlace is a gridBox within the memory of another, whose lines lie along an axis.
type gridPlace struct {
	mem   []complex128
	at    int
	steps [3]int
}

func (b gridBox) place(mem []complex128, along axis, in gridBox) gridPlace {
	p := gridPlace{mem: mem, steps: b.steps(along)}
	for d := range p.steps {
		p.at += (in.from[d] - b.from[d]) * p.steps[d]
	}
	return p
}

// move copies a gridBox of so many numbers along each axis, line by line of where it goes.
func move(to, from gridPlace, n [3]int, along axis) {
	o := axes[along]
	a, b, c := o[0], o[1], o[2]
	ts, fs := to.steps[a], from.steps[a]
	for k := range n[c] {
		for j := range n[b] {
			t, f := to.at+k*to.steps[c]+j*to.steps[b], from.at+k*from.steps[c]+j*from.steps[b]
			for range n[a] {
				to.mem[t] = from.mem[f]
				t, f = t+ts, f+fs
			}
		}
	}
}

// pack puts what part w gets of part v into buf, in the order of w's memory, and unpack takes it
// from there; across does both without buf.
func (g *ftGrid) pack(buf, mem []complex128, from axis, v int, to axis, w int) {
	b := g.box(from, v)
	c := common(b, g.box(to, w))
	move(c.place(buf, to, c), b.place(mem, from, c), c.n, to)
}

func (g *ftGrid) unpack(mem, buf []complex128, from axis, v int, to axis, w int) {
	b := g.box(to, w)
	c := common(g.box(from, v), b)
	move(b.place(mem, to, c), c.place(buf, to, c), c.n, to)
}

func (g *ftGrid) across(dst []complex128, to axis, w int, src []complex128, from axis, v int) {
	a, b := g.box(from, v), g.box(to, w)
	c := common(a, b)
	move(b.place(dst, to, c), a.place(src, from, c), c.n, to)
}

// frequency is that of a place on an axis of n, from -n/2 on.
func frequency(k, n int) int { return (k+n/2)%n - n/2 }

// decay is what each frequency of an axis is multiplied by in a time step: exp(-4 alpha pi^2 k^2)
// (NAS-95-020, 2.3.1).
func decay(n int) []float64 {
	const alpha = 1e-6
	d := make([]float64, n)
	for k := range d {
		f := float64(frequency(k, n))
		d[k] = math.Exp(-4 * alpha * math.Pi * math.Pi * f * f)
	}
	return d
}

// nasRandom is the generator of the NAS benchmarks (NAS-95-020, 2.1): number k of the sequence,
// from 1, is 5^(13 k) times the seed modulo 2^46.
type nasRandom uint64

const (
	nasSeed   = 314159265
	nasFactor = 1220703125 // 5^13
	nasMask   = 1<<46 - 1
)

// randomAt is the generator after k numbers.
func randomAt(k int) nasRandom {
	x, f := uint64(nasSeed), uint64(nasFactor)
	for ; k > 0; k >>= 1 {
		if k&1 == 1 {
			x = x * f & nasMask
		}
		f = f * f & nasMask
	}
	return nasRandom(x)
}

func (r *nasRandom) next() float64 {
	*r = *r * nasFactor & nasMask
	return float64(*r) / (1 << 46)
}

// fft is a one-dimensional transform of n numbers, a power of 2, without a factor: Stockham's,
// whose results are in order.
type fft struct {
	roots   [2][]complex128 // of unity, forwards and backwards
	scratch []complex128
}

func newFFT(n int) *fft {
	f := &fft{scratch: make([]complex128, n)}
	for k := range n / 2 {
		w := cmplx.Rect(1, -2*math.Pi*float64(k)/float64(n))
		f.roots[0], f.roots[1] = append(f.roots[0], w), append(f.roots[1], cmplx.Conj(w))
	}
	return f
}

// lines transforms memory line by line.
func (f *fft) lines(mem []complex128, back bool) {
	roots := f.roots[0]
	if back {
		roots = f.roots[1]
	}
	for n := len(f.scratch); len(mem) >= n; mem = mem[n:] {
		x, y := mem[:n], f.scratch
		for m := 1; m < n; m *= 2 {
			for j := 0; j < n/2; j += m {
				w := roots[j]
				a, b, c, d := x[j:j+m], x[j+n/2:j+n/2+m], y[2*j:2*j+m], y[2*j+m:2*j+2*m]
				for k := range a {
					u, v := a[k], b[k]
					c[k], d[k] = u+v, w*(u-v)
				}
			}
			x, y = y, x
		}
		if bits.Len(uint(n))%2 == 0 { // an odd number of rounds: the result is in the scratch
			copy(mem[:n], f.scratch)
		}
	}
}
