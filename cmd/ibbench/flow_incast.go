package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/internal/bench"
	"github.com/ibconduit/conduit/internal/errtext"
)

// flowIncast is ibbench flow incast.
type flowIncast struct {
	flowOutput
	Ranks    int    `short:"n" default:"4" placeholder:"N" help:"Ranks, of which all but the first send to it. Default: 4."`
	Fabric   string `default:"shm" enum:"shm,ibv,auto" help:"Network between the ranks: shm, ibv or auto. Default: shm."`
	Device   string `short:"d" placeholder:"DEV" help:"Verbs device. Default: the best with an active port."`
	Size     string `default:"64K" placeholder:"BYTES" help:"Bytes of a payload. Default: 64K."`
	Payloads int    `default:"512" placeholder:"N" help:"Payloads of each sender in a run. Default: 512."`
	Each     int    `default:"8" placeholder:"N" help:"Payloads that a sender has under way at once. Default: 8."`
	Memory   string `default:"1,2,4,8,16" placeholder:"LIST" help:"Payloads that have memory at the receiver, beside all of them. Default: 1,2,4,8,16."`
	Rounds   int    `default:"5" placeholder:"N" help:"Runs of each, in turns; the median counts. Default: 5."`
	Quick    bool   `help:"One short round."`
	Quiet    bool   `short:"q" help:"No progress on standard error."`
}

// incastReport is what ibbench flow incast prints.
type incastReport struct {
	flowKind
	Size   int64       `json:"size"` // of a payload
	Rounds int         `json:"rounds"`
	Rows   []incastRow `json:"rows"`
}

// incastRow is a budget: with memory for so many payloads, 0 for all.
type incastRow struct {
	Memory int     `json:"memory"`
	GBps   float64 `json:"gbps"`  // 10^9 bytes a second, the median of the rounds
	Share  float64 `json:"share"` // of that with memory for all, the median of the rounds' ratios
	Peak   int64   `json:"peak"`  // bytes of payloads that had memory at once, the most
	Limit  int64   `json:"limit"`
	rates  []float64
}

func (c *flowIncast) run(ctx context.Context, io streams) error {
	if err := c.open(ctx, io, false); err != nil {
		return err
	}
	size, err := bytesFlag("--size", c.Size, "")
	if err != nil {
		return err
	}
	memory, err := numbersOf("--memory", c.Memory)
	if err != nil {
		return usageError{err}
	}
	if c.Quick {
		c.Payloads, c.Rounds = min(c.Payloads, 32), 1
	}
	if c.Rounds < 1 || c.Rounds > 1000 || c.Ranks > 64 {
		return usageError{errors.New("--rounds: want 1 to 1000; --ranks: at most 64")}
	}
	for _, n := range memory {
		if _, err := bench.NewIncast(c.params(n, size), c.Ranks); err != nil {
			return usageError{err}
		}
	}
	t := newTerminal(io.err, c.Quiet)
	out := &incastReport{flowKind: flowKind{"flow-incast", c.Ranks, c.Fabric}, Size: size}
	for _, n := range append([]int{0}, memory...) {
		out.Rows = append(out.Rows, incastRow{Memory: n})
	}
	err = c.rounds(ctx, io, t, size, out.Rows)
	t.end()
	out.Rows = slices.DeleteFunc(out.Rows, func(r incastRow) bool { return len(r.rates) == 0 })
	if len(out.Rows) == 0 {
		return err
	}
	out.Rounds = len(out.Rows[0].rates)
	for i := range out.Rows {
		row := &out.Rows[i]
		var shares []float64
		for round, rate := range row.rates {
			shares = append(shares, rate/out.Rows[0].rates[round])
		}
		row.GBps, row.Share = middle(row.rates), middle(shares)
	}
	return errors.Join(err, c.write(out)) // also what was measured before a failure
}

// rounds measures each row once in each round, the one with memory for all first.
func (c *flowIncast) rounds(ctx context.Context, io streams, t *terminal, size int64, rows []incastRow) error {
	for round := range c.Rounds {
		for i := range rows {
			row := &rows[i]
			t.live(fmt.Sprintf("round %d, memory for %d", round, row.Memory))
			r := transient.Run{Kernel: transient.Incast, Params: c.params(row.Memory, size), Ranks: c.Ranks, Fabric: c.Fabric, Device: c.Device,
				Timeout: 2 * time.Minute, Stderr: io.err}
			all, err := transient.Start[transient.Measured[bench.IncastResult]](ctx, &r)
			if err != nil {
				return err
			}
			res := all[0].Result
			row.rates = append(row.rates, float64(res.Bytes)/res.Elapsed.Seconds()/1e9)
			row.Peak, row.Limit = max(row.Peak, res.Peak), res.Limit
		}
	}
	return nil
}

func (o *incastReport) series() (all []*report.Series) {
	for _, r := range o.Rows {
		s := flowSeries("incast", o.Size, plan.DefRate, "B/s", math.Round(1e9*r.GBps), math.Round(1e9*slices.Min(r.rates)),
			flowMemory{arm: "memory for " + r.memory(), counts: "bytes of a payload", limit: r.Limit, peak: r.Peak})
		for _, rate := range r.rates {
			s.Rounds = append(s.Rounds, report.Figures{Mean: math.Round(1e9 * rate)})
		}
		all = append(all, s)
	}
	return all
}

func (c *flowIncast) params(memory int, size int64) bench.IncastParams {
	return bench.IncastParams{Size: int(size), Payloads: c.Payloads, Each: c.Each, Memory: memory}
}

func middle(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }

func (r incastRow) memory() string {
	if r.Memory == 0 {
		return "all"
	}
	return strconv.Itoa(r.Memory)
}

func (o *incastReport) Text() string {
	rows := [][]string{{"memory for", "GB/s", "share", "peak KiB", "budget KiB"}}
	for _, r := range o.Rows {
		rows = append(rows, []string{r.memory(), fmt.Sprintf("%.3f", r.GBps), fmt.Sprintf("%.2f", r.Share), fmt.Sprint(r.Peak >> 10), fmt.Sprint(r.Limit >> 10)})
	}
	var t flowText
	t.line("%d ranks send payloads of %d bytes to one, over %s", o.Ranks-1, o.Size, o.Fabric)
	t.table(fmt.Sprintf("medians of %s", errtext.Count(o.Rounds, "round")), rows)
	return t.String()
}
