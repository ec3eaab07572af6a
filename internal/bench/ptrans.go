package bench

import (
	"fmt"
	"math"

	"github.com/ibconduit/conduit"
)

// ptrans is C = beta C + A^T of two n x n matrices of doubles, both in blocks over a grid of ranks
// (HPC Challenge PTRANS, as in Chapel's study of its cache). A rank goes through its block of C row
// by row, and so through blocks of A column by column: one get of 8 bytes for each element. Each
// line of A holds 8 columns, so that it is used again one column later: after as many other lines
// as the block has rows.
var ptrans = &Kernel{
	Name: "ptrans", What: "C = beta C + A^T: walks along the columns of remote blocks",
	Unit:     "rows and columns, rounded up to a multiple of the ranks",
	Variants: []string{"naive", "prefetch", "tiled", "put"},
	Default:  Params{N: 128}, MaxN: 1 << 15,
	plan: func(l *layout, p Params) program {
		t := &transpose{p: p, rows: gridRows(l.ranks)}
		t.cols = l.ranks / t.rows
		t.n = (p.N + l.ranks - 1) / l.ranks * l.ranks
		t.height, t.width = t.n/t.rows, t.n/t.cols
		t.a, t.c = reserve[float64](l, t.height*t.width), reserve[float64](l, t.height*t.width)
		return t
	},
}

// gridRows is the number of rows of the grid that is as square as the ranks allow.
func gridRows(ranks int) int {
	rows := 1
	for r := 1; r*r <= ranks; r++ {
		if ranks%r == 0 {
			rows = r
		}
	}
	return rows
}

const (
	beta = 0.5

	// The variants with hints fetch so many elements of a row of A, as many as a page of 1 KiB has, so
	// many rows ahead: 32 KiB, which a cache has in flight at most.
	aheadWidth = 128
	aheadRows  = 32
	lineWidth  = 8  // elements of a line
	tileRows   = 64 // of A, with aheadWidth columns: 64 KiB
)

// transpose. The prefetch variant is the naive one with hints to the cache, the tiled one too, but
// in tiles that small caches hold. The put variant leaves C out of the sum: it is A^T, written
// element by element from the owner of A.
type transpose struct {
	p             Params
	n             int
	rows, cols    int // of the grid
	height, width int // of a block
	a, c          place[float64]
	top, left     int // of this rank's block

	erf, cos, sin, cbrt []float64
}

func (t *transpose) setup(r *rank) error {
	t.top, t.left = r.me/t.cols*t.height, r.me%t.cols*t.width
	of := func(f func(float64) float64) []float64 {
		v := make([]float64, t.n)
		for i := range v {
			v[i] = f(float64(i))
		}
		return v
	}
	t.erf, t.cos, t.sin, t.cbrt = of(math.Erf), of(math.Cos), of(math.Sin), of(math.Cbrt)
	a := t.a.here(r)
	t.a.stores(r, 0, t.a.n)
	for i := range t.height {
		for j := range t.width {
			a[i*t.width+j] = t.elementA(t.top+i, t.left+j)
		}
	}
	return nil
}

// elementA and elementC are what the matrices begin with: A[i,j] = erf(i) cos(j), C[i,j] = sin(j)
// cbrt(i).
func (t *transpose) elementA(i, j int) float64 { return t.erf[i] * t.cos[j] }
func (t *transpose) elementC(i, j int) float64 { return t.sin[j] * t.cbrt[i] }

func (t *transpose) prepare(r *rank) error {
	c := t.c.here(r)
	t.c.stores(r, 0, t.c.n)
	for i := range t.height {
		for j := range t.width {
			c[i*t.width+j] = t.elementC(t.top+i, t.left+j)
		}
	}
	return nil
}

