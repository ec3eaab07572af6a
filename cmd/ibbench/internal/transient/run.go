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
	Timeout time.Duration // after which the run is ended; 0: none
	// Began is called when the ranks were started, with their groups; ctx ends with the run. nil: not.
	Began func(ctx context.Context, groups []*memgroup.Group)
	// Said is called with what a rank says in a line, from one goroutine. nil: not.
	Said   func(rank int, line json.RawMessage)
	Stderr io.Writer
}

// order is what a rank is told.
type order struct {
	Kernel string
	Params json.RawMessage
	Fabric string
	Device string
	Places []string // of the ranks' groups; nil: none
}

// said is one line from a rank.
type said struct {
	Rank   int
	Line   json.RawMessage `json:",omitempty"`
	Result json.RawMessage `json:",omitempty"`
}

// RankArg is the argument that makes the program a rank; main calls RankMain then.
const (
	RankArg  = "flow-rank"
	orderVar = "IBBENCH_FLOW_ORDER"
)

// ErrTimeout is that a run was ended after Run.Timeout.
var ErrTimeout = errors.New("the run did not end in time")

// Start runs the kernel and returns what each rank found.
func Start[R any](ctx context.Context, r *Run) (results []R, err error) {
	params, err := json.Marshal(r.Params)
	if err != nil {
		return nil, err
	}
	o := order{Kernel: r.Kernel, Params: params, Fabric: r.Fabric, Device: r.Device}
	groups, err := Groups(r.Ranks, r.Limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removeAll(groups)) }()
	for _, g := range groups {
		o.Places = append(o.Places, g.Place())
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Timeout, ErrTimeout)
		defer cancel()
	}
	if r.Began != nil {
		live, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() { defer close(done); r.Began(live, groups) }()
		defer func() { cancel(); <-done }() // before the groups are removed
	}
	results = make([]R, r.Ranks)
	code, reports, err := Launch(ctx, r.Ranks, RankArg, orderVar+"="+string(text), r.Stderr, func(line []byte) error {
		var s said
		err := json.Unmarshal(line, &s)
		switch {
		case err != nil || s.Rank < 0 || s.Rank >= len(results):
			return fmt.Errorf("a rank wrote %.80q: %w", line, err)
		case s.Result != nil:
			return json.Unmarshal(s.Result, &results[s.Rank])
		case r.Said != nil:
			r.Said(s.Rank, s.Line)
		}
		return nil
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
func Launch(ctx context.Context, ranks int, arg, variable string, stderr io.Writer, take func(line []byte) error) (code int, reports []string, err error) {
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

// receiver takes apart what ranks write.
type receiver struct {
	take func(line []byte) error
	held []byte
	err  error
}

// Write never fails, so that the ranks are heard to the end.
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

// Groups makes a group of so many bytes for each rank, and none without a limit.
func Groups(ranks int, limit int64) (groups []*memgroup.Group, err error) {
	for i := range ranks {
		if limit == 0 {
			break
		}
		g, err := memgroup.Make(fmt.Sprintf("ibbench-%d-%d", os.Getpid(), i), limit)
		if err != nil {
			return nil, errors.Join(err, removeAll(groups))
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
