package bench

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// JacobiArms are all arms.
var JacobiArms = []string{ArmNormal, ArmFetch, ArmTokens, ArmAdaptive}

// JacobiParams are the size of a Jacobi. Fields that are 0 get their defaults.
type JacobiParams struct {
	Arm        string // one of JacobiArms. Default: ArmTokens
	Tokens     int    // faces that have memory at once, of ArmTokens: 1 or more. Default: 6, a cube's
	Cubes      int    // along x; a rank has twice as many. Default: 2
	Edge       int    // cells along the edge of a cube: Width to 512. Default: 64
	Width      int    // of a ghost face in cells: 1, a 7-point stencil, or 2, 13 points. Default: 1
	Iterations int    // that count. Default: 20
	Seed       uint64
}

const (
	maxCubes = 1 << 20
	maxEdge  = 512
	// floorSets is how many cubes' faces ArmAdaptive has memory for at least: with one set at a
	// time each cube waits for its own alone.
	floorSets = 8
	// headroomShare of the memory of all faces ArmAdaptive leaves free: nothing else grows.
	headroomShare = 32
)

func (p JacobiParams) complete() (JacobiParams, error) {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&p.Tokens, sides)
	set(&p.Cubes, 2)
	set(&p.Edge, 64)
	set(&p.Width, 1)
	set(&p.Iterations, 20)
	if p.Arm == "" {
		p.Arm = ArmTokens
	}
	switch {
	case !slices.Contains(JacobiArms, p.Arm):
		return p, fmt.Errorf("bench: jacobi: no arm %q; there are %v", p.Arm, JacobiArms)
	case p.Tokens < 1 || p.Tokens > sides*cubesZ*maxCubes:
		return p, fmt.Errorf("bench: jacobi: %d tokens: want 1 to %d", p.Tokens, sides*cubesZ*maxCubes)
	case p.Cubes < 1 || p.Cubes > maxCubes:
		return p, fmt.Errorf("bench: jacobi: %d cubes along x: want 1 to %d", p.Cubes, maxCubes)
	case p.Width < 1 || p.Width > 2:
		return p, fmt.Errorf("bench: jacobi: ghost faces of %d cells: want 1 or 2", p.Width)
	case p.Edge < p.Width || p.Edge > maxEdge:
		return p, fmt.Errorf("bench: jacobi: cubes of %d cells: want %d to %d", p.Edge, p.Width, maxEdge)
	case p.Iterations < 1 || p.Iterations > maxSteps:
		return p, fmt.Errorf("bench: jacobi: %d iterations: want 1 to %d", p.Iterations, maxSteps)
	}
	return p, nil
}

// cubeBytes is the persistent memory of a cube: two arrays of float32.
func (p JacobiParams) cubeBytes() int64 {
	return 2 * int64(pagepool.Round(uint64(4*p.Edge*p.Edge*p.Edge)))
}

// Sizes are the model's: of ArmNormal tau = 2 * 6 w / (2 b), as both copies of six faces of
// w b^2 cells are there for two arrays of b^3.
func (p JacobiParams) Sizes() (Footprint, error) {
	p, err := p.complete()
	persistent := int64(cubesZ*p.Cubes) * p.cubeBytes()
	if p.inParts() {
		persistent += p.cubeBytes() / 2
	}
	return p.exchange().sizes(persistent), err
}

// inParts reports whether a cube's faces come in several parts, as there are fewer tokens.
func (p JacobiParams) inParts() bool { return p.Arm == ArmTokens && p.Tokens < sides }

// exchange is what faces come by.
func (p JacobiParams) exchange() *exchange {
	return &exchange{name: faceName, arm: p.Arm, tokens: p.Tokens, bytes: 4 * p.Width * p.Edge * p.Edge,
		pieces: sides * cubesZ * p.Cubes,
		parts:  cubesZ * p.Cubes, senders: 64}
}

