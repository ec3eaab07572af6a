package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/flow/pressure"
	"github.com/ibconduit/conduit/internal/offheap"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// The arms of Jacobi: how ghost faces come from cube to cube.
const (
	// JacobiNormal packs and sends the faces of all cubes, and receives all, before it computes, as
	// a program of MPI with one wait for all: both copies of each face exist at once.
	JacobiNormal = "normal"
	// JacobiFetch fetches all faces of a rank in one set: the copies of the receiver exist at once.
	JacobiFetch = "fetch"
	// JacobiTokens fetches the faces of a cube in a set, with memory for so many faces.
	JacobiTokens = "tokens"
	// JacobiAdaptive is JacobiTokens with a budget that follows the machine's memory.
	JacobiAdaptive = "adaptive"
)

// JacobiArms are all arms.
var JacobiArms = []string{JacobiNormal, JacobiFetch, JacobiTokens, JacobiAdaptive}

// JacobiParams are the size of a Jacobi. What is 0 gets its default.
type JacobiParams struct {
	Arm    string // one of JacobiArms. Default: JacobiTokens
	Tokens int    // faces that have memory at once, of JacobiTokens: 1 or more. Default: 6, a cube's
	Cubes  int    // along x; a rank has twice as many. Default: 2
	Edge   int    // cells along the edge of a cube: Width to 512. Default: 64
	Width  int    // of a ghost face in cells: 1, a 7-point stencil, or 2, 13 points. Default: 1
	// Latency is by how much later a rank answers who fetches a face, as over a far network: the less
	// memory there is for what is under way, the more often it is waited for.
	Latency time.Duration
	// Iterations that count. Default: 20.
	Iterations int
	// For is how long to iterate at least, beyond Iterations.
	For  time.Duration
	Seed uint64
}

const (
	maxCubes = 1 << 20
	maxEdge  = 512
	// packers is how many faces a rank packs and sends at once to who fetches them. Their buffers are
	// the rank's own: to wait for memory there could wait for who waits for the face.
	packers = 4
	// floorSets is how many cubes' faces JacobiAdaptive has memory for at least: with one set at a
	// time each cube waits for its own alone.
	floorSets = 8
	// headroomShare of the memory of all faces JacobiAdaptive leaves free: nothing else grows.
	headroomShare = 32
	// senders is how many sends of JacobiNormal are in the library at once: each has a goroutine,
	// which waits for the receiver twice.
	senders = 64
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
		p.Arm = JacobiTokens
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
	case p.Iterations < 1 || p.Iterations > maxSteps || p.For < 0 || p.Latency < 0:
		return p, fmt.Errorf("bench: jacobi: %d iterations, for %v, %v late: want 1 to %d, and 0 or more", p.Iterations, p.For, p.Latency, maxSteps)
	}
	return p, nil
}

// faceBytes is what a face takes of memory.
func (p JacobiParams) faceBytes() int64 {
	return int64(pagepool.Round(uint64(4 * p.Width * p.Edge * p.Edge)))
}

// cubeBytes is the persistent memory of a cube: two arrays of float32.
func (p JacobiParams) cubeBytes() int64 {
	return 2 * int64(pagepool.Round(uint64(4*p.Edge*p.Edge*p.Edge)))
}

// JacobiSizes is the memory that a rank needs, in bytes.
type JacobiSizes struct {
	Persistent int64   `json:"persistent"` // two arrays for each cube
	Face       int64   `json:"face"`       // a ghost face, in whole pages
	InFlight   int64   `json:"in_flight"`  // ghost faces and packed ones at the peak, all of this rank
	Tau        float64 `json:"tau"`        // of JacobiNormal: InFlight / Persistent
}

// Sizes is what the model says: for JacobiNormal tau = 2 * 6 w / (2 b), as both copies of six faces
// of w b^2 cells are there for two arrays of b^3.
func (p JacobiParams) Sizes() (JacobiSizes, error) {
	p, err := p.complete()
	n := int64(cubesZ * p.Cubes)
	s := JacobiSizes{Persistent: n * p.cubeBytes(), Face: p.faceBytes()}
	all := n * sides * s.Face
	s.Tau = 2 * float64(all) / float64(max(s.Persistent, 1))
	switch p.Arm {
	case JacobiNormal:
		s.InFlight = 2 * all
	case JacobiFetch:
		s.InFlight = all + packers*s.Face
	default:
		s.InFlight = min(int64(p.Tokens)*s.Face, all) + packers*s.Face
	}
	return s, err
}

