package peer

import (
	"bytes"
	"context"
	_ "embed" // the source of the MPI program
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/stats"
	"github.com/ibconduit/conduit/internal/errtext"
)

// ErrNoMPI is wrapped when Open MPI is not installed.
var ErrNoMPI = errors.New("Open MPI is not installed: apt-get install openmpi-bin libopenmpi-dev, or make setup")

// mpiSource is the program that measures with MPI what package measure does with the conduit.
//
//go:embed mpi/coll.c
var mpiSource []byte

// MPI compares collective operations with Open MPI's, on this machine.
type MPI struct {
	Plan    *plan.Plan // of points of plan.Coll
	CPUs    []int      // for Open MPI's ranks; empty: as mpirun chooses
	Rounds  int
	Timeout time.Duration // of a round of theirs
	Extra   []string      // further arguments of mpirun
	Ours    Ours
	Say     func(text string)

	mpirun, program string
}

// match is one point on both sides.
type match struct {
	rounds []report.Round
	series []*report.Series // ours, of each round
	theirs int64            // checked operations that went wrong
}

// Run compares, and returns a series for each point. With an error these are of the rounds that
// were finished before, if there are any.
func (c *MPI) Run(ctx context.Context) ([]*report.Series, error) {
	dir, err := os.MkdirTemp("", "ibbench-mpi-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := c.build(ctx, dir); err != nil {
		return nil, err
	}
	all := make([]match, len(c.Plan.Points))
	for n := range c.Rounds {
		c.Say(fmt.Sprintf("round %d of %d", n+1, c.Rounds))
		if err = c.round(ctx, all, n%2 == 1); err != nil {
			err = fmt.Errorf("round %d: %w", n+1, err)
			break
		}
	}
	if len(all[0].rounds) == 0 {
		return nil, err
	}
	version := mpiVersion(context.WithoutCancel(ctx), c.mpirun)
	var out []*report.Series
	for i := range all {
		out = append(out, c.report(&all[i], version))
	}
	return out, err
}

// build compiles the program. MPICH, which may be installed too, has programs of the same names
// without the suffix.
func (c *MPI) build(ctx context.Context, dir string) error {
	mpicc, err := exec.LookPath("mpicc.openmpi")
	if err != nil {
		return fmt.Errorf("mpicc.openmpi: %w", ErrNoMPI)
	}
	if c.mpirun, err = exec.LookPath("mpirun.openmpi"); err != nil {
		return fmt.Errorf("mpirun.openmpi: %w", ErrNoMPI)
	}
	source := filepath.Join(dir, "coll.c")
	c.program = filepath.Join(dir, "coll")
	if err := os.WriteFile(source, mpiSource, 0o600); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, mpicc, "-std=c11", "-O2", "-o", c.program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", mpicc, err, tail(string(out)))
	}
	return nil
}

func mpiVersion(ctx context.Context, mpirun string) string {
	out, err := exec.CommandContext(ctx, mpirun, "--version").Output()
	line, _, _ := strings.Cut(string(out), "\n") // "mpirun.openmpi (OpenRTE) 4.1.4"
	if f := strings.Fields(line); err == nil && len(f) > 0 {
		return f[len(f)-1]
	}
	return "(version unknown)"
}

// mpirunArgs are mpirun's. It refuses to run as root without being told, and more ranks than
// processors.
func mpirunArgs(ranks int, cpus []int, extra []string) []string {
	args := []string{"-n", strconv.Itoa(ranks)}
	if os.Geteuid() == 0 {
		args = append(args, "--allow-run-as-root")
	}
	if ranks > runtime.NumCPU() {
		args = append(args, "--oversubscribe")
	}
	if len(cpus) > 0 {
		var list []string
		for _, n := range cpus {
			list = append(list, strconv.Itoa(n))
		}
		args = append(args, "--cpu-set", strings.Join(list, ","))
	}
	return append(args, extra...)
}

func (c *MPI) args() []string { return mpirunArgs(c.Plan.Ranks, c.CPUs, c.Extra) }

// round measures everything once on both sides.
func (c *MPI) round(ctx context.Context, all []match, oursFirst bool) error {
	var ours []*report.Series
	var theirs []mpiPoint
	steps := []func() error{
		func() (err error) {
			theirs, err = c.theirs(ctx)
			return err
		},
		func() (err error) {
			ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, errors.New("our ranks did not finish"))
			defer cancel()
			ours, err = c.Ours(ctx, c.Plan)
			return err
		},
	}
	if oursFirst {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if len(ours) != len(all) {
		return fmt.Errorf("%d of %s of ours were measured", len(ours), errtext.Count(len(all), "point"))
	}
	for i := range all {
		m := &all[i]
		m.series = append(m.series, ours[i])
		m.theirs += theirs[i].errors
		m.rounds = append(m.rounds, report.Round{Ours: figures(&ours[i].Result), Theirs: theirs[i].figures})
	}
	return nil
}

