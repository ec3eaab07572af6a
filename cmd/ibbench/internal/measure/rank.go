package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/metrics"
)

// Events are what rank 0 has to say. The functions are called from one goroutine.
type Events struct {
	Progress func(text string) // what is going on
	Line     func(text string) // what should stay to be read
	Series   func(*report.Series) error
}

// maxStretch bounds the samples between two broadcasts.
const maxStretch = 1 << 18

// Rank takes part in measuring the plan, and closes boot. Only rank 0 calls back.
func Rank(ctx context.Context, boot bootstrap.Bootstrap, p *plan.Plan, out Events) (err error) {
	if p.Ranks != boot.Size() {
		return errors.Join(fmt.Errorf("the plan is for %s, the job has %d", errtext.Count(p.Ranks, "rank"), boot.Size()),
			boot.Close())
	}
	Calibrate()
	s := &session{plan: p, out: out, messages: newMessages()}
	cfg, err := s.config()
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	env, err := s.introduce(ctx, boot)
	if err != nil {
		return errors.Join(err, boot.Close())
	}
	cfg.Bootstrap = boot
	s.job, err = conduit.Join(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(err)) }()
	var stop context.CancelCauseFunc
	s.ctx, stop = context.WithCancelCause(ctx)
	defer stop(nil)
	go s.watch(stop)
	served, err := s.serve()
	defer served()
	if err := s.agree(errors.Join(err, s.open(env))); err != nil {
		return err
	}
	if err := s.openSides(cfg, boot); err != nil {
		return err
	}
	for i, pt := range p.Points {
		if err := s.point(i, pt); err != nil {
			return fmt.Errorf("%s, size %d: %w", pt.Name(), pt.Size, err)
		}
	}
	return nil
}

// serve answers scrapes of rank 0's counters until the returned function is called, if the plan has
// an address.
func (s *session) serve() (stop func(), err error) {
	if s.job.Rank() != 0 || s.plan.Metrics == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", s.plan.Metrics)
	if err != nil {
		return func() {}, fmt.Errorf("--metrics: %w", err)
	}
	s.out.Line(fmt.Sprintf("metrics at http://%s/metrics", l.Addr()))
	ctx, cancel := context.WithCancel(s.ctx)
	var done sync.WaitGroup
	done.Go(func() {
		if err := metrics.ServeListener(ctx, l, metrics.NewCollector(s.job)); err != nil && s.ctx.Err() == nil {
			s.out.Line(fmt.Sprintf("metrics: %v", err))
		}
	})
	return func() { cancel(); done.Wait() }, nil
}

// config has the needs of the job for all points of the plan, but for the bootstrap.
func (s *session) config() (cfg conduit.Config, err error) {
	p := s.plan
	cfg = conduit.Config{
		SegmentSize: p.SegmentSize(), Workers: p.Lanes(), QueueDepth: p.QueueDepth(), Fabric: p.Fabric, Device: p.Device,
		GID: p.GID,
	}
	s.messages.configure(&cfg, p)
	if p.Points[0].Kind == plan.Cache {
		err = s.configureSides(&cfg)
	}
	return cfg, err
}

// ErrElsewhere is what Rank returns where another rank cannot measure. That rank returns the
// reason.
var ErrElsewhere = errors.New("another rank cannot measure")

// PeerEnded reports whether a rank failed because a peer has ended: the peer's own message, or the
// launcher's, is the one that says why. One that is there and cannot be reached has none.
func PeerEnded(err error) bool {
	var lost *bootstrap.LostError
	return errors.As(err, &lost) || errors.Is(err, conduit.ErrPeerDown) && errors.Is(err, io.EOF)
}

// introduce exchanges the ranks' facts before there is a job, and binds
// this one to its processors, so that its memory is touched where it will run.
func (s *session) introduce(ctx context.Context, boot bootstrap.Bootstrap) (*report.Env, error) {
	mine, err := json.Marshal(machine.Local())
	if err != nil {
		return nil, err
	}
	blobs, err := boot.Exchange(ctx, mine)
	if err != nil {
		return nil, err
	}
	facts := make([]machine.Facts, len(blobs))
	for r, b := range blobs {
		if err := json.Unmarshal(b, &facts[r]); err != nil {
			return nil, fmt.Errorf("facts of rank %d: %w", r, err)
		}
		s.hosts = append(s.hosts, facts[r].Host)
	}
	rank, ranks, ok := boot.Local()
	if !ok {
		rank, ranks = boot.Rank(), boot.Size()
	}
	if err := machine.Pin(machine.Share(s.plan.CPUs, rank, ranks)); err != nil {
		return nil, err
	}
	return newEnv(facts, boot.Name()), nil
}

