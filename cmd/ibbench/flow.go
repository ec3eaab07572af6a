package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// flowCmd is ibbench flow: a command for each kernel.
type flowCmd struct {
	Jacobi   flowJacobi   `cmd:"" help:"A stencil on cubes whose ghost faces come and go: faults, memory and time by size, for faces that are sent, fetched, and fetched with tokens; and a budget that adapts to a hog."`
	FT       flowFT       `cmd:"" name:"ft" help:"The NAS benchmark FT, cut into many parts that exchange blocks: faults and time with little memory, for blocks that are all in flight and for tokens."`
	AllToAll flowAllToAll `cmd:"" name:"alltoall" help:"All-to-all paced by a budget, beside Bruck's, all at once, and pairwise."`
	Incast   flowIncast   `cmd:"" help:"Many ranks send payloads to one, whose budget has memory for some: throughput and memory."`
	Hog      flowHog      `cmd:"" help:"Take memory from others, by touching it again and again."`
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

// flowOutput are the flags that say how to report, and what they open.
type flowOutput struct {
	written
	to report.Tee
}

// open refuses what no kernel can run with or write to, before anything is measured. drawn says
// that there is a plot.
func (o *flowOutput) open(ctx context.Context, io streams, drawn bool) error {
	err := io.alone(ctx, "flow starts its ranks on this machine")
	if o.drawn = drawn; err == nil {
		o.to, _, err = o.writers(io, "50")
	}
	return err
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
