package jobtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/coll"
	"github.com/ibconduit/conduit/flow"
)

// deathsSeed has the number of a world of random deaths.
const deathsSeed = "IBCONDUIT_TEST_SEED"

// deaths is a world of random collective operations, by its number: how many ranks it has, when
// some of them are killed, and with what configuration.
type deaths struct {
	seed  uint64
	n     int
	after []time.Duration // the first barrier until the rank is killed; 0: it is not
	cfg   conduit.Config
}

func newDeaths(seed uint64) *deaths {
	rng := rand.New(rand.NewPCG(seed, 1))
	d := &deaths{seed: seed, n: 2 + rng.IntN(5)}
	d.after = make([]time.Duration, d.n)
	for _, victim := range rng.Perm(d.n)[:rng.IntN(d.n)] {
		d.after[victim] = 1 + time.Duration(rng.Int64N(int64(60*time.Millisecond)))
	}
	if rng.IntN(2) == 0 {
		d.cfg.Collectives = conduit.Collectives{WindowBytes: 4096, Short: 1}
	}
	if rng.IntN(2) == 0 {
		d.cfg.Memory.Budget = flow.BudgetConfig{Limit: 64 << 10, Reserve: 32 << 10}
	}
	if rng.IntN(2) == 0 {
		d.cfg.Cache = &cache.Config{}
	}
	return d
}

// dying is how many ranks are killed.
func (d *deaths) dying() (n int) {
	for _, at := range d.after {
		if at > 0 {
			n++
		}
	}
	return n
}

func configureDeaths(cfg *conduit.Config) {
	d := deathsOfEnvironment()
	cfg.Collectives, cfg.Memory.Budget, cfg.Cache = d.cfg.Collectives, d.cfg.Memory.Budget, d.cfg.Cache
}

func deathsOfEnvironment() *deaths {
	seed, _ := strconv.ParseUint(os.Getenv(deathsSeed), 10, 64) // the test has set it
	return newDeaths(seed)
}

