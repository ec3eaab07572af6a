package bench

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// ftArms are the arms of FT.
var ftArms = []string{ArmNormal, ArmTokens}

// FTParams are the size of an FT. Fields that are 0 get their defaults.
type FTParams struct {
	Arm        string // ArmNormal or ArmTokens. Default: ArmTokens
	Tokens     int    // blocks that have memory at once, of ArmTokens: 1 or more. Default: 4
	Class      string // of the NAS benchmark: S, W, A or B. Default: S
	Parts      int    // of a rank ("virtual processors"), a power of 2. Default: 16
	Iterations int    // 1 to those of the class. Default: as many
}

func (p FTParams) complete() (FTParams, error) {
	if p.Arm == "" {
		p.Arm = ArmTokens
	}
	if p.Tokens == 0 {
		p.Tokens = 4
	}
	if p.Class == "" {
		p.Class = "S"
	}
	if p.Parts == 0 {
		p.Parts = 16
	}
	c, ok := ftClasses[p.Class]
	if p.Iterations == 0 {
		p.Iterations = len(c.sums)
	}
	switch {
	case !slices.Contains(ftArms, p.Arm):
		return p, fmt.Errorf("bench: ft: no arm %q; there are %v", p.Arm, ftArms)
	case !ok:
		return p, fmt.Errorf("bench: ft: no class %q; there are S, W, A and B", p.Class)
	case p.Tokens < 1 || p.Tokens > maxRequests:
		return p, fmt.Errorf("bench: ft: %d tokens: want 1 to %d", p.Tokens, maxRequests)
	case p.Parts < 1 || p.Parts&(p.Parts-1) != 0:
		return p, fmt.Errorf("bench: ft: %d parts of a rank: want a power of 2", p.Parts)
	case p.Iterations < 1 || p.Iterations > len(c.sums):
		return p, fmt.Errorf("bench: ft: %d iterations of class %s: want 1 to %d", p.Iterations, p.Class, len(c.sums))
	}
	return p, nil
}

// FT is the kernel of that name of the NAS benchmarks (NAS-95-020): a partial differential equation
// solved by transforms in three dimensions, forwards once and backwards each time step. The grid is
// cut into parts of whole lines, many to a rank. Parts exchange blocks, all to all, for the lines
// to lie along another axis. The checksum of each step is known.
type FT struct {
	p     FTParams
	g     ftGrid
	ranks int
	me    int
	u     [3][]complex128
	decay [3][]float64
	along [3]*fft
	phase int       // of the transpose that blocks are of
	x     *exchange // a block is named by the part that it is fetched from, or comes for, and the other one
}

// NewFT prepares one rank's part in a job of so many ranks, a power of 2.
func NewFT(p FTParams, ranks int) (*FT, error) {
	p, err := p.complete()
	if err != nil {
		return nil, err
	}
	if ranks < 1 || bits.OnesCount(uint(ranks)) != 1 {
		return nil, fmt.Errorf("bench: ft: %d ranks: want a power of 2", ranks)
	}
	g, ok := newFTGrid(ftClasses[p.Class].n, p.Parts*ranks, p.Parts)
	if !ok {
		return nil, fmt.Errorf("bench: ft: class %s has too few lines for %d ranks of %d parts", p.Class, ranks, p.Parts)
	}
	f := &FT{p: p, g: g, ranks: ranks, x: &exchange{name: blockName, arm: p.Arm, tokens: p.Tokens, bytes: 16 * g.block(),
		pieces: p.Parts * g.p2 * (ranks - 1) / ranks, parts: p.Parts, senders: 8}}
	f.x.part = func(job *conduit.Job, v, w int) int {
		if v < 0 || v/p.Parts != job.Rank() || w < 0 || w >= g.p1*g.p2 {
			return -1
		}
		return v % p.Parts
	}
	f.x.pack = func(buf []byte, v, w, phase int) {
		from, fromAxis, toAxis := arrays(phase)
		f.g.pack(numbers(buf), f.mine(from, v%p.Parts), fromAxis, v, toAxis, w)
	}
	f.x.start()
	for d, n := range g.n {
		f.decay[d], f.along[d] = decay(n), newFFT(n)
	}
	return f, nil
}

