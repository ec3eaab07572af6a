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

// buildColl compiles the program. MPICH, which may be installed too, has programs of the same names
// without the suffix.
func buildColl(ctx context.Context, dir string) (program string, err error) {
	mpicc, err := find("mpicc.openmpi", ErrNoMPI)
	if err != nil {
		return "", err
	}
	source, program := filepath.Join(dir, "coll.c"), filepath.Join(dir, "coll")
	if err := os.WriteFile(source, mpiSource, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, mpicc, "-std=c11", "-O2", "-o", program, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", mpicc, err, tail(string(out)))
	}
	return program, nil
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

func (c *Comparison) collTest(plan.Point) (test, bool) { return test{times: 1}, true }

// runColl measures all points once. All have the same number of samples.
func (c *Comparison) runColl(ctx context.Context, x *contest) ([]*Output, error) {
	pt := c.Plan.Points[0]
	args := append(slices.Clone(x.pair.Args), c.coll, strconv.FormatInt(pt.Iters, 10), strconv.FormatInt(pt.WarmupIters, 10))
	for _, pt := range c.Plan.Points {
		args = append(args, fmt.Sprintf("%s:%d:%d", pt.Op, pt.Size, pt.Batch))
	}
	text, err := mpirun(ctx, x.pair.Path, args, c.Timeout)
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
func parseMPI(text string, points []plan.Point) (out []*Output, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != len(points) {
		return nil, fmt.Errorf("%d lines for %s: %q", len(lines), errtext.Count(len(points), "point"), tail(text))
	}
	for i, pt := range points {
		f := strings.Fields(lines[i])
		if int64(len(f)) != 3+pt.Iters || f[0] != pt.Op || f[1] != strconv.FormatInt(pt.Size, 10) {
			return nil, fmt.Errorf("%q is no line of %s of %s at size %d", tail(lines[i]), errtext.Count(pt.Iters, "sample"), pt.Op, pt.Size)
		}
		o := &Output{Iters: pt.Iters}
		if o.Errors, err = strconv.ParseInt(f[2], 10, 64); err != nil || o.Errors < 0 {
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
		o.Figures = report.Figures{P50: round(s.Percentile(50)), Mean: round(s.Mean()), P99: round(s.Percentile(99))}
		out = append(out, o)
	}
	return out, nil
}
