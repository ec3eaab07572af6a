package envtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// World is a simulated job.
type World struct {
	*sim.World
	// Detect is how long the others take at most to learn of a death; each takes another time.
	// Traffic may show it before.
	Detect time.Duration

	ranks []*simRank
	rng   *rand.Rand
}

// simRank is the Env of a simulated rank.
type simRank struct {
	*rank
	host *simHost
	s    *sim.Rank
	idle []fabric.Lane // to wait with
}

// NewWorld makes the ranks of cfg, with the regions in their segments. It sets SegmentSize and
// OnDown.
func NewWorld(cfg sim.Config, specs ...env.Spec) (*World, error) {
	offs, size, err := layOut(specs)
	if err != nil {
		return nil, err
	}
	w := &World{Detect: time.Millisecond, rng: rand.New(rand.NewPCG(cfg.Seed, 2))}
	cfg.SegmentSize = int(size)
	cfg.OnDown = func(at *sim.Rank, rank int, cause error) { w.ranks[at.ID()].SetDown(rank, cause) }
	if w.World, err = sim.New(cfg); err != nil {
		return nil, err
	}
	w.ConnectAll()
	for i := range cfg.Ranks {
		s := w.Rank(i)
		r := &simRank{rank: newRank(i, cfg.Ranks, s.Net()), s: s, host: &simHost{amtest.SimHost(s), s}}
		r.place(specs, offs, s.Segment())
		w.ranks = append(w.ranks, r)
	}
	return w, nil
}

// Env is what a rank gives its parts.
func (w *World) Env(rank int) env.Env { return w.ranks[rank] }

// Run runs f on every rank that lives, as sim.World.Run does.
func (w *World) Run(f func(ctx context.Context, e env.Env) error) error {
	return w.World.Run(func(ctx context.Context, s *sim.Rank) error { return f(ctx, w.ranks[s.ID()]) })
}

var errKilled = errors.New("the rank was killed")

// Kill kills a rank, and lets the others know.
func (w *World) Kill(rank int) {
	w.World.Kill(rank)
	for i, r := range w.ranks {
		if i != rank {
			w.At(time.Duration(w.rng.Int64N(int64(w.Detect)+1)), func() {
				if !r.s.Dead() {
					r.SetDown(rank, errKilled)
				}
			})
		}
	}
}

// Close has the job of a rank begin to close.
func (w *World) Close(rank int) { w.ranks[rank].closing(os.ErrClosed) }

func (r *simRank) Host() env.Host { return r.host }

// WaitWord waits with a lane of its own, of which simulated networks have enough.
func (r *simRank) WaitWord(ctx context.Context, word *uint64, c fabric.Cond, value uint64, stop func() error) error {
	var l fabric.Lane
	if n := len(r.idle); n > 0 {
		l, r.idle = r.idle[n-1], r.idle[:n-1]
	} else {
		var err error
		if l, err = r.net.NewLane(); err != nil {
			return err
		}
	}
	defer func() { r.idle = append(r.idle, l) }()
	return l.WaitWord(ctx, word, c, value, stop)
}

// Crowded is false: virtual time stands still while a rank runs.
func (r *simRank) Crowded() bool { return false }

// simHost is the goroutines and the time of a simulated rank.
type simHost struct {
	am.Host
	s *sim.Rank
}

func (h *simHost) Now() time.Duration { return h.s.World().Now() }

func (h *simHost) WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return h.s.WithTimeout(parent, d)
}