// Sizes are the model's: of 3 arrays what other ranks have of one is in flight in a
// transpose, in two copies.
func (f *FT) Sizes() Footprint { return f.x.sizes(3 * f.array()) }

// array is a rank's part of an array, in bytes.
func (f *FT) array() int64 { return int64(pagepool.Round(uint64(16 * f.g.part() * f.p.Parts))) }

// Configure sets the budget and the functions in the configuration of the job.
func (f *FT) Configure(c *conduit.Config) { f.x.configure(&c.Memory) }

// Run computes on all ranks of the worker's job together, which Configure has configured, and
// checks the result.
func (f *FT) Run(ctx context.Context, w *conduit.Worker) (res Usage, err error) {
	f.me = w.Job().Rank()
	closes, err := f.x.open(ctx, w)
	if err != nil {
		return res, err
	}
	defer closes()
	res.Sizes = f.Sizes()
	for i := range f.u {
		b, err := f.x.memory(f.array())
		if err != nil {
			return res, err
		}
		f.u[i] = numbers(b)[:f.g.part()*f.p.Parts]
	}
	if err := f.begin(); err != nil {
		return res, fmt.Errorf("bench: ft: %w", err)
	}
	err = f.x.measure(&res, func() error {
		for i := range f.p.Iterations {
			sum, err := f.iterate()
			if err != nil {
				return fmt.Errorf("bench: ft: iteration %d: %w", i+1, err)
			}
			res.Checksums = append(res.Checksums, sum)
		}
		return nil
	})
	if err != nil {
		return res, err
	}
	return res, f.verify(res.Checksums)
}

// verify compares with the published checksums; all ranks have the same.
func (f *FT) verify(sums []complex128) error {
	const epsilon = 1e-12 // as the benchmark's own
	for i, got := range sums {
		want := ftClasses[f.p.Class].sums[i]
		if !(math.Abs(real(got)/real(want)-1) <= epsilon && math.Abs(imag(got)/imag(want)-1) <= epsilon) {
			return &WrongError{Kernel: "ft", Rank: f.me, Cause: fmt.Errorf("checksum %d is %v, want %v", i+1, got, want)}
		}
	}
	return nil
}

// first is the number of this rank's first part, and mine the memory of one of its parts in an
// array.
func (f *FT) first() int { return f.me * f.p.Parts }
func (f *FT) mine(u, l int) []complex128 {
	return f.u[u][l*f.g.part() : (l+1)*f.g.part()]
}

// begin makes the grid, and transforms it: array 0 has the frequencies.
func (f *FT) begin() error {
	for l := range f.p.Parts {
		b, mem := f.g.box(xAxis, f.first()+l), f.mine(1, l)
		for z := range b.n[2] {
			for y := range b.n[1] {
				r := randomAt(2 * ((b.from[2]+z)*f.g.n[1] + b.from[1] + y) * f.g.n[0])
				for x := range f.g.n[0] {
					re := r.next()
					mem[x] = complex(re, r.next())
				}
				mem = mem[f.g.n[0]:]
			}
		}
		f.along[xAxis].lines(f.mine(1, l), false)
	}
	f.turn(2, yAxis, 1, xAxis)
	return f.transpose(0, zAxis, 2, yAxis, func(l int) { f.along[yAxis].lines(f.mine(2, l), false) },
		func(l int) { f.along[zAxis].lines(f.mine(0, l), false) })
}

// iterate makes a time step, and returns its checksum.
func (f *FT) iterate() (sum complex128, err error) {
	err = f.transpose(2, yAxis, 1, zAxis, f.evolve, func(l int) { f.along[yAxis].lines(f.mine(2, l), true) })
	if err != nil {
		return 0, err
	}
	f.turn(1, xAxis, 2, yAxis)
	for l := range f.p.Parts {
		f.along[xAxis].lines(f.mine(1, l), true)
		sum += f.checksum(l)
	}
	both := []float64{real(sum), imag(sum)}
	err = conduit.AllReduce(f.x.ctx, f.x.job, both, coll.Sum)
	n := float64(f.g.points())
	return complex(both[0]/n, both[1]/n), err
}

