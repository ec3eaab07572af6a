// Command ibbench measures the conduit on this machine or between
// the ranks of a job. README.md describes its commands and its JSON.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/transient"
	"github.com/ibconduit/conduit/cmd/internal/given"
	"github.com/ibconduit/conduit/internal/nearest"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // an assertion or a comparison failed
	exitUsage  = 2
	exitSetup  = 3   // nothing could be measured; the message says what to do
	exitSignal = 128 // plus the number of the signal that ended it
)

const description = `Measure the conduit: latency, bandwidth, message rate, and how they compare with perftest's.

Without a launcher it starts a second rank on this machine and measures on the best network there is: an RDMA device
(hardware before software), else shared memory. Under ibrun, mpiexec or srun the ranks of the job are its peers.

Results go to standard output and to the files of -o, progress to standard error. Exit code: 0 ok, 1 an assertion
failed, 2 wrong usage, 3 nothing could be measured, 130 interrupted, 143 terminated. Each flag can be set
by a variable: IBBENCH_SIZES for --sizes. One that is almost a flag's is named on standard error.`

// cli lists the commands; each has a file of its own.
type cli struct {
	Version  kong.VersionFlag `help:"Print the version and end."`
	Lat      latCmd           `cmd:"" help:"Latency of put (ping-pong, half a round trip), get, amo (fetch-and-add) or cas; round trip of am, an active message."`
	BW       bwCmd            `cmd:"" name:"bw" help:"Bandwidth of put, get or am."`
	Rate     rateCmd          `cmd:"" help:"Operations per second against depth, lanes and, of am, goroutines."`
	Perftest perftestCmd      `cmd:"" help:"The same plan here and with perftest's ib_*_lat and ib_*_bw, interleaved; prints the ratios."`
	MR       mrCmd            `cmd:"" name:"mr" help:"Registrations of the program's own memory: their cost, that of a hit, and that of listening for munmap."`
	Cache    cacheCmd         `cmd:"" help:"Kernels that access remote memory word by word, with and without a cache for it, in turns; what lines and pages of one cost."`
	Coll     collCmd          `cmd:"" help:"Collective operations: barrier, allreduce, alltoall, bcast."`
	Flow     flowCmd          `cmd:"" help:"Kernels whose messages need much memory for a time, in ranks whose memory is limited, with and without a budget."`
	Serve    serveCmd         `cmd:"" help:"Wait for lat HOST, bw HOST and rate HOST of another host, and measure with it; no launcher is needed."`
	Compare  compareCmd       `cmd:"" help:"Which points of two results have become faster or slower; exit code 1 if one is slower."`
	Report   reportCmd        `cmd:"" help:"A page of tables and pictures from results, as one HTML file."`
	Doctor   doctorCmd        `cmd:"" help:"What works on this machine, and what to do about the rest."`
}

// command is what a parsed command line runs.
type command interface {
	run(ctx context.Context, io streams) error
}

// streams are where output goes.
type streams struct {
	out io.Writer
	err *os.File
}

// usageError is the user's mistake, exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// codeError ends the program with a code, and has been explained already.
type codeError int

func (e codeError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func main() {
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case rankArg:
			os.Exit(transient.Life(playRank))
		case transient.RankArg:
			os.Exit(transient.RankMain())
		}
	}
	os.Exit(run(os.Args[1:], streams{out: os.Stdout, err: os.Stderr}))
}

func run(args []string, io streams) int {
	cmd, code, done := parse(args, io)
	if done {
		return code
	}
	ctx, stop := signalled(context.Background())
	defer stop()
	err := cmd.run(ctx, io)
	var sig signalError
	if errors.As(context.Cause(ctx), &sig) {
		fmt.Fprintf(io.err, "ibbench: %v\n", sig)
		return exitSignal + int(sig)
	}
	return exitCode(err, io)
}

// signalError is the signal that ended the program.
type signalError syscall.Signal

func (e signalError) Error() string {
	if syscall.Signal(e) == syscall.SIGINT {
		return "interrupted"
	}
	return syscall.Signal(e).String()
}

// signalled ends ctx at SIGINT and SIGTERM. Unlike with signal.NotifyContext its cause says
// which it was.
func signalled(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		select {
		case sig := <-came:
			cancel(signalError(sig.(syscall.Signal)))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(came)
		cancel(nil)
	}
}

// exitCode explains an error and turns it into a code.
func exitCode(err error, io streams) int {
	var usage usageError
	var code codeError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		fmt.Fprintf(io.err, "ibbench: %v; try ibbench --help\n", err)
		return exitUsage
	}
	fmt.Fprintf(io.err, "ibbench: %v\n", err)
	return exitSetup
}

// parse returns done where there is nothing to run: help, or wrong usage.
func parse(args []string, io streams) (cmd command, code int, done bool) {
	cmd, err := understand(args, io, func(n int) { code, done = n, true })
	if done {
		return nil, code, true
	}
	for _, text := range nearest.Misspelt(os.Environ(), variablePrefix+"_",
		flagVariables(syntax(new(cli), io, func(int) {}).Model.Node)) {
		fmt.Fprintf(io.err, "ibbench: %s\n", text)
	}
	if err != nil {
		fmt.Fprintf(io.err, "ibbench: %v; try ibbench --help\n", err)
		return nil, exitUsage, true
	}
	return cmd, 0, false
}

// variablePrefix is how the variables of flags begin.
const variablePrefix = "IBBENCH"

// flagVariables are the variables of all flags, without their prefix.
func flagVariables(n *kong.Node) (names []string) {
	for _, f := range n.Flags {
		for _, v := range f.Tag.Envs {
			names = append(names, strings.TrimPrefix(v, variablePrefix+"_"))
		}
	}
	for _, c := range n.Children {
		names = append(names, flagVariables(c)...)
	}
	return names
}

// syntax is what command lines are read by, into c. exit is called by --help and --version.
func syntax(c *cli, io streams, exit func(int)) *kong.Kong {
	parser, err := kong.New(c, kong.Name("ibbench"), kong.Description(description), kong.Writers(io.out, io.err),
		kong.Exit(exit), kong.DefaultEnvars(variablePrefix),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Vars{"version": version()}, given.Values())
	if err != nil {
		panic(err) // the struct tags are wrong
	}
	return parser
}

// understand reads a command line.
func understand(args []string, io streams, exit func(int)) (command, error) {
	var c cli
	parsed, err := syntax(&c, io, exit).Parse(args)
	if err != nil {
		return nil, err
	}
	return parsed.Selected().Target.Addr().Interface().(command), nil
}

// version is the version of the module, or its commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "ibbench (unknown version)"
	}
	return fmt.Sprintf("ibbench %s %s %s/%s", info.Main.Version, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