// deathsProgram does random operations until all that are to be killed are dead, and then some
// more. A team that breaks is shrunk, and the members do others.
func deathsProgram(ctx context.Context, j *conduit.Job) error {
	d := deathsOfEnvironment()
	s := &survivor{deaths: d, t: j.Team(), begin: time.Now()}
	broken, err := s.ended(s.t.Barrier(ctx)) // the others are through Join
	if at := d.after[j.Rank()]; at > 0 {
		time.AfterFunc(at, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	}
	for {
		if err == nil && !broken {
			broken, err = s.phase(ctx)
		}
		if err != nil {
			return fmt.Errorf("phase %d, operation %d: %w", s.phases, s.number, err)
		}
		if !broken {
			break
		}
		if s.last { // others may be through it, and gone
			if err := s.t.Leave(ctx); err != nil {
				return err
			}
			break
		}
		next, err := s.t.Shrink(ctx)
		if err != nil {
			return err
		}
		if next.Index(j.Rank()) < 0 {
			return fmt.Errorf("rank %d is not in the team that it got", j.Rank())
		}
		s.t, broken = next, false
		s.phases++
	}
	if d.after[j.Rank()] > 0 {
		select {} // until it is killed
	}
	fmt.Printf("rank %d: survived %v\n", j.Rank(), time.Since(s.begin).Round(time.Microsecond))
	// After a death who closes the job is dead for those that are still in the last barrier.
	time.Sleep(100 * time.Millisecond)
	return nil
}

// survivor is a rank of a world, as long as it lives.
type survivor struct {
	*deaths
	t      *coll.Team
	begin  time.Time
	phases int
	number int
	last   bool
}

// phase does operations of a team until it breaks. Members of one team choose alike.
func (s *survivor) phase(ctx context.Context) (broken bool, err error) {
	rng := rand.New(rand.NewPCG(s.seed, uint64(100+s.phases)))
	for s.number = 0; ; s.number++ {
		all := s.t.Size() == s.n-s.dying()
		s.last = all && s.number >= 5 || s.number >= 1000
		if s.last {
			return s.ended(s.t.Barrier(ctx))
		}
		if broken, err = s.step(ctx, rng); broken || err != nil {
			return broken, err
		}
	}
}

// ended tells a team that a death has broken from a mistake.
func (s *survivor) ended(err error) (broken bool, wrong error) {
	if err != nil && !errors.Is(err, coll.ErrBroken) {
		return false, err
	}
	return err != nil, nil
}

// element is longer than the pieces of a small window.
type element [700]int64

// step does one random operation, started or not, and verifies what it leaves.
func (s *survivor) step(ctx context.Context, rng *rand.Rand) (bool, error) {
	n, me, t := s.t.Size(), s.t.Rank(), s.t
	root, size, start := rng.IntN(n), []int{1, 7, 300, 9000}[rng.IntN(4)], rng.IntN(2) == 0
	kind, draws := rng.IntN(6), rng.Uint64()
	do := func(p func() *coll.Pending, f func() error) error {
		if start {
			return p().Wait(ctx)
		}
		return f()
	}
	buf := make([]int64, size)
	fill := func(of int) {
		for i := range buf {
			buf[i] = int64(of + i)
		}
	}
	var err error
	var want func(i int) int64
	switch kind {
	case 0:
		err = do(func() *coll.Pending { return t.StartBarrier(ctx) }, func() error { return t.Barrier(ctx) })
	case 1:
		fill(me)
		want = func(i int) int64 { return int64(n*(n-1)/2 + n*i) }
		err = do(func() *coll.Pending { return coll.StartAllReduce(ctx, t, buf, coll.Sum[int64]) },
			func() error { return coll.AllReduce(ctx, t, buf, coll.Sum[int64]) })
	case 2:
		fill(me)
		want = func(i int) int64 { return int64(me*(me+1)/2 + (me+1)*i) }
		err = do(func() *coll.Pending { return coll.StartScan(ctx, t, buf, coll.Sum[int64]) },
			func() error { return coll.Scan(ctx, t, buf, coll.Sum[int64]) })
	case 3:
		src := []int64(nil)
		if me == root {
			src = make([]int64, n*size)
			for i := range src {
				src[i] = int64(i/size + i%size)
			}
		}
		want = func(i int) int64 { return int64(me + i) }
		err = do(func() *coll.Pending { return coll.StartScatter(ctx, t, root, buf, src) },
			func() error { return coll.Scatter(ctx, t, root, buf, src) })
	case 4:
		fill(me)
		all := make([]int64, n*size)
		err = do(func() *coll.Pending { return coll.StartAllGather(ctx, t, all, buf) },
			func() error { return coll.AllGather(ctx, t, all, buf) })
		buf = all
		want = func(i int) int64 { return int64(i/size + i%size) }
	default:
		return s.exchange(ctx, draws, do)
	}
	broken, err := s.ended(err)
	if broken || err != nil || want == nil {
		return broken, err
	}
	for i := range buf {
		if buf[i] != want(i) {
			return false, fmt.Errorf("kind %d: element %d of %d is %d, want %d", kind, i, len(buf), buf[i], want(i))
		}
	}
	return false, nil
}

// exchange is an all-to-all of up to some hundred elements to each member, of 5,600 bytes each.
func (s *survivor) exchange(ctx context.Context, draws uint64, do func(func() *coll.Pending, func() error) error) (bool, error) {
	n, me, t := s.t.Size(), s.t.Rank(), s.t
	count := func(from, to int) int { return rand.New(rand.NewPCG(draws, uint64(from*n+to))).IntN(100) }
	out, in := make([]int, n), make([]int, n)
	var src, want []element
	for i := range n {
		out[i], in[i] = count(me, i), count(i, me)
		src = append(src, slices.Repeat([]element{{int64(me), int64(i)}}, out[i])...)
		want = append(want, slices.Repeat([]element{{int64(i), int64(me)}}, in[i])...)
	}
	dst := make([]element, len(want))
	broken, err := s.ended(do(func() *coll.Pending { return coll.StartAllToAllV(ctx, t, dst, in, src, out) },
		func() error { return coll.AllToAllV(ctx, t, dst, in, src, out) }))
	if err == nil && !broken && !slices.Equal(dst, want) {
		err = errors.New("an all-to-all brought other elements than were sent")
	}
	return broken, err
}