// Jacobi is a relaxation of a periodic grid in three dimensions, cut into cubes, many to a rank
// ("virtual processors"). Cubes keep no ghost cells: faces of their neighbours come in each
// iteration, and go when the cube is computed. Where they come from is the cube on the other side,
// also of the own rank, which answers when it has the iteration of the request.
//
// The result is known for each cell: what begins as a plane wave stays one, and shrinks.
type Jacobi struct {
	p     JacobiParams
	cubes cubes
	me    int
	wave  wave
	cells [][2][]float32 // of each cube, by the parity of the iteration
	spare []float32      // of one cube, where faces come in parts
	x     *exchange      // a face is named by its cube and side
}

const faceName = "jacobi.face"

// NewJacobi prepares one rank's part in a job of so many ranks.
func NewJacobi(p JacobiParams, ranks int) (*Jacobi, error) {
	p, err := p.complete()
	if err != nil {
		return nil, err
	}
	g := cubes{b: p.Edge, w: p.Width, nx: p.Cubes, ranks: ranks}
	j := &Jacobi{p: p, cubes: g, wave: g.wave(p.Seed), cells: make([][2][]float32, g.local()), x: p.exchange()}
	j.x.part = func(_ *conduit.Job, cube, side int) int {
		if cube < 0 || cube >= g.local() || side < 0 || side >= sides {
			return -1
		}
		return cube
	}
	j.x.pack = func(buf []byte, cube, side, iteration int) {
		j.cubes.pack(floats(buf), j.cells[cube][iteration%2], side)
	}
	j.x.start()
	return j, nil
}

// Configure sets the budget and the functions in the configuration of the job.
func (j *Jacobi) Configure(c *conduit.Config) {
	j.x.configure(&c.Memory)
	if j.p.Arm == ArmAdaptive {
		face, all := j.x.piece(), c.Memory.Budget.Limit
		c.Memory.Budget.Limit = 0
		c.Memory.Budget.Adapt = &flow.AdaptConfig{Floor: min(floorSets*sides*face, all), Ceiling: all,
			Headroom: all / headroomShare}
	}
}

// Run computes on all ranks of the worker's job together, which Configure has configured, and
// checks the result. One iteration comes before those that count.
func (j *Jacobi) Run(ctx context.Context, w *conduit.Worker) (res Usage, err error) {
	j.me = w.Job().Rank()
	closes, err := j.x.open(ctx, w)
	if err != nil {
		return res, err
	}
	defer closes()
	if res.Sizes, err = j.p.Sizes(); err != nil {
		return res, err
	}
	if err := j.fill(); err != nil {
		return res, err
	}
	if err := j.iterate(0); err != nil {
		return res, fmt.Errorf("bench: jacobi: iteration 0: %w", err)
	}
	err = j.x.measure(&res, func() error {
		for i := 1; i <= j.p.Iterations; i++ {
			if err := j.iterate(i); err != nil {
				return fmt.Errorf("bench: jacobi: iteration %d: %w", i, err)
			}
		}
		return nil
	})
	if err != nil {
		return res, err
	}
	return res, j.verify(j.p.Iterations + 1)
}

// verify checks all cubes on all ranks: each returns an error where one has found a wrong cell.
func (j *Jacobi) verify(iterations int) error {
	var wrong error
	for l := range j.cells {
		if wrong = j.cubes.check(j.cells[l][iterations%2], j.me, l, iterations, j.wave); wrong != nil {
			break
		}
	}
	return agree(j.x.ctx, j.x.job, "jacobi", wrong)
}

// fill makes the arrays, with the wave in them.
func (j *Jacobi) fill() (err error) {
	for l := range j.cubes.local() {
		var c [2][]float32
		for i := range c {
			if c[i], err = j.array(); err != nil {
				return err
			}
		}
		j.cells[l] = c
		_ = j.cubes.each(j.me, l, 0, j.wave, func(at int, row []float32) error {
			copy(c[0][at:], row)
			return nil
		})
		j.x.reached(l, 0)
	}
	if j.p.inParts() {
		j.spare, err = j.array()
	}
	return err
}

