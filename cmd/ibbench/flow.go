package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/bench"
)

// flowCmd is ibbench flow: a command for each kernel.
type flowCmd struct {
	FT       flowFT       `cmd:"" name:"ft" help:"The NAS benchmark FT, cut into many parts that exchange blocks: faults and time with little memory, for blocks that are all in flight and for tokens."`
	AllToAll flowAllToAll `cmd:"" name:"alltoall" help:"All-to-all paced by a budget, beside Bruck's, all at once, and pairwise."`
	Hog      flowHog      `cmd:"" help:"Take memory from others, by touching it again and again."`
}

// kernel returns the command of a kernel.
func (c *flowCmd) kernel(name string) command {
	return map[string]command{"ft": &c.FT, "alltoall": &c.AllToAll, "hog": &c.Hog}[name]
}

// flowRanks are the flags of kernels that run in jobs of ranks.
type flowRanks struct {
	Ranks   int           `short:"n" default:"2" placeholder:"N" help:"Ranks, each a process in a memory group of its own. Default: 2."`
	Fabric  string        `default:"shm" enum:"shm,ibv,auto" help:"Network between the ranks: shm, ibv or auto. Default: shm."`
	Device  string        `short:"d" placeholder:"DEV" help:"Verbs device. Default: the best with an active port."`
	Limit   string        `placeholder:"BYTES" help:"Memory of each rank, its group's limit, as 256M; 0: no groups, which needs no privilege."`
	Swap    string        `placeholder:"BYTES" help:"Swap space that the machine should have: what is missing is added as a file in the directory for temporary files. Default: the ranks' memory twice."`
	Timeout time.Duration `placeholder:"D" help:"End a run after this time; the table shows ** for it."`
	Quick   bool          `help:"Small and short, to see that all works; the figures mean little."`
	Quiet   bool          `short:"q" help:"No progress on standard error."`
}

// flowOutput are the flags that say how to report.
type flowOutput struct {
	Format string   `default:"text" enum:"text,json,csv" help:"Format on standard output: text, json or csv. Default: text."`
	Output []string `short:"o" sep:"none" placeholder:"FILE" help:"Write the results to a file too, in the format of its suffix: .txt .json .csv, or as a plot: .svg. Repeatable."`
}

// bytesFlag reads a flag that is a number of bytes.
func bytesFlag(name, text, byDefault string) (int64, error) {
	if text == "" {
		text = byDefault
	}
	n, err := conduit.ParseBytes(text)
	if err != nil {
		return 0, usageError{fmt.Errorf("%s %s: %w", name, text, err)}
	}
	return n, nil
}

// flowHog is ibbench flow hog.
type flowHog struct {
	Bytes    string        `arg:"" help:"How much to take, as 64M."`
	Every    time.Duration `default:"100ms" placeholder:"D" help:"Between two touches of a page. Default: 100ms."`
	Sawtooth time.Duration `placeholder:"D" help:"Grow from nothing to all in this time, again and again. Default: all of it from the start."`
	Duration time.Duration `default:"10s" placeholder:"D" help:"For how long. Default: 10s."`
	Quiet    bool          `short:"q" help:"No progress on standard error."`
}

func (c *flowHog) run(ctx context.Context, io streams) error {
	n, err := bytesFlag("the hog's", c.Bytes, "")
	if err != nil {
		return err
	}
	if c.Duration <= 0 || c.Every <= 0 {
		return usageError{errors.New("--duration and --every: want times above 0")}
	}
	t := newTerminal(io.err, c.Quiet)
	h := bench.Hog{Bytes: n, Every: c.Every, Period: c.Sawtooth, Took: func(n int64) { t.live(fmt.Sprintf("%d MiB", n>>20)) }}
	ctx, cancel := context.WithTimeout(ctx, c.Duration)
	defer cancel()
	err = h.Run(ctx)
	t.clear()
	return err
}