// Jacobi is a relaxation of a periodic grid in three dimensions, cut into cubes, many to a rank
// ("virtual processors"). Cubes keep no ghost cells: faces of their neighbours come in each
// iteration, and go when the cube is computed. Where they come from is the cube on the other side,
// also of the own rank, which answers when it has the iteration that is asked for.
//
// The result is known for each cell: what begins as a plane wave stays one, and shrinks.
type Jacobi struct {
	// Counting is called when the iterations that count begin. nil: not.
	Counting func()

	p      JacobiParams
	cubes  cubes
	me     int
	wave   wave
	free   []func()       // of arrays and buffers
	packed int64          // bytes of faces that were packed, the most at once
	cells  [][2][]float32 // of each cube, by the parity of the iteration
	job    *conduit.Job
	w      *conduit.Worker
	ctx    context.Context
	life   context.Context // of what other ranks ask for, also before Run
	end    context.CancelFunc

	mu      sync.Mutex
	served  uint64
	ready   []int // the iteration that each cube has, -1: none
	later   map[faceKey][]*conduit.FetchRequest
	asked   chan *conduit.FetchRequest
	came    [][sides]*conduit.Payload // ghost faces of the iteration, of JacobiNormal
	arrived int                       // of them, and not computed
	all     chan struct{}             // all have
}

// faceKey is a face that another cube needs.
type faceKey struct{ cube, side, iteration int }

const faceName = "jacobi.face"

// JacobiResult is what one rank found.
type JacobiResult struct {
	Sizes      JacobiSizes
	Elapsed    time.Duration   // of the iterations that count
	Faults     int64           // major faults meanwhile; -1: not known
	Iterations []time.Duration // each of them
	FaultsEach []int64
	Limits     []int64 // of the budget, at the end of each
	Peak       int64   // bytes of ghost faces and packed ones, the most at once
	Ghosts     int64   // of Peak what the library's budget had, at its own peak
}

// NewJacobi prepares one rank's part in a job of so many ranks.
func NewJacobi(p JacobiParams, ranks int) (*Jacobi, error) {
	p, err := p.complete()
	if err != nil {
		return nil, err
	}
	g := cubes{b: p.Edge, w: p.Width, nx: p.Cubes, ranks: ranks}
	j := &Jacobi{p: p, cubes: g, wave: g.wave(p.Seed), later: map[faceKey][]*conduit.FetchRequest{}, all: make(chan struct{}, 1)}
	// As many requests as there can be: whoever asks is not held up.
	j.asked = make(chan *conduit.FetchRequest, sides*g.local()*2)
	j.ready = slices.Repeat([]int{-1}, g.local())
	j.life, j.end = context.WithCancel(context.Background())
	j.came = make([][sides]*conduit.Payload, g.local())
	return j, nil
}

// Configure sets the budget and the functions in the configuration of the job.
func (j *Jacobi) Configure(c *conduit.Config) {
	face, all := j.p.faceBytes(), int64(sides*j.cubes.local())*j.p.faceBytes()
	m := &c.Memory
	m.Budget = flow.BudgetConfig{Small: -1, Unscheduled: -1, StallAfter: time.Minute}
	m.ReceiveSize = all
	switch j.p.Arm {
	case JacobiNormal:
		m.Budget.Limit = all
		m.Payloads = map[string]func(*conduit.Payload){faceName: j.take}
	case JacobiFetch:
		m.Budget.Limit = all
	case JacobiTokens:
		m.Budget.Limit, m.Budget.Messages = min(int64(j.p.Tokens)*face, all), j.p.Tokens
		m.ReceiveSize = m.Budget.Limit // over verbs it has memory all the time
	case JacobiAdaptive:
		m.Budget.Adapt = &flow.AdaptConfig{Floor: min(floorSets*sides*face, all), Ceiling: all, Headroom: all / headroomShare}
	}
	if j.p.Arm != JacobiNormal {
		m.Fetches = map[string]func(*conduit.FetchRequest){faceName: j.asks}
	}
}