// array makes an array of a cube.
func (j *Jacobi) array() ([]float32, error) {
	b, err := j.x.memory(int64(4 * j.p.Edge * j.p.Edge * j.p.Edge))
	return floats(b), err
}

// floats are whole pages as cells.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// iterate makes iteration i+1 of all cubes.
func (j *Jacobi) iterate(i int) error {
	switch {
	case j.p.Arm == ArmNormal:
		return j.sendAll(i)
	case j.p.inParts():
		return j.fetchParts(i)
	}
	return j.fetchSets(i)
}

// compute makes iteration i+1 of a cube with all ghost faces. It writes over iteration i-1: nobody
// needs that any more, as all six neighbours have iteration i.
func (j *Jacobi) compute(l, i int, ghosts *[sides][]float32) {
	j.relax(j.cells[l][(i+1)%2], l, i, ghosts)
	j.x.reached(l, i+1)
}

// relax makes what iteration i+1 of a cube is with these ghost faces.
func (j *Jacobi) relax(to []float32, l, i int, ghosts *[sides][]float32) {
	if has := j.x.has(l); has != i {
		panic(fmt.Sprintf("bench: jacobi: iteration %d of a cube that has %d", i+1, has))
	}
	j.cubes.relax(to, j.cells[l][i%2], ghosts)
}

// ghosts are the faces of a cube that a set brings.
type ghosts [sides]*conduit.Fetched[float32]

// data are the faces that are there.
func (g *ghosts) data() (faces [sides][]float32) {
	for side, f := range g {
		faces[side] = f.Data()
	}
	return faces
}

// fetch adds the faces that a cube needs for iteration i+1 to a set.
func (j *Jacobi) fetch(set *conduit.FetchSet, l, i int) (g ghosts) {
	for side := range sides {
		rank, cube := j.cubes.beyond(j.me, l, side)
		g[side] = conduit.FetchFrom[float32](set, rank, faceName, j.cubes.face(), uint64(cube), uint64(side^1), uint64(i))
	}
	return g
}

// fetchSets computes each cube when its faces are there. It holds none while it waits.
func (j *Jacobi) fetchSets(i int) error {
	all := make([]ghosts, len(j.cells))
	return j.x.ahead(len(j.cells), sides, func(l int, set *conduit.FetchSet) { all[l] = j.fetch(set, l, i) }, func(l int) {
		faces := all[l].data()
		j.compute(l, i, &faces)
	})
}

// fetchParts computes one cube after the other with fewer faces at once than a cube has: each part
// is added when it comes. Until all have come neighbours may want faces of iteration i-1.
func (j *Jacobi) fetchParts(i int) error {
	for l := range j.cells {
		set := conduit.NewFetchSet(j.x.w)
		g := j.fetch(set, l, i)
		first := true
		err := set.Each(j.x.ctx, func(*conduit.Lease) error {
			faces := g.data()
			if first {
				j.relax(j.spare, l, i, &faces)
				first = false
				return nil
			}
			for side, f := range faces {
				if f != nil {
					j.cubes.add(j.spare, f, side)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		old := &j.cells[l][(i+1)%2]
		*old, j.spare = j.spare, *old
		j.x.reached(l, i+1)
	}
	return nil
}

// sendAll sends and receives the faces of all cubes, and computes then.
func (j *Jacobi) sendAll(i int) error {
	var out []parcel
	for l := range j.cells {
		for side := range sides {
			rank, cube := j.cubes.beyond(j.me, l, side)
			out = append(out, parcel{rank, cube, side ^ 1})
		}
	}
	came, err := j.x.trade(out, i, func(buf []byte, n int) { j.x.pack(buf, n/sides, n%sides, i) })
	if err != nil {
		return err
	}
	for l := range j.cells {
		var faces [sides][]float32
		for side := range faces {
			faces[side] = floats(came[[2]int{l, side}].Data())
		}
		j.compute(l, i, &faces)
		for side := range faces {
			came[[2]int{l, side}].Release()
		}
	}
	return j.x.w.Barrier(j.x.ctx)
}
