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

// Start runs the kernel and returns the result of each rank.
func (r *Run) Start(ctx context.Context) (results []json.RawMessage, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
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
	in := &receiver{run: r, results: make([]json.RawMessage, r.Ranks)}
	var reports []string
	code, err := launch.Run(ctx, launch.Config{
		N: r.Ranks, Path: self, Args: []string{RankArg}, Env: append(os.Environ(), orderVar+"="+string(text)),
		Stdout: in, Stderr: r.Stderr, Report: func(s string) { reports = append(reports, s) },
	})
	switch {
	case context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("start ranks: %w", err)
	case in.err != nil:
		return nil, in.err
	case code != 0:
		return nil, errors.New(strings.Join(append(reports, "the run is incomplete"), "; "))
	}
	return in.results, nil
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

// receiver takes apart what ranks write.
type receiver struct {
	run     *Run
	held    []byte
	results []json.RawMessage
	err     error
}

// Write never fails, so that the ranks are heard to the end.
func (r *receiver) Write(b []byte) (int, error) {
	r.held = append(r.held, b...)
	for {
		line, rest, ok := bytes.Cut(r.held, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		var s said
		err := json.Unmarshal(line, &s)
		switch {
		case err != nil || s.Rank < 0 || s.Rank >= len(r.results):
			r.err = errors.Join(r.err, fmt.Errorf("a rank wrote %.80q: %w", line, err))
		case s.Result != nil:
			r.results[s.Rank] = s.Result
		case r.run.Said != nil:
			r.run.Said(s.Rank, s.Line)
		}
		r.held = append(r.held[:0], rest...)
	}
}
