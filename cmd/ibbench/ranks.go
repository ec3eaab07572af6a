package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/launch"
)

// A rank that ibbench starts is ibbench itself with one argument and the plan
// in a variable. It measures and sends the parent what it found, one JSON
// object a line on its standard output.
const (
	rankArg = "rank"
	planVar = "IBBENCH_RANK_PLAN"
)

// message is one line from rank 0 to the parent.
type message struct {
	Progress string         `json:"progress,omitempty"`
	Line     string         `json:"line,omitempty"`
	Series   *report.Series `json:"series,omitempty"`
}

// startRanks runs the plan with ranks on this machine and passes on what rank 0
// says.
func startRanks(ctx context.Context, p *plan.Plan, events measure.Events) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	in := &receiver{events: events}
	said := &listener{}
	var reports []string
	code, err := launch.Run(ctx, launch.Config{
		N: p.Ranks, Path: self, Args: []string{rankArg}, Env: append(os.Environ(), planVar+"="+p.Encode()),
		Stdout: in, Stderr: said, Report: func(text string) { reports = append(reports, text) },
	})
	switch {
	case err != nil:
		return fmt.Errorf("start ranks: %w", err)
	case in.err != nil:
		return in.err
	case code != 0 && said.something:
		return codeError(exitSetup) // the rank has said why
	case code != 0:
		return errors.New(strings.Join(append(reports, "the measurement is incomplete"), "; "))
	case in.series < len(p.Points):
		return fmt.Errorf("the ranks ended after %d of %s", in.series, errtext.Count(len(p.Points), "point"))
	}
	return nil
}

// listener passes the ranks' messages on and remembers that there were any.
type listener struct{ something bool }

func (l *listener) Write(b []byte) (int, error) {
	l.something = true
	return os.Stderr.Write(b)
}

// receiver takes apart what rank 0 writes.
type receiver struct {
	events measure.Events
	held   []byte
	series int
	err    error
}

// Write never fails, so that the ranks are heard to the end.
func (r *receiver) Write(b []byte) (int, error) {
	r.held = append(r.held, b...)
	for {
		i := bytes.IndexByte(r.held, '\n')
		if i < 0 {
			return len(b), nil
		}
		r.take(r.held[:i])
		r.held = r.held[i+1:]
	}
}

func (r *receiver) take(line []byte) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("rank 0 wrote %.80q: %w", line, err))
		return
	}
	if m.Progress != "" {
		r.events.Progress(m.Progress)
	}
	if m.Line != "" {
		r.events.Line(m.Line)
	}
	if m.Series != nil {
		r.series++
		r.err = errors.Join(r.err, r.events.Series(m.Series))
	}
}

// rankMain is the whole life of a rank that ibbench started.
func rankMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rank, err := playRank(ctx)
	if err == nil {
		return exitOK
	}
	if !measure.PeerEnded(err) && !errors.Is(err, measure.ErrElsewhere) && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "ibbench: rank %d: %v\n", rank, err)
	}
	return exitSetup
}

// born is when this process was.
var born = measure.Uptime()

func playRank(ctx context.Context) (rank int, err error) {
	p, err := plan.Decode(os.Getenv(planVar))
	if err != nil {
		return 0, err
	}
	e := json.NewEncoder(os.Stdout)
	events := measure.Events{
		Progress: func(text string) { _ = e.Encode(message{Progress: text}) },
		Line:     func(text string) { _ = e.Encode(message{Line: text}) },
		Series:   func(s *report.Series) error { return e.Encode(message{Series: s}) },
	}
	if p.Points[0].Kind == plan.Join {
		return measure.Start(ctx, p, born, events)
	}
	boot, err := bootstrap.New(ctx, bootstrap.Options{})
	if err != nil {
		return 0, err
	}
	return boot.Rank(), measure.Rank(ctx, boot, p, events)
}