// evolve has the frequencies of a part decay, and begins to transform them back.
func (f *FT) evolve(l int) {
	b, u0, u1 := f.g.box(zAxis, f.first()+l), f.mine(0, l), f.mine(1, l)
	at := 0
	for x := range b.n[0] {
		for y := range b.n[1] {
			d := f.decay[0][b.from[0]+x] * f.decay[1][b.from[1]+y]
			for _, dz := range f.decay[2] {
				u0[at] *= complex(d*dz, 0)
				u1[at] = u0[at]
				at++
			}
		}
	}
	f.along[zAxis].lines(u1, true)
}

// checksum is a part's share of the sum of 1024 numbers.
func (f *FT) checksum(l int) (sum complex128) {
	b := f.g.box(xAxis, f.first()+l)
	steps := b.steps(xAxis)
	for j := 1; j <= 1024; j++ {
		at := 0
		for d, k := range [3]int{j, 3 * j, 5 * j} {
			k = k%f.g.n[d] - b.from[d]
			if k < 0 || k >= b.n[d] {
				at = -1
				break
			}
			at += k * steps[d]
		}
		if at >= 0 {
			sum += f.mine(1, l)[at]
		}
	}
	return sum
}

// turn has the lines of parts lie along another axis, x or y, which are all of this rank.
func (f *FT) turn(to int, toAxis axis, from int, fromAxis axis) {
	for l := range f.p.Parts {
		row := l / f.g.p1 * f.g.p1
		for s := range f.g.p1 {
			f.g.across(f.mine(to, l), toAxis, f.first()+l, f.mine(from, row+s), fromAxis, f.first()+row+s)
		}
	}
}

// numbers are whole pages as complex numbers.
func numbers(b []byte) []complex128 {
	return unsafe.Slice((*complex128)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/16)
}

// ftClass is a grid, and the checksum of each iteration.
type ftClass struct {
	n    [3]int
	sums []complex128
}

// ftClasses are the classes of the benchmark (NPB 3.4).
var ftClasses = map[string]ftClass{
	"S": {[3]int{64, 64, 64}, []complex128{
		554.6087004964 + 484.5363331978i, 554.6385409189 + 486.5304269511i, 554.6148406171 + 488.3910722336i,
		554.5423607415 + 490.1273169046i, 554.4255039624 + 491.7475857993i, 554.2683411902 + 493.2597244941i}},
	"W": {[3]int{128, 128, 32}, []complex128{
		567.3612178944 + 529.3246849175i, 563.1436885271 + 528.2149986629i, 559.4024089970 + 527.0996558037i,
		556.0698047020 + 526.0027904925i, 553.0898991250 + 524.9400845633i, 550.4159734538 + 523.9212247086i}},
	"A": {[3]int{256, 256, 128}, []complex128{
		504.6735008193 + 511.4047905510i, 505.9412319734 + 509.8809666433i, 506.9376896287 + 509.8144042213i,
		507.7892868474 + 510.1336130759i, 508.5233095391 + 510.4914655194i, 509.1487099959 + 510.7917842803i}},
	"B": {[3]int{512, 256, 256}, []complex128{
		517.7643571579 + 507.7803458597i, 515.4521291263 + 508.8249431599i, 514.6409228649 + 509.6208912659i,
		514.2378756213 + 510.1023387619i, 513.9626667737 + 510.3976610617i, 513.7423460082 + 510.5948019802i,
		513.5547056878 + 510.7404165783i, 513.3910925466 + 510.8576573661i, 513.2470705390 + 510.9577278523i,
		513.1197729984 + 511.0460304483i, 513.0070319283 + 511.1252433800i, 512.9070537032 + 511.1968077718i,
		512.8182883502 + 511.2616233064i, 512.7393733383 + 511.3203605551i, 512.6691062020 + 511.3735928093i,
		512.6064276004 + 511.4218460548i, 512.5504076570 + 511.4656139760i, 512.5002331720 + 511.5053595966i,
		512.4551951846 + 511.5415130407i, 512.4146770029 + 511.5744692211i}},
}
