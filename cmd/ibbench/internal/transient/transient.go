// Package transient runs kernels of bench with limited memory: each run is a job of fresh processes
// on this machine, each in a memory group of its own.
package transient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/memgroup"
)

// Run is one run of a kernel.
type Run struct {
	Kernel  string
	Params  any           // of the kernel, as JSON
	Ranks   int           // processes
	Fabric  string        // conduit.Config.Fabric
	Device  string        // verbs device; empty: the first
	Limit   int64         // bytes of each rank's memory group; 0: no group
	Timeout time.Duration // after which the run is ended
	Stderr  io.Writer
}

// order has all that a rank needs to know.
type order struct {
	Kernel string
	Params json.RawMessage
	Fabric string
	Device string
	Places []string // of the ranks' groups; nil: none
}

// found is the line that a rank ends with.
type found struct {
	Rank   int
	Result json.RawMessage
}

// RankArg is the argument that makes the program a rank; main calls RankMain then.
const (
	RankArg  = "flow-rank"
	orderVar = "IBBENCH_FLOW_ORDER"
)

// GroupError is that ranks cannot be limited, in no run.
type GroupError struct{ error }

func (e GroupError) Unwrap() error { return e.error }

// Start runs the kernel and returns the result of each rank.
func Start[R any](ctx context.Context, r *Run) (results []R, err error) {
	params, err := json.Marshal(r.Params)
	if err != nil {
		return nil, err
	}
	o := order{Kernel: r.Kernel, Params: params, Fabric: r.Fabric, Device: r.Device}
	groups, err := makeGroups(r.Ranks, r.Limit)
	defer func() { err = errors.Join(err, removeAll(groups)) }()
	if err != nil {
		return nil, GroupError{err}
	}
	for _, g := range groups {
		o.Places = append(o.Places, g.Place())
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("more than %v", r.Timeout))
	defer cancel()
	results = make([]R, r.Ranks)
	code, reports, err := Launch(ctx, r.Ranks, RankArg, orderVar+"="+string(text), r.Stderr, func(line []byte) error {
		var f found
		if err := json.Unmarshal(line, &f); err != nil || f.Rank < 0 || f.Rank >= len(results) {
			return fmt.Errorf("a rank wrote %.80q: %w", line, err)
		}
		return json.Unmarshal(f.Result, &results[f.Rank])
	})
	switch {
	case context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case code != 0:
		return nil, errors.New(strings.Join(append(reports, "the run is incomplete"), "; "))
	}
	return results, nil
}

// Launch starts ranks of this program on this machine, with an argument and a variable, and calls
// take with each line that they write. The reports are of the launcher: why the code is not 0.
func Launch(ctx context.Context, ranks int, arg, variable string, stderr io.Writer,
	take func(line []byte) error) (code int, reports []string, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, nil, err
	}
	in := &receiver{take: take}
	code, err = launch.Run(ctx, launch.Config{
		N: ranks, Path: self, Args: []string{arg}, Env: append(os.Environ(), variable),
		Stdout: in, Stderr: stderr, Report: func(s string) { reports = append(reports, s) },
	})
	if err != nil {
		return code, reports, fmt.Errorf("start ranks: %w", err)
	}
	return code, reports, in.err
}

// receiver takes apart the lines that ranks write.
type receiver struct {
	take func(line []byte) error
	held []byte
	err  error
}

// Write never fails, so that ranks can write to the end.
func (r *receiver) Write(b []byte) (int, error) {
	r.held = append(r.held, b...)
	for {
		line, rest, ok := bytes.Cut(r.held, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		r.err = errors.Join(r.err, r.take(line))
		r.held = append(r.held[:0], rest...)
	}
}

// makeGroups makes a group of so many bytes for each rank, and none without a limit. With an error
// it returns those that were made.
func makeGroups(ranks int, limit int64) (groups []*memgroup.Group, err error) {
	for i := 0; i < ranks && limit > 0; i++ {
		g, err := memgroup.Make(fmt.Sprintf("ibbench-%d-%d", os.Getpid(), i), limit)
		if err != nil {
			return groups, err
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// removeAll removes groups. The kernel takes a moment to see that their processes have ended.
func removeAll(groups []*memgroup.Group) (err error) {
	for _, g := range groups {
		for range 50 {
			if err = g.Remove(); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return err
}