// HostEnv is the environment of ranks that are started on this host.
func HostEnv(ranks int, network string) *report.Env {
	e := newEnv(slices.Repeat([]machine.Facts{machine.Local()}, ranks), "ibbench")
	e.Fabric, e.ClockNS = network, report.Round3(ClockCost())
	return e
}

// newEnv is made of the facts of all ranks.
func newEnv(facts []machine.Facts, launcher string) *report.Env {
	hosts := make(map[string]bool)
	for _, f := range facts {
		hosts[f.Host] = true
	}
	f := facts[0]
	return &report.Env{
		Time: time.Now().Format(time.RFC3339), Kernel: f.Kernel, Arch: f.Arch, CPU: f.CPU, CPUs: f.CPUs,
		GoMaxProcs: f.GoMaxProcs,
		Go:         f.Go, Commit: f.Commit, Modified: f.Modified,
		From:  fmt.Sprintf("%s rank 0", f.Host),
		To:    fmt.Sprintf("%s rank %d", facts[len(facts)-1].Host, len(facts)-1),
		Ranks: len(facts), Hosts: len(hosts), Launcher: launcher,
	}
}

// open prepares what all points share.
func (s *session) open(env *report.Env) error {
	for range s.plan.Lanes() {
		w, err := s.job.NewWorker()
		if err != nil {
			return err
		}
		w.SetContext(s.ctx)
		s.workers = append(s.workers, w)
	}
	s.stamps = make([]int64, maxStretch+2)
	for i := range s.stamps {
		s.stamps[i] = 1 // so that the loops meet no page for the first time
	}
	if s.job.Rank() != 0 {
		return nil
	}
	return s.describe(env)
}

// describe completes the environment of rank 0 by the network and device of the job.
func (s *session) describe(env *report.Env) error {
	s.env = env
	s.clockNS = ClockCost()
	s.env.ClockNS = report.Round3(s.clockNS)
	s.env.Fabric = s.job.FabricTo(s.job.Size() - 1)
	if devs := s.job.Info().Devices; len(devs) > 0 && s.env.Fabric == "ibv" {
		d, err := machine.DescribePort(devs[0].Device, devs[0].Port, s.plan.GID)
		if err != nil {
			return err
		}
		s.env.Device = d
	}
	return nil
}

// watch ends every wait when a rank dies: a word that a dead peer should have
// written never changes.
func (s *session) watch(stop context.CancelCauseFunc) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		for r, cause := range s.job.DownRanks() {
			stop(&conduit.PeerDownError{Rank: r, Op: "measure", Cause: cause})
			return
		}
	}
}

func (s *session) close(failed error) error {
	errs := []error{s.closeSides()}
	for _, w := range s.workers {
		errs = append(errs, w.Close())
	}
	errs = append(errs, s.job.Close())
	if failed != nil {
		return nil // what follows from a failure says nothing new
	}
	return errors.Join(errs...)
}

// point measures one point. All ranks call it together.
func (s *session) point(i int, pt plan.Point) error {
	if pt.Kind == plan.Cache {
		return s.kernel(i, pt)
	}
	s.progress("[%d/%d] %s, size %d, depth %d", i+1, len(s.plan.Points), pt.Name(), pt.Size, pt.Depth)
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // no collection while the clock runs
	var series *report.Series
	var err error
	switch pt.Kind {
	case plan.Lat:
		series, err = s.latencyPoint(pt)
	case plan.Coll:
		series, err = s.collPoint(pt)
	default:
		series, err = s.throughputPoint(pt)
	}
	if err != nil || s.job.Rank() != 0 {
		return err
	}
	series.Describe(pt, s.env)
	if n := series.Result.Errors; n > 0 && pt.Op != plan.AM {
		series.Notes = append(series.Notes, fmt.Sprintf("ERRORS: %s at size %d: %s left wrong bytes", pt.Name(), pt.Size,
			errtext.Count(n, "operation")))
	}
	return s.out.Series(series)
}