// mpiPoint is what the program found at a point.
type mpiPoint struct {
	errors  int64
	figures report.Figures
}

// theirs runs the program once.
func (c *MPI) theirs(ctx context.Context) ([]mpiPoint, error) {
	pt := c.Plan.Points[0] // all have the same number of samples
	args := append(c.args(), c.program, strconv.FormatInt(pt.Iters, 10), strconv.FormatInt(pt.WarmupIters, 10))
	for _, pt := range c.Plan.Points {
		args = append(args, fmt.Sprintf("%s:%d:%d", pt.Op, pt.Size, pt.Batch))
	}
	text, err := mpirun(ctx, c.mpirun, args, c.Timeout)
	if err != nil {
		return nil, err
	}
	return parseMPI(text, c.Plan.Points)
}

// mpirun runs a program's ranks, and returns what they write.
func mpirun(ctx context.Context, path string, args []string, timeout time.Duration) (string, error) {
	runtime.LockOSThread() // see Pair.Text
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished within %v", timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it ends its processes
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, tail(said.String()))
	}
	return out.String(), nil
}

// parseMPI reads a line for each point: operation, size, errors, and the samples in ns.
func parseMPI(text string, points []plan.Point) (out []mpiPoint, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != len(points) {
		return nil, fmt.Errorf("%d lines for %s: %q", len(lines), errtext.Count(len(points), "point"), tail(text))
	}
	for i, pt := range points {
		f := strings.Fields(lines[i])
		if int64(len(f)) != 3+pt.Iters || f[0] != pt.Op || f[1] != strconv.FormatInt(pt.Size, 10) {
			return nil, fmt.Errorf("%q is no line of %s of %s at size %d", tail(lines[i]), errtext.Count(pt.Iters, "sample"), pt.Op, pt.Size)
		}
		var m mpiPoint
		if m.errors, err = strconv.ParseInt(f[2], 10, 64); err != nil || m.errors < 0 {
			return nil, fmt.Errorf("%q is no number of errors", f[2])
		}
		s := stats.New(pt.Iters, float64(pt.Batch), true)
		for _, text := range f[3:] {
			ns, err := strconv.ParseInt(text, 10, 64)
			if err != nil || ns < 0 {
				return nil, fmt.Errorf("%q is no time in ns", text)
			}
			s.Add(ns)
		}
		round := report.Rounding(pt.Batch)
		m.figures = report.Figures{P50: round(s.Percentile(50)), Mean: round(s.Mean()), P99: round(s.Percentile(99))}
		out = append(out, m)
	}
	return out, nil
}

// report sums up the rounds of a point.
func (c *MPI) report(m *match, version string) *report.Series {
	s := report.Combine(m.series)
	s.Hist, s.Intervals = nil, nil
	round := report.Rounding(s.Plan.Batch)
	mpi := &report.Peer{Place: OSU, Version: version, Args: c.args(), Errors: m.theirs, Rounds: m.rounds}
	ours := medians(m.rounds, func(r report.Round) report.Figures { return r.Ours }, "ns", round)
	mpi.Result = medians(m.rounds, func(r report.Round) report.Figures { return r.Theirs }, "ns", round)
	n := int64(len(m.rounds)) * s.Plan.Iters
	ours.Count, ours.OpsPerSample, ours.Errors = n, s.Plan.Batch, s.Result.Errors+m.theirs
	mpi.Result.Count, mpi.Result.OpsPerSample = n, s.Plan.Batch
	s.Result, s.Peers = ours, []*report.Peer{mpi}
	setRatios(s, m.rounds)
	var all []float64
	for _, r := range m.rounds {
		all = append(all, r.Ours.P50/r.Theirs.P50)
	}
	if low, high, ok := stats.MedianInterval(all); ok {
		mpi.Interval = []float64{report.Round3(low), report.Round3(high)}
	}
	s.Notes = append(s.Notes, fmt.Sprintf("Open MPI %s, mpirun %s; both sides: %s in each round, after %d of warm-up", version,
		strings.Join(mpi.Args, " "), errtext.Count(s.Plan.Iters, "sample"), s.Plan.WarmupIters))
	if m.theirs > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("ERRORS: Open MPI's %s at size %d left something wrong %s", s.Op, s.Size, errtext.Count(m.theirs, "time")))
	}
	return s
}
