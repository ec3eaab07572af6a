package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/errtext"
)

// flowAllToAll is ibbench flow alltoall.
type flowAllToAll struct {
	flowRanks
	flowOutput
	Sizes  string        `aliases:"size" placeholder:"LIST" help:"Bytes for each rank, as 8 or 8,64K or 8..1M (doubling). Default: 8..1M."`
	Rounds int           `default:"31" placeholder:"N" help:"Rounds, in each of which all sides take their turn. Default: 31."`
	Most   time.Duration `default:"5s" placeholder:"D" help:"Time of one size, after which it gets no more rounds. Default: 5s."`
	Loop   int           `placeholder:"N" help:"Operations of a round. Default: as many as take about a millisecond."`
}

// allToAllReport is what ibbench flow alltoall prints.
type allToAllReport struct {
	flowKind
	Sides  []bench.AllToAllSide  `json:"sides"`
	Points []bench.AllToAllPoint `json:"points"`
}

func (c *flowAllToAll) run(ctx context.Context, io streams) error {
	if err := c.open(ctx, io, false); err != nil {
		return err
	}
	if c.Quick {
		c.Sizes, c.Rounds, c.Loop = "8,4K,64K", 2, 4
	}
	sizes, err := sizesOf("", c.Sizes, "8..1M")
	switch {
	case err != nil:
		return usageError{err}
	case c.Rounds < 1 || c.Rounds > 1000 || c.Loop < 0 || c.Most < 0:
		return usageError{fmt.Errorf("--rounds %d, --loop %d and --most %v: want 1 to 1000, and 0 or more", c.Rounds, c.Loop, c.Most)}
	case c.Limit != "" && c.Limit != "0":
		return usageError{errors.New("--limit: alltoall compares times in memory that suffices")}
	}
	largest := int64(0)
	for _, s := range sizes {
		if largest = max(largest, s); s < 1 || s > 4<<20 {
			return usageError{fmt.Errorf("a block of %d bytes: want 1 byte to 4 MiB", s)}
		}
	}
	t := newTerminal(io.err, c.Quiet)
	out := allToAllReport{flowKind: flowKind{"flow-alltoall", c.Ranks, c.Fabric}, Sides: bench.AllToAllSides(c.Ranks, largest)}
	run := transient.Run{Kernel: transient.AllToAll, Params: transient.AllToAllParams{Sizes: sizes, Rounds: c.Rounds, Loop: c.Loop, Most: c.Most},
		Ranks: c.Ranks, Fabric: c.Fabric, Device: c.Device, Timeout: cmp.Or(c.Timeout, 5*time.Minute), Stderr: io.err,
		Said: func(_ int, line json.RawMessage) {
			var p bench.AllToAllPoint
			if json.Unmarshal(line, &p) == nil {
				out.Points = append(out.Points, p)
				t.live(fmt.Sprintf("%s: done", errtext.Count(p.Size, "byte")))
			}
		}}
	_, err = transient.Start[bool](ctx, &run)
	t.end()
	if err != nil && len(out.Points) == 0 {
		return err
	}
	return errors.Join(err, c.write(&out)) // also what was measured before a failure
}

func (o *allToAllReport) series() (all []*report.Series) {
	for _, p := range o.Points {
		round := report.Rounding(p.Loop)
		for _, side := range o.Sides {
			if p.Micros[side.Name] == 0 {
				continue
			}
			s := flowSeries("alltoall", p.Size, plan.DefOp, "ns", round(1e3*p.Median[side.Name]), round(1e3*p.Micros[side.Name]),
				flowMemory{arm: side.Name, counts: "bytes for each rank"})
			s.Result.OpsPerSample = p.Loop
			for _, us := range p.Rounds[side.Name] {
				ns := round(1e3 * us)
				s.Rounds = append(s.Rounds, report.Figures{P50: ns, Mean: ns})
			}
			all = append(all, s)
		}
	}
	return all
}

func (o *allToAllReport) Text() string {
	rows := [][]string{{"bytes"}}
	for _, s := range o.Sides {
		rows[0] = append(rows[0], s.Name)
	}
	rows[0] = append(rows[0], "ratio", "to")
	for _, p := range o.Points {
		row, worst := []string{fmt.Sprint(p.Size)}, 0.0
		for _, s := range o.Sides {
			row = append(row, fmt.Sprintf("%.2f", p.Micros[s.Name]))
			if s.Way == bench.Paced {
				worst = max(worst, p.Micros[s.Name])
			}
		}
		name, best := p.Best()
		rows = append(rows, append(row, fmt.Sprintf("%.2f", worst/best), name))
	}
	var t flowText
	t.line("All-to-all of %d ranks over %s, microseconds (the least of the rounds), content verified", o.Ranks, o.Fabric)
	t.table("ratio: the slowest of the paced ones to the best of the others", rows)
	return t.String()
}