// Run computes on all ranks of the worker's job together, which Configure has configured, and
// checks the result. One iteration comes before those that count.
func (j *Jacobi) Run(ctx context.Context, w *conduit.Worker) (res JacobiResult, err error) {
	j.job, j.w, j.me = w.Job(), w, w.Job().Rank()
	var stop context.CancelFunc
	j.ctx, stop = context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer func() {
		stop()
		j.end()
		serving.Wait()
		for _, free := range j.free {
			free()
		}
	}()
	if res.Sizes, err = j.p.Sizes(); err != nil {
		return res, err
	}
	if err := j.fill(); err != nil {
		return res, err
	}
	if j.p.Arm != JacobiNormal {
		face := j.p.faceBytes()
		buf, err := j.memory(packers * face)
		if err != nil {
			return res, err
		}
		j.packed = packers * face
		for i := range int64(packers) {
			serving.Go(func() { j.serve(floats(buf[i*face:])[:j.cubes.face()]) })
		}
	}
	done := 0
	step := func() error {
		if err := j.iterate(done); err != nil {
			return fmt.Errorf("bench: jacobi: iteration %d: %w", done, err)
		}
		done++
		return nil
	}
	if err := step(); err != nil {
		return res, err
	}
	if err := w.Barrier(ctx); err != nil {
		return res, err
	}
	if j.Counting != nil {
		j.Counting()
	}
	probe := pressure.New()
	first := probe.Read().MajorFaults
	last, begin := first, time.Now()
	for more := true; more; {
		at := time.Now()
		if err := step(); err != nil {
			return res, err
		}
		faults := probe.Read().MajorFaults
		res.Iterations = append(res.Iterations, time.Since(at))
		res.FaultsEach = append(res.FaultsEach, faults-last)
		res.Limits = append(res.Limits, j.job.Budget().Stats().Limit)
		last = faults
		if more, err = j.more(len(res.Iterations), begin); err != nil {
			return res, err
		}
	}
	res.Elapsed = time.Since(begin)
	if res.Faults = last - first; first < 0 {
		res.Faults = -1
	}
	res.Ghosts = j.job.Budget().MemoryStats().MemoryPeak
	res.Peak = res.Ghosts + j.packed
	return res, j.verify(done)
}

// more reports whether there is another iteration, which rank 0 decides where time does.
func (j *Jacobi) more(done int, begin time.Time) (bool, error) {
	if j.p.For == 0 || done < j.p.Iterations {
		return done < j.p.Iterations, nil
	}
	return conduit.BroadcastValue(j.ctx, j.job, 0, time.Since(begin) < j.p.For)
}

// verify checks all cubes on all ranks: each returns an error where one has found a wrong cell.
func (j *Jacobi) verify(iterations int) error {
	var wrong error
	for l := range j.cells {
		if wrong = j.cubes.check(j.cells[l][iterations%2], j.me, l, iterations, j.wave); wrong != nil {
			break
		}
	}
	bad, err := conduit.AllGatherValue(j.ctx, j.job, wrong != nil)
	if err != nil {
		return errors.Join(wrong, err)
	}
	if r := slices.Index(bad, true); r >= 0 {
		if wrong == nil {
			wrong = errors.New("a wrong cell")
		}
		return &WrongError{Kernel: "jacobi", Rank: r, Cause: wrong}
	}
	return nil
}

// fill makes the arrays, with the wave in them.
func (j *Jacobi) fill() error {
	n := j.p.Edge * j.p.Edge * j.p.Edge
	for l := range j.cubes.local() {
		var c [2][]float32
		for i := range c {
			b, err := j.memory(int64(4 * n))
			if err != nil {
				return err
			}
			c[i] = floats(b)
		}
		j.cells = append(j.cells, c)
		_ = j.cubes.each(j.me, l, 0, j.wave, func(at int, row []float32) error {
			copy(c[0][at:], row)
			return nil
		})
		j.reached(l, 0)
	}
	return nil
}

// floats are whole pages as cells.
func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func bytesOfCells(f []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), 4*len(f))
}

// memory is of the rank's own until the end of the run.
func (j *Jacobi) memory(n int64) ([]byte, error) {
	b, free, err := offheap.Map(int(n))
	if err == nil {
		j.free = append(j.free, free)
	}
	return b, err
}

// iterate makes iteration i+1 of all cubes.
func (j *Jacobi) iterate(i int) error {
	switch {
	case j.p.Arm == JacobiNormal:
		return j.exchange(i)
	case j.p.Arm == JacobiFetch:
		return j.fetchAll(i)
	case j.p.Arm == JacobiTokens && j.p.Tokens < sides:
		return j.fetchParts(i)
	}
	return j.fetchSets(i)
}

// compute makes iteration i+1 of a cube with all ghost faces.
func (j *Jacobi) compute(l, i int, ghosts *[sides][]float32) {
	j.relax(l, i, ghosts)
	j.reached(l, i+1)
}

// relax writes over iteration i-1 of a cube: nobody needs that any more, as all six neighbours have
// iteration i, or there were no ghost faces of them.
func (j *Jacobi) relax(l, i int, ghosts *[sides][]float32) {
	j.mu.Lock()
	has := j.ready[l]
	j.mu.Unlock()
	if has != i {
		panic(fmt.Sprintf("bench: jacobi: iteration %d of a cube that has %d", i+1, has))
	}
	c := j.cells[l]
	j.cubes.relax(c[(i+1)%2], c[i%2], ghosts)
}
