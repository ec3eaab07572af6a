package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/measure"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/errtext"
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
	said := &listener{}
	series := 0
	code, reports, err := transient.Launch(ctx, p.Ranks, rankArg, planVar+"="+p.Encode(), said, func(line []byte) error {
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			return fmt.Errorf("rank 0 wrote %.80q: %w", line, err)
		}
		if m.Progress != "" {
			events.Progress(m.Progress)
		}
		if m.Line != "" {
			events.Line(m.Line)
		}
		if m.Series == nil {
			return nil
		}
		series++
		return events.Series(m.Series)
	})
	switch {
	case err != nil:
		return err
	case code != 0 && said.something:
		return codeError(exitSetup) // the rank has said why
	case code != 0:
		return errors.New(strings.Join(append(reports, "the measurement is incomplete"), "; "))
	case series < len(p.Points):
		return fmt.Errorf("the ranks ended after %d of %s", series, errtext.Count(len(p.Points), "point"))
	}
	return nil
}

// listener passes the ranks' messages on and remembers that there were any.
type listener struct{ something bool }

func (l *listener) Write(b []byte) (int, error) {
	l.something = true
	return os.Stderr.Write(b)
}

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
	boot, err := bootstrap.New(ctx, bootstrap.Options{})
	if err != nil {
		return 0, err
	}
	return boot.Rank(), measure.Rank(ctx, boot, p, events)
}

// quietly leaves the message to another rank.
func quietly(err error) error {
	if errors.Is(err, measure.ErrElsewhere) {
		return codeError(exitSetup)
	}
	return err
}