func (t *transpose) run(r *rank) error {
	switch t.p.Variant {
	case "put":
		return t.scatter(r)
	case "tiled":
		for i := 0; i < t.height; i += aheadWidth {
			for j := 0; j < t.width; j += tileRows {
				if err := t.gather(r, i, min(i+aheadWidth, t.height), j, min(j+tileRows, t.width)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return t.gather(r, 0, t.height, 0, t.width)
}

// column is the elements of a column of a matrix, from a row on, that one rank has.
type column struct {
	owner int
	first int // index in the owner's block; the next one is a row of the block further
	end   int // of the loop along the column, before limit
}

// part is where column col goes on in row left+k.
func (t *transpose) part(k, col, limit int) column {
	row := t.left + k
	return column{
		owner: row/t.height*t.cols + col/t.width,
		first: row%t.height*t.width + col%t.width,
		end:   min(limit, k+t.height-row%t.height),
	}
}

// gather computes rows i to before iEnd, and columns j to before jEnd, of this rank's block of C.
func (t *transpose) gather(r *rank, i, iEnd, j, jEnd int) error {
	a, c := t.a.here(r), t.c.here(r)
	for ; i < iEnd; i++ {
		out := c[i*t.width : (i+1)*t.width]
		for k := j; k < jEnd; {
			p := t.part(k, t.top+i, jEnd)
			if p.owner == r.me {
				for at := p.first; k < p.end; k, at = k+1, at+t.width {
					out[k] = beta*out[k] + a[at]
				}
				continue
			}
			if t.p.Variant != "naive" {
				if err := t.ahead(r, p, k, out); err != nil {
					return err
				}
				k = p.end
				continue
			}
			for at := t.a.on(p.owner).Add(p.first); k < p.end; k, at = k+1, at.Add(t.width) {
				v, err := conduit.Get(r.w, at)
				if err != nil {
					return err
				}
				out[k] = beta*out[k] + v
			}
		}
	}
	return nil
}

// ahead is the loop of gather along one column, with a prefetch of each row some rows ahead: of
// aheadWidth columns when the first one of them is walked along, of a line when that is begun,
// which does nothing where the cache was large enough to keep the first.
func (t *transpose) ahead(r *rank, p column, k int, out []float64) error {
	col, wide := p.first%t.width, 0
	switch {
	case col%aheadWidth == 0:
		wide = min(aheadWidth, t.width-col)
	case col%lineWidth == 0:
		wide = min(lineWidth, t.width-col)
	}
	at := t.a.on(p.owner).Add(p.first)
	next := at
	for row := k; k < p.end; k, at = k+1, at.Add(t.width) {
		for ; wide > 0 && row < min(k+aheadRows, p.end); row, next = row+1, next.Add(t.width) {
			if err := conduit.Prefetch(r.w, next, wide); err != nil {
				return err
			}
		}
		v, err := conduit.Get(r.w, at)
		if err != nil {
			return err
		}
		out[k] = beta*out[k] + v
	}
	return nil
}

// scatter writes this rank's block of A to where C has it.
func (t *transpose) scatter(r *rank) error {
	a, c := t.a.here(r), t.c.here(r)
	for i := range t.height {
		in := a[i*t.width : (i+1)*t.width]
		for k := 0; k < t.width; {
			p := t.part(k, t.top+i, t.width)
			if p.owner == r.me {
				for at := p.first; k < p.end; k, at = k+1, at+t.width {
					c[at] = in[k]
				}
				continue
			}
			for at := t.c.on(p.owner).Add(p.first); k < p.end; k, at = k+1, at.Add(t.width) {
				if err := conduit.Put(r.w, at, in[k]); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// verify has HPC Challenge's bound: no element is off by more than eps (|A| + |beta| |C|), with
// Frobenius norms.
func (t *transpose) verify(r *rank) error {
	sum := func(v []float64) (s float64) {
		for _, x := range v {
			s += x * x
		}
		return s
	}
	b := beta
	if t.p.Variant == "put" {
		b = 0
	}
	const eps = 1.0 / (1 << 52)
	bound := eps * (math.Sqrt(sum(t.erf)*sum(t.cos)) + b*math.Sqrt(sum(t.sin)*sum(t.cbrt)))
	c := t.c.here(r)
	t.c.loads(r, 0, t.c.n)
	for i := range t.height {
		for j := range t.width {
			want := b*t.elementC(t.top+i, t.left+j) + t.elementA(t.left+j, t.top+i)
			if got := c[i*t.width+j]; !(math.Abs(got-want) <= bound) {
				return fmt.Errorf("C[%d,%d] is %v, want %v", t.top+i, t.left+j, got, want)
			}
		}
	}
	return nil
}
